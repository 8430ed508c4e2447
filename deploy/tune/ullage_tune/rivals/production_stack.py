"""vLLM production-stack's `prefixaware`: the longest prefix that was sent there, nothing else.

    candidates = those present
    for each chunk of the prompt, from its beginning:
        candidates ∩= those that were sent this prefix;  stop before they would be none
    one of the candidates at random, which from now on was sent this prompt

No load is looked at, and nothing is ever forgotten: if all prompts begin alike, one replica gets
them all.

Source: vllm-project/production-stack, src/vllm_router/routers/routing_logic.py (008a23bd,
PrefixAwareRouter), src/vllm_router/prefix/hashtrie.py (35e4ad37).

Sees: the text of prompts.
Simplified: chunks of 128 characters are segments.
"""

from collections.abc import Sequence
from random import Random

from ullage_tune.policy import Cluster
from ullage_tune.rivals.own import Own
from ullage_tune.rivals.prefix_tree import PrefixTree
from ullage_tune.workload import Request


class ProductionStackPrefixAware(Own):
    """The rule above."""

    def __init__(self, cluster: Cluster, dice: Random) -> None:
        super().__init__(cluster, dice)
        self.tree = PrefixTree()

    def pick(self, request: Request, now_s: float, present: Sequence[int]) -> int:
        """See `Own`."""
        candidates = present
        for node in self.tree.walk(request.prompt):
            holding = [replica for replica in candidates if replica in node.holders]
            if not holding:
                break
            candidates = holding
        replica = self.dice.choice(candidates)
        self.tree.insert(request.prompt, replica)
        return replica
