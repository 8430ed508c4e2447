"""SMG's policies for HTTP vLLM workers: `cache_aware` (its default), `power_of_two`, `least_load`.

`cache_aware`, over those that are eligible (`smg_wait`):

    crowded(r)  = in flight > 1.5 · mean  and  in flight > mean + min(64, max(4, ⌈2 √mean⌉))
    match / prompt > 0.3:   holders of the longest prefix that are not crowded, by expected wait;
                            all crowded: the others that are not crowded, by expected wait
    otherwise:              all, by expected wait
    the tree learns the choice, so that a hot prefix gains holders; every 60 s it is cut to
    2**26 characters, all replicas together

The 64 never decide: from a mean of 16 on the first condition is the harder one.

`power_of_two` compares two drawn at random by expected wait (`--power-of-two-load-metric
expected_wait`, the default); with `least_requests` it takes, of all, those with the fewest of its
own requests in flight, and of these the least expected wait. `least_load` is the least expected
wait of all.

Source: smg 1.13.0: `smg launch --help` for the defaults and the crowding margin, and
smg-project/smg, model_gateway/src/policies/cache_aware.rs (04def283), power_of_two.rs (2463a7c7).

Sees: its own requests in flight, the text of prompts, `/metrics` every 10 s.
Simplified: characters are tokens (4 to one); a match ends at a segment's end; its warm-up slice is
for gRPC workers with KV events and is not modelled.
"""

from collections.abc import Collection, Sequence
from math import ceil, sqrt
from random import Random

from ullage_tune.policy import Cluster
from ullage_tune.rivals.prefix_tree import PrefixTree
from ullage_tune.rivals.smg_wait import ExpectedWait
from ullage_tune.workload import Request

CACHE_THRESHOLD = 0.3
BALANCE_REL_THRESHOLD = 1.5
LEAST_MARGIN = 4
EVICTION_INTERVAL_S = 60.0
CHARACTERS_PER_TOKEN = 4
MAX_TREE_TOKENS = 2**26 // CHARACTERS_PER_TOKEN


class SmgCacheAware(ExpectedWait):
    """The rule above."""

    def __init__(self, cluster: Cluster, dice: Random) -> None:
        super().__init__(cluster, dice)
        self.tree = PrefixTree()
        self._evicted_s = 0.0

    def changed(self, present: Sequence[int], gone: Collection[int]) -> None:
        """See `Own`: who leaves is taken out of the tree."""
        super().changed(present, gone)
        for replica in gone:
            self.tree.forget(replica)

    def pick(self, request: Request, now_s: float, present: Sequence[int]) -> int:
        """See `Own`."""
        if now_s - self._evicted_s >= EVICTION_INTERVAL_S:
            self._evicted_s = now_s
            self.tree.evict(lambda _: self.tree.size > MAX_TREE_TOKENS)
        eligible = self.eligible(present)
        tokens, node = self.tree.match(request.prompt)
        holders: list[int] = []
        if tokens / request.prompt_tokens > CACHE_THRESHOLD:
            holders = [replica for replica in eligible if replica in node.holders]
        replica = self.least_wait(self._candidates(holders, eligible))
        self.tree.insert(request.prompt, replica)
        return replica

    def _candidates(self, holders: Sequence[int], eligible: Sequence[int]) -> Sequence[int]:
        if not holders:
            return eligible
        mean = sum(map(self.in_flight, eligible)) / len(eligible)
        margin = max(LEAST_MARGIN, ceil(2.0 * sqrt(mean)))
        most = max(BALANCE_REL_THRESHOLD * mean, mean + margin)
        free = [replica for replica in eligible if self.in_flight(replica) <= most]
        return [replica for replica in holders if replica in free] or free


class SmgExpectedWait(ExpectedWait):
    """`power_of_two` by expected wait."""

    def pick(self, request: Request, now_s: float, present: Sequence[int]) -> int:
        """See `Own`."""
        eligible = self.eligible(present)
        return self.least_wait(self.dice.sample(eligible, min(2, len(eligible))))


class SmgLeastRequests(ExpectedWait):
    """`power_of_two` by least requests."""

    def pick(self, request: Request, now_s: float, present: Sequence[int]) -> int:
        """See `Own`."""
        return self.least_wait(self.fewest(self.eligible(present)))


class SmgLeastLoad(ExpectedWait):
    """`least_load`."""

    def pick(self, request: Request, now_s: float, present: Sequence[int]) -> int:
        """See `Own`."""
        return self.least_wait(self.eligible(present))
