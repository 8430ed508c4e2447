"""Who may be given a request: each replica judged, once, until something changes.

Rules
* A replica is judged by its state, then by its score: it must exceed the floor. By `least_wait`,
  one whose queue moves may be chosen below it, too: each decision judges how long it is.
* Past `stale_after_s` a snapshot no longer vouches: the replica is silent, neither idle nor full.
  Past `forget_after_s` it is lost, and left out unless all are.
* Of silent ones and scored ones together, a silent one is taken for the worst that may be chosen,
  less what this router has sent it since: it must not swallow what the others have no room for.
  With no scored one, they all go by this router's own counts, and none is ever full.
* A replica that gave no answer is left out for a moment, or is ejected, unless that would leave
  nobody.
* A model that nobody is known to serve is no ground for refusal: a replica will say so itself.

The score of a candidate is its snapshot's for requests of this size (mission S8). What this router
has sent since is taken off at each decision: see `odds`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from math import inf, sqrt
from operator import attrgetter
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from ullage_router.core.breaker import (
    CLOSED,
    changes_s,
    ejected,
    struck,
    weight_share,
)
from ullage_router.core.fleet import Fleet, Replica
from ullage_router.core.policy import Policy, Way
from ullage_router.core.rules import Rules
from ullage_router.core.trend import FALLS, factor
from ullage_router.core.waits import UNKNOWN, Pace, moves, pace_of
from ullage_shared.snapshot import RequestClass, Snapshot, State, score_for


class Standing(StrEnum):
    """May this replica be given a request, and if not, why not."""

    ELIGIBLE = "eligible"
    SILENT = "silent"
    """No fresh score: by the router's own counts."""
    FULL = "full"
    LOST = "lost"
    """Silent for so long that it is left out."""
    STARTING = "starting"
    WARMING = "warming"
    DRAINING = "draining"
    DOWN = "down"
    HUNG = "hung"


class Basis(StrEnum):
    """What the candidates are judged by, or why there are none."""

    __hash__ = str.__hash__  # Enum's own is written in Python.

    SCORE = "score"
    OWN_COUNTS = "own_counts"
    """No sidecar speaks for any candidate."""
    FULL = "full"
    """At least one replica serves, and none has headroom."""
    NO_REPLICA = "no_replica"
    """No replica serves."""


_OUT: Final[Mapping[State, Standing]] = {
    State.STARTING: Standing.STARTING,
    State.WARMING: Standing.WARMING,
    State.DRAINING: Standing.DRAINING,
    State.DOWN: Standing.DOWN,
    State.HUNG: Standing.HUNG,
}
"""States in which a replica gets nothing, whatever its score. The others go by their score."""

_LEAST_WAIT: Final = Way.LEAST_WAIT
_SERVING, _RAMPING = State.SERVING, State.RAMPING
_SILENT, _ELIGIBLE, _FULL, _LOST = (
    Standing.SILENT,
    Standing.ELIGIBLE,
    Standing.FULL,
    Standing.LOST,
)


def stand(
    replica: Replica, now_s: float, policy: Policy, size: RequestClass = RequestClass.MIXED
) -> Standing:
    """Judge one replica by its snapshot alone, for requests of this size."""
    snapshot = replica.snapshot
    if snapshot is None:
        return _SILENT
    age_s = snapshot.age_s + now_s - replica.received_s
    if age_s > policy.stale_after_s:
        return _SILENT if age_s <= policy.forget_after_s else _LOST
    state, score = snapshot.state, score_for(snapshot, size)
    if state is not _SERVING and state is not _RAMPING:  # Hashing an enum takes longer than this.
        return _OUT[state]
    if score is None:
        return _SILENT
    if score > policy.floor or _queue_moves(snapshot, policy):
        return _ELIGIBLE
    return _FULL


def _queue_moves(snapshot: Snapshot, policy: Policy) -> bool:
    """Is nothing but the penalty for a queue why its score is low, and does that queue move?"""
    parts = snapshot.parts
    if policy.way is not _LEAST_WAIT or policy.full_beyond_s <= 0.0 or parts is None:
        return False
    without_queue = (parts.free + parts.running + parts.waiting) * parts.warm_up
    return without_queue > policy.floor and moves(pace_of(snapshot))


_SERVE: Final = (_ELIGIBLE, _SILENT, _FULL)
_NONE: Final[frozenset[str]] = frozenset()


@lru_cache(maxsize=4096)
def seed_of(key: str) -> int:
    """A number that stands for a replica wherever hashes are compared: the same in all routers."""
    return int(xxh3_64_intdigest(key.encode()))


class Seat(msgspec.Struct, frozen=True, gc=False):
    """One candidate."""

    replica: Replica
    score: float | None
    """As its sidecar says, for this size of request; None: it is silent."""
    base: float
    """What it is judged by, before what this router has sent since: 0..1."""
    trend: float
    """What its weight counts of that, because the score keeps falling: 0.5..1."""
    share: float
    """What its weight is multiplied with: less than 1 while it returns from an ejection."""
    seed: int
    then: float
    """How much of its headroom was taken when what the snapshot shows was sent."""
    pace: Pace = UNKNOWN
    """How fast it gets through what it has."""
    queue_moves: bool = False
    """By `least_wait`: below the floor, it is full only if its queue takes too long."""


by_seed: Final = attrgetter("seed")
"""The order of seats everywhere: a ring, on which keys find their places too."""


class Judged(msgspec.Struct, frozen=True, gc=False):
    """What one replica is by itself, for requests of one size."""

    replica: Replica
    standing: Standing
    seat: Seat | None
    """None: it has no fresh score, or is full by it."""
    since_s: float
    until_s: float
    """Before that moment, time alone changes nothing."""


@dataclass(frozen=True, slots=True)
class LineUp:
    """The candidates, in the order of their seeds; good until something changes."""

    fleet: Fleet
    basis: Basis
    seats: tuple[Seat, ...] = ()
    """Empty: refuse."""
    at: Mapping[str, int] = field(default_factory=dict)
    """Where a replica sits, by key."""
    busy: frozenset[str] = _NONE
    """Keys of those that serve, but have no room just now, or gave no answer a moment ago."""
    exponent: float = 2.0
    floor: float = 0.0
    silent_base: float | None = None
    """What silent ones are taken for; None: there are none."""
    since_s: float = -inf
    until_s: float = inf
    judged: Mapping[str, Judged] = field(default_factory=dict)
    """All of the fleet, by key."""

    def holds(self, fleet: Fleet, now_s: float) -> bool:
        """Is it still good, by the same rules? (Not before it was made: a clock set back.)"""
        return self.fleet is fleet and self.since_s <= now_s < self.until_s


def line_up(
    fleet: Fleet,
    model: str | None,
    size: RequestClass,
    now_s: float,
    rules: Rules,
    tried: Collection[str] = (),
    before: LineUp | None = None,
) -> LineUp:
    """Judge all replicas but the keys in `tried`. Total: every input has its answer.

    `model`: the one that the request names, None if it names none or all replicas serve the same.
    `before`: an earlier one for the same size and rules; what has not changed is not judged anew.
    """
    known = before.judged if before is not None else {}
    judged = {
        key: said
        if (said := known.get(key)) is not None
        and said.replica is replica
        and said.since_s <= now_s < said.until_s
        else judge(replica, size, now_s, rules)
        for key, replica in fleet.replicas.items()
    }
    candidates = [*judged.values()]
    if model is not None:
        candidates = [
            c for c in candidates if not c.replica.models or model in c.replica.models
        ] or candidates
    if tried:
        candidates = [c for c in candidates if c.replica.key not in tried]
    aside, thrown = left_out(fleet, now_s, rules)
    if thrown:
        candidates = _without(thrown, candidates)
    if aside:
        candidates = _without(aside, candidates)
    seats = [c.seat for c in candidates if c.seat is not None]
    silent = [c.replica for c in candidates if c.standing is _SILENT]
    full = [c.replica.key for c in candidates if c.standing is _FULL]
    if candidates and all(c.standing is _LOST for c in candidates):
        silent = [c.replica for c in candidates]
    # A silent one beside full ones is no way out: it is judged by what it was sent, as if empty.
    basis = Basis.SCORE if seats or (silent and full) else Basis.OWN_COUNTS
    if not seats and not silent:
        basis = Basis.FULL if full else Basis.NO_REPLICA
    worst = None
    if silent:
        floor = rules.choose.floor
        worst = min((seat.base for seat in seats if seat.base > floor), default=1.0)
        seats += [
            Seat(
                r, None, worst, 1.0, _share(r, now_s, rules), seed_of(r.key), r.taken_then, UNKNOWN
            )
            for r in silent
        ]
    seats.sort(key=by_seed)
    return LineUp(
        fleet,
        basis,
        tuple(seats),
        {seat.replica.key: index for index, seat in enumerate(seats)},
        aside.union(full, tried),
        exponent_for(rules.choose, len(seats)),
        rules.choose.floor,
        worst,
        now_s,
        min((c.until_s for c in judged.values()), default=inf),
        judged,
    )


def _without(keys: Collection[str], candidates: list[Judged]) -> list[Judged]:
    """The others, unless none of them serves."""
    others = [c for c in candidates if c.replica.key not in keys]
    return others if any(c.standing in _SERVE for c in others) else candidates


def left_out(fleet: Fleet, now_s: float, rules: Rules) -> tuple[frozenset[str], frozenset[str]]:
    """Keys of replicas that are left out whatever they say: for a moment, and ejected."""
    if all(r.breaker is CLOSED for r in fleet.replicas.values()):
        return _NONE, _NONE
    breakers = {key: r.breaker for key, r in fleet.replicas.items()}
    thrown = ejected(breakers, now_s, rules.breaker)
    return frozenset(key for key, breaker in breakers.items() if struck(breaker, now_s)), thrown


def exponent_for(policy: Policy, candidates: int) -> float:
    """`choose.exponent`; `auto`: the more replicas, the less the emptiest are favoured.

    2 for up to 8, then 1 + √(8 / candidates): a picture is as old with 100 replicas as with 8, but
    all that comes in the meantime is more, and must not go to the few that look emptiest.
    """
    if policy.exponent != "auto":
        return policy.exponent
    return 1.0 + min(1.0, sqrt(8.0 / max(1, candidates)))


def judge(replica: Replica, size: RequestClass, now_s: float, rules: Rules) -> Judged:
    """What it is by itself, for requests of this size."""
    standing = stand(replica, now_s, rules.choose, size)
    seat = None
    if standing is _ELIGIBLE:
        assert replica.snapshot is not None
        score = score_for(replica.snapshot, size)
        assert score is not None
        trend = 1.0 if replica.trend.falls < FALLS else factor(replica.trend)
        share = _share(replica, now_s, rules)
        then = replica.taken_then
        pace = pace_of(replica.snapshot)
        by_time = _queue_moves(replica.snapshot, rules.choose)
        seat = Seat(replica, score, score, trend, share, seed_of(replica.key), then, pace, by_time)
    return Judged(replica, standing, seat, now_s, _changes_s(replica, now_s, rules.choose))


def _share(replica: Replica, now_s: float, rules: Rules) -> float:
    breaker = replica.breaker
    return 1.0 if breaker is CLOSED else weight_share(breaker, now_s, rules.breaker)


def _changes_s(replica: Replica, now_s: float, policy: Policy) -> float:
    """When time alone will change how a replica is judged."""
    at_s = changes_s(replica.breaker, now_s) if replica.breaker is not CLOSED else inf
    if replica.snapshot is None:
        return at_s
    taken_s = replica.received_s - replica.snapshot.age_s
    for limit_s in (policy.stale_after_s, policy.forget_after_s):
        if taken_s + limit_s >= now_s:
            return min(at_s, taken_s + limit_s)
    return at_s
