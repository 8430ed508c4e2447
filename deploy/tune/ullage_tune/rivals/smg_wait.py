"""SMG's expected wait, and its overload protection: what its load-aware policies stand on.

    wait_s = 1024 · (waiting + running + unaccounted + dispatched) / 2000  +  0.15 · k / (1 − k)

`waiting`, `running` and `k` (KV usage, at most 0.999) are a server's `/metrics` of up to 10 s ago.
`dispatched` are this router's requests sent there since that reading: the next one releases them,
not their end. `unaccounted` are those it has in flight beyond what the reading and `dispatched`
explain. 1024 tokens stand for every prompt, whatever its length, and 2000 tokens/s for every GPU:
both are what an HTTP vLLM worker gets, which reports neither.

    no reading of this one:    the best wait of those with one + 1024 · in flight / 2000
    no reading of any:         in flight
    a tie (within 1 µs):       by lot

Overload protection, on by default, judged at each reading: waiting ≥ 8 or k ≥ 0.8 takes a worker
out while another is under both; if all are over, the fewest in flight get the request.

Source: smg 1.13.0: `smg launch --help` for the defaults, and smg-project/smg,
model_gateway/src/policies/least_load.rs (11b1fe08 and later, which count running requests).

Simplified: gRPC workers, which report more and fresher, are not modelled.
"""

from collections.abc import Collection, Sequence
from random import Random

from ullage_tune.policy import Cluster, Gauges
from ullage_tune.rivals.own import Own, cheapest

POLL_S = 10.0
MEAN_PREFILL_TOKENS = 1024
THROUGHPUT_TOKENS_PER_S = 2000.0
KV_PRESSURE_S = 0.15
MOST_KV_USAGE = 0.999
TIE_S = 1e-6
OVERLOAD_WAITING = 8
OVERLOAD_KV_USAGE = 0.8
REQUEST_S = MEAN_PREFILL_TOKENS / THROUGHPUT_TOKENS_PER_S
"""What one request is taken to cost."""


class ExpectedWait(Own):
    """Readings of up to 10 s ago, and the wait that they promise."""

    def __init__(self, cluster: Cluster, dice: Random) -> None:
        super().__init__(cluster, dice)
        self._read: dict[int, tuple[float, Gauges]] = {}
        self._dispatched: dict[int, int] = {}

    def scraped(self, replica: int, gauges: Gauges, now_s: float) -> None:
        """See `Policy`; what comes within 10 s of the last reading is not read."""
        last = self._read.get(replica)
        if last is None or not 0.0 <= now_s - last[0] < POLL_S - TIE_S:
            self._read[replica] = now_s, gauges
            self._dispatched[replica] = 0

    def changed(self, present: Sequence[int], gone: Collection[int]) -> None:
        """See `Own`."""
        for replica in gone:
            self._read.pop(replica, None)
            self._dispatched.pop(replica, None)

    def eligible(self, present: Sequence[int]) -> Sequence[int]:
        """Those that are not overloaded; if all are, those with the fewest in flight."""
        return [r for r in present if not self._overloaded(r)] or self.fewest(present)

    def least_wait(self, replicas: Sequence[int]) -> int:
        """The one with the least wait, which is dispatched to from here on."""
        waits = {r: self._wait_s(r, *self._read[r]) for r in replicas if r in self._read}
        best_s = min(waits.values(), default=0.0)
        costs = [(waits.get(r, best_s + self.in_flight(r) * REQUEST_S), r) for r in replicas]
        replica = self.dice.choice(cheapest(costs, within=TIE_S))
        self._dispatched[replica] = self._dispatched.get(replica, 0) + 1
        return replica

    def _wait_s(self, replica: int, _at_s: float, gauges: Gauges) -> float:
        known = gauges.waiting + gauges.running + self._dispatched[replica]
        k = min(gauges.kv_usage, MOST_KV_USAGE)
        return max(known, self.in_flight(replica)) * REQUEST_S + KV_PRESSURE_S * k / (1.0 - k)

    def _overloaded(self, replica: int) -> bool:
        if replica not in self._read:
            return False
        _, gauges = self._read[replica]
        return gauges.waiting >= OVERLOAD_WAITING or gauges.kv_usage >= OVERLOAD_KV_USAGE
