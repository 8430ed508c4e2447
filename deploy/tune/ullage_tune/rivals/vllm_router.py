"""vllm-router's `cache_aware`: the longest known prefix, unless requests in flight are far apart.

    imbalanced = most − fewest > 64  and  most > 1.5 · fewest        (own requests in flight)
    imbalanced:              the fewest in flight
    match / prompt > 0.3:    the owner of the longest prefix in the tree
    otherwise:               the fewest in flight
    in each case the tree learns the choice; every 120 s it is cut to 2**25 characters per replica

A tie for the fewest goes to the first in the list. What the tree returns is one replica, the one
that began the branch, even if others have been sent the same since.

Source: vllm-project/router, src/policies/cache_aware.rs (16917f49), src/tree.rs (1dbe5075);
defaults as `vllm-router --help` of 0.1.17 prints them (those in the code, 0.5 / 32 / 1.1, are not
used). sglang-router's and SGLang Model Gateway's `cache_aware` before SMG 1.0 is the same rule.

Sees: its own requests in flight and the text of prompts; no server is asked.
Simplified: characters are tokens (4 to one); a match ends at a segment's end; session headers,
which need a client that sends them, are not; the order of eviction is that of requests, where the
original refreshes a leaf also at one match in eight.
"""

from collections.abc import Collection, Sequence
from random import Random

from ullage_tune.policy import Cluster
from ullage_tune.rivals.own import Own
from ullage_tune.rivals.prefix_tree import PrefixTree
from ullage_tune.workload import Request

CACHE_THRESHOLD = 0.3
BALANCE_ABS_THRESHOLD = 64
BALANCE_REL_THRESHOLD = 1.5
EVICTION_INTERVAL_S = 120.0
CHARACTERS_PER_TOKEN = 4
MAX_TREE_TOKENS = 2**25 // CHARACTERS_PER_TOKEN


class VllmRouterCacheAware(Own):
    """The rule above."""

    def __init__(self, cluster: Cluster, dice: Random) -> None:
        super().__init__(cluster, dice)
        self.tree = PrefixTree()
        self._evicted_s = 0.0

    def changed(self, present: Sequence[int], gone: Collection[int]) -> None:
        """See `Own`: who leaves is taken out of the tree."""
        for replica in gone:
            self.tree.forget(replica)

    def pick(self, request: Request, now_s: float, present: Sequence[int]) -> int:
        """See `Own`."""
        if now_s - self._evicted_s >= EVICTION_INTERVAL_S:
            self._evicted_s = now_s
            self.tree.evict(lambda replica: self.tree.sizes[replica] > MAX_TREE_TOKENS)
        owner = None if self._imbalanced(present) else self._owner(request)
        replica = self.fewest(present)[0] if owner is None else owner
        self.tree.insert(request.prompt, replica)
        return replica

    def _imbalanced(self, present: Sequence[int]) -> bool:
        loads = [self.in_flight(replica) for replica in present]
        most, fewest = max(loads), min(loads)
        return most - fewest > BALANCE_ABS_THRESHOLD and most > BALANCE_REL_THRESHOLD * fewest

    def _owner(self, request: Request) -> int | None:
        tokens, node = self.tree.match(request.prompt)
        if tokens / request.prompt_tokens <= CACHE_THRESHOLD:
            return None
        return node.first_holder()
