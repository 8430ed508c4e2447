"""llm-d's endpoint picker (Gateway API Inference Extension's): the highest of a weighted sum.

    score  = w_prefix · prefix + w_queue · queue + w_kv · kv
    prefix = blocks of the prompt's beginning that it is taken to hold / blocks of the prompt
    queue  = (most − waiting) / (most − least) over the replicas; 1 if all are equal
    kv     = 1 − KV usage

A replica that has not been scraped gets 0 for queue and kv; a prompt of less than a block 0 for
prefix. Equal highest scores take turns.

`llm_d` is the default configuration: weights 3, 2, 2, and a prefix index that guesses. Per replica
it is an LRU of as many blocks as the server's KV cache has, of 16 tokens (as vLLM reports both),
filled with every prompt sent there. A prompt is followed for as long as anyone holds the next
block. A prompt's first block is its oldest, so it is the first to be evicted; what a replica holds
behind such a gap still counts.

`llm_d_precise` is the sample configuration with KV events: weights 2, 1, 1, and blocks of 64 tokens
that are in the replica's KV cache now.

Source: llm-d/llm-d-router, pkg/epp/config/loader/defaults.go (0b59e4ed) for the default weights;
deploy/config/epp-precise-prefix-cache-config.yaml (03b2c380); scheduling/scorer/{prefix,queuedepth,
kvcacheutilization} and picker/maxscore under pkg/epp/framework/plugins, and
requestcontrol/dataproducer/approximateprefix/{indexer,types}.go (8998b3a5, 09a534fc).

Sees: the text of prompts, `/metrics` (every 50 ms by default: it reads every scrape here, so that
the lab's interval decides), and KV events for the second.
Simplified: tokens are exact where it estimates them; KV events come at once; nothing is held back
in its flow control, which is off by default; the limit of 131,072 tokens on a prefix is not
modelled.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import NamedTuple

from ullage_tune.policy import Cluster, Gauges
from ullage_tune.rivals.chain import chain
from ullage_tune.rivals.own import Own, cheapest
from ullage_tune.workload import Request


class Weights(NamedTuple):
    """How much each score counts."""

    prefix: float
    queue: float
    kv: float


DEFAULT = Weights(3.0, 2.0, 2.0)
PRECISE = Weights(2.0, 1.0, 1.0)
PRECISE_BLOCK_SIZE = 64


class Scorers(Own):
    """The sum and the draw; how much of a prompt is held is left to the variants."""

    weights = DEFAULT

    def __init__(self, cluster: Cluster, dice: Random) -> None:
        super().__init__(cluster, dice)
        self._gauges: dict[int, Gauges] = {}
        self._turn = 0

    def prefixes(self, request: Request, present: Sequence[int]) -> Mapping[int, float]:
        """Share of the prompt that each is taken to hold; who is not in it: 0."""
        raise NotImplementedError

    def scraped(self, replica: int, gauges: Gauges, now_s: float) -> None:
        """See `Policy`."""
        self._gauges[replica] = gauges

    def changed(self, present: Sequence[int], gone: Collection[int]) -> None:
        """See `Own`."""
        for replica in gone:
            self._gauges.pop(replica, None)

    def pick(self, request: Request, now_s: float, present: Sequence[int]) -> int:
        """See `Own`."""
        prefixes = self.prefixes(request, present)
        queues = [self._gauges[r].waiting for r in present if r in self._gauges]
        most, least = max(queues, default=0), min(queues, default=0)
        costs = []
        for replica in present:
            score = self.weights.prefix * prefixes.get(replica, 0.0)
            gauges = self._gauges.get(replica)
            if gauges is not None:
                queue = (most - gauges.waiting) / (most - least) if most > least else 1.0
                score += self.weights.queue * queue + self.weights.kv * (1.0 - gauges.kv_usage)
            costs.append((-score, replica))
        return self._in_turn(cheapest(costs))

    def _in_turn(self, best: Sequence[int]) -> int:
        """One counter for ties of all sizes; it begins again when it reaches that of this one."""
        if len(best) == 1:
            return best[0]
        turn = self._turn % len(best)
        self._turn = 0 if self._turn + 1 >= len(best) else self._turn + 1
        return best[turn]


class LlmD(Scorers):
    """The default configuration: an index of what was sent."""

    def __init__(self, cluster: Cluster, dice: Random) -> None:
        super().__init__(cluster, dice)
        self._held: dict[int, OrderedDict[int, int]] = {}
        """Replica: prefix: its blocks, the oldest first."""
        self._blocks: dict[int, int] = {}
        self._holders: dict[int, set[int]] = {}

    def changed(self, present: Sequence[int], gone: Collection[int]) -> None:
        """See `Own`."""
        super().changed(present, gone)
        for replica in gone:
            for name in self._held.pop(replica, {}):
                self._let_go(name, replica)
            self._blocks.pop(replica, None)

    def prefixes(self, request: Request, present: Sequence[int]) -> Mapping[int, float]:
        """See `Scorers`."""
        block_size = self.cluster.hardware(present[0]).block_size
        whole = request.prompt_tokens // block_size
        held: dict[int, float] = {}
        for name, blocks in chain(request, block_size):
            if blocks == 0:
                continue
            if name not in self._holders:
                break
            for replica in self._holders[name]:
                held[replica] = held.get(replica, 0.0) + blocks / whole
        return held

    def sent(self, request: Request, replica: int, now_s: float) -> None:
        """See `Policy`: it is taken to hold this prompt."""
        super().sent(request, replica, now_s)
        hardware = self.cluster.hardware(replica)
        held = self._held.setdefault(replica, OrderedDict())
        total = self._blocks.get(replica, 0)
        for name, blocks in chain(request, hardware.block_size):
            if blocks == 0:
                continue
            if name not in held:
                total += blocks
                held[name] = blocks
                self._holders.setdefault(name, set()).add(replica)
            held.move_to_end(name)
        while total > hardware.blocks:
            name, blocks = held.popitem(last=False)
            total -= blocks
            self._let_go(name, replica)
        self._blocks[replica] = total

    def _let_go(self, name: int, replica: int) -> None:
        holders = self._holders[name]
        holders.discard(replica)
        if not holders:
            del self._holders[name]


class LlmDPrecise(Scorers):
    """The sample configuration with KV events: what is cached."""

    weights = PRECISE

    def prefixes(self, request: Request, present: Sequence[int]) -> Mapping[int, float]:
        """See `Scorers`."""
        whole = request.prompt_tokens // PRECISE_BLOCK_SIZE
        if whole == 0:
            return {}
        return {
            replica: self.cluster.cached_tokens(replica, request) // PRECISE_BLOCK_SIZE / whole
            for replica in present
        }
