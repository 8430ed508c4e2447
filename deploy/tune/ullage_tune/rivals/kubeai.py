"""KubeAI's PrefixHash: consistent hashing with bounded loads (CHWBL).

    key   = the first 100 characters of the first user message
    ring  = 256 points for each replica; the walk begins at the first point at or behind the key's
    fits  = in flight + 1 ≤ 1.25 · (in flight of all + 1) / replicas;  always, if none is in flight
    the first replica on the walk that fits; if none does, the first of all

With fewer requests in flight than replicas nobody may fit, and the key's home has it.

Source: substratusai/kubeai, internal/loadbalancer/balance_chwbl.go (08e69e54) and group.go
(005686ae); defaults in api/k8s/v1/model_types.go: meanLoadFactor 125, replication 256,
prefixCharLength 100. The strategy must be asked for (LeastLoad is the default: `least_in_flight`).
V. Mirrokni, M. Thorup, M. Zadimoghaddam: Consistent Hashing with Bounded Loads, arXiv 1608.01350.

Sees: its own requests in flight, and the beginning of prompts.
Simplified: 100 characters name a segment. Segments have no roles: one that begins prompts which go
on differently is taken for a system prompt, and the one behind it for the first user message, so
that a system prompt is mistaken for a message until a second prompt goes on from it.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from random import Random

from xxhash import xxh64_intdigest

from ullage_tune.policy import Cluster
from ullage_tune.rivals.own import Own
from ullage_tune.workload import Request, Segment

MEAN_LOAD_FACTOR = 1.25
REPLICATION = 256


class KubeAi(Own):
    """The rule above."""

    def __init__(self, cluster: Cluster, dice: Random) -> None:
        super().__init__(cluster, dice)
        self._ring: list[tuple[int, int]] = []
        self._goes_on: dict[Segment, Segment | None] = {}
        """First segment: the one behind it; `None`: several, so it is a system prompt."""

    def changed(self, present: Sequence[int], gone: Collection[int]) -> None:
        """See `Own`."""
        self._ring = sorted(
            (xxh64_intdigest(b"replica-%d-%d" % (replica, point)), replica)
            for replica in present
            for point in range(REPLICATION)
        )

    def pick(self, request: Request, now_s: float, present: Sequence[int]) -> int:
        """See `Own`."""
        key = xxh64_intdigest(b"%d" % self._first_message(request))
        begin = bisect_left(self._ring, (key, -1))
        loads = {replica: self.in_flight(replica) for replica in present}
        in_all = sum(loads.values())
        most = MEAN_LOAD_FACTOR * (in_all + 1) / len(present) - 1 if in_all else 0.0
        if min(loads.values()) > most:
            return self._ring[begin % len(self._ring)][1]
        while True:
            replica = self._ring[begin % len(self._ring)][1]
            if loads[replica] <= most:
                return replica
            begin += 1

    def _first_message(self, request: Request) -> int:
        first = request.prompt[0]
        if len(request.prompt) == 1:
            return first.text
        second = request.prompt[1]
        if self._goes_on.setdefault(first, second) == second:
            return first.text
        self._goes_on[first] = None
        return second.text
