"""What every router can count itself: its requests in flight on each replica, and who is there.

A request is in flight from when it was sent until its answer has ended, broken off or not. A rival
is this, and a rule: `pick`.

Edges: an end that was never begun leaves the count at 0; a replica that is gone keeps its count
until its requests have ended, and is not asked about.
"""

from collections.abc import Collection, Iterable, Sequence
from random import Random

from ullage_tune.policy import Cluster, Gauges
from ullage_tune.workload import Request


class Own:
    """A policy that knows its own requests; `pick` is left to the rival."""

    def __init__(self, cluster: Cluster, dice: Random) -> None:
        self.cluster = cluster
        self.dice = dice
        self._present: tuple[int, ...] = ()
        self._in_flight: dict[int, int] = {}

    def pick(self, request: Request, now_s: float, present: Sequence[int]) -> int:
        """One of those present, which are at least one, in rising order."""
        raise NotImplementedError

    def changed(self, present: Sequence[int], gone: Collection[int]) -> None:
        """Others are present than at the last choice; `gone` of those before are not any more."""

    def in_flight(self, replica: int) -> int:
        """Requests sent there that have not ended."""
        return self._in_flight.get(replica, 0)

    def fewest(self, replicas: Iterable[int]) -> list[int]:
        """Those of them with the fewest in flight, in their order."""
        return cheapest([(self.in_flight(replica), replica) for replica in replicas])

    patience_s = 0.0

    def choose(self, request: Request, now_s: float, without: int | None = None) -> int | None:
        """See `Policy`. No rival refuses: each sends to the best of those it has."""
        there = sorted(self.cluster.present())
        present = tuple(replica for replica in there if replica != without) or tuple(there)
        if present != self._present:
            gone = set(self._present).difference(present)
            self._present = present
            self.changed(present, gone)
        return self.pick(request, now_s, present)

    def sent(self, request: Request, replica: int, now_s: float) -> None:
        """See `Policy`."""
        self._in_flight[replica] = self.in_flight(replica) + 1

    def first_token(self, request: Request, replica: int, now_s: float) -> None:
        """See `Policy`."""

    def finished(self, request: Request, replica: int, now_s: float) -> None:
        """See `Policy`."""
        left = self._in_flight.pop(replica, 0) - 1
        if left > 0:
            self._in_flight[replica] = left

    def failed(self, request: Request, replica: int, now_s: float) -> None:
        """See `Policy`: to what a router counts, an end like any other."""
        self.finished(request, replica, now_s)

    def scraped(self, replica: int, gauges: Gauges, now_s: float) -> None:
        """See `Policy`."""


def cheapest(costs: Sequence[tuple[float, int]], within: float = 0.0) -> list[int]:
    """Replicas whose cost exceeds the least by no more than `within`, in the order given."""
    limit = min(cost for cost, _ in costs) + within
    return [replica for cost, replica in costs if cost <= limit]
