"""Which replica gets a request: a weighted draw over what the sidecars published.

    weight = capacity_score ** exponent     among replicas with capacity_score > floor

The draw is random because the alternative, always the highest score, floods the emptiest replica
for as long as the picture lasts, then the next. The square favours headroom, no more.

Where a replica has no fresh score, it is neither taken for idle nor for full:

* no candidate has one: each is weighed by this router's own count, `1 / (1 + in_flight)` in the
  score's place;
* some have: a silent replica is weighed like the worst of those that may be chosen.

Nobody above the floor and nobody silent: refuse. Never push a request into a full replica.
A replica that gave no answer is left out for a moment, unless that would leave nobody.
"""

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from math import inf
from random import Random
from typing import Final, NamedTuple

from ullage_router.core.fleet import Fleet, Replica
from ullage_router.core.policy import Policy
from ullage_shared.snapshot import State


class Standing(StrEnum):
    """May this replica be given a request, and if not, why not."""

    ELIGIBLE = "eligible"
    SILENT = "silent"
    """No fresh score: by the router's own counts."""
    FULL = "full"
    STARTING = "starting"
    WARMING = "warming"
    DRAINING = "draining"
    DOWN = "down"
    HUNG = "hung"


class Why(StrEnum):
    """The rule that settled a decision."""

    __hash__ = str.__hash__  # Enum's own is written in Python, and each decision is counted by it.

    SCORE = "score"
    """Drawn by the sidecars' scores."""
    OWN_COUNTS = "own_counts"
    """No sidecar speaks for any candidate: drawn by this router's requests in flight."""
    FULL = "full"
    """Refused: at least one replica serves, and none has headroom."""
    NO_REPLICA = "no_replica"
    """Refused: no replica is serving."""


class Decision(NamedTuple):
    """Where a request goes, and why. `replica` None: it is refused."""

    replica: Replica | None
    why: Why
    score: float | None = None
    """The replica's capacity score at that moment; None: it was silent."""


_OUT: Final[Mapping[State, Standing]] = {
    State.STARTING: Standing.STARTING,
    State.WARMING: Standing.WARMING,
    State.DRAINING: Standing.DRAINING,
    State.DOWN: Standing.DOWN,
    State.HUNG: Standing.HUNG,
}
"""States in which a replica gets nothing, whatever its score. The others go by their score."""


_SERVING, _RAMPING = State.SERVING, State.RAMPING
_SILENT, _ELIGIBLE, _FULL = Standing.SILENT, Standing.ELIGIBLE, Standing.FULL


def stand(replica: Replica, now_s: float, policy: Policy) -> Standing:
    """Judge one replica by its snapshot alone."""
    snapshot = replica.snapshot
    if snapshot is None or snapshot.age_s + now_s - replica.received_s > policy.stale_after_s:
        return _SILENT
    state, score = snapshot.state, snapshot.capacity_score
    if state is not _SERVING and state is not _RAMPING:  # Hashing an enum takes longer than this.
        return _OUT[state]
    if score is None:
        return _SILENT
    return _ELIGIBLE if score > policy.floor else _FULL


@dataclass(frozen=True, slots=True)
class LineUp:
    """Who may be given a request, and at what odds; judged once, good until something changes."""

    why: Why
    decisions: tuple[Decision, ...]
    """One for each that may be drawn. Empty: refuse."""
    odds: tuple[float, ...]
    """Running sums of the weights; empty where they go by counts of the moment."""
    since_s: float
    until_s: float
    """Before that moment, time alone changes nothing."""

    def holds(self, now_s: float) -> bool:
        """Is it still good, for the same fleet and policy? (Not before it was made: a clock set
        back.)"""
        return self.since_s <= now_s < self.until_s


def decide(
    fleet: Fleet,
    model: str | None,
    in_flight: Mapping[str, int],
    now_s: float,
    rng: Random,
    policy: Policy,
    tried: Collection[str] = (),
) -> Decision:
    """Choose among all replicas but the keys in `tried`. Total: every input has its answer."""
    return draw(line_up(fleet, model, now_s, policy, tried), in_flight, rng, policy)


def line_up(
    fleet: Fleet, model: str | None, now_s: float, policy: Policy, tried: Collection[str] = ()
) -> LineUp:
    """Judge all replicas but the keys in `tried`.

    `model`: the one that the request names, None if it names none or all replicas serve the same. A
    model that nobody is known to serve is no ground for refusal: a replica will say so itself.
    """
    candidates = list(fleet.replicas.values())
    if model is not None:
        candidates = [r for r in candidates if not r.models or model in r.models] or candidates
    if tried:
        candidates = [r for r in candidates if r.key not in tried]
    reachable = [r for r in candidates if r.aside_until_s <= now_s] or candidates
    until_s = min((_changes_s(r, now_s, policy) for r in candidates), default=inf)

    scored: list[tuple[Replica, float | None, float]] = []  # replica, its score, score weighed with
    silent: list[Replica] = []
    full = False
    for replica in reachable:
        standing = stand(replica, now_s, policy)
        if standing is _SILENT:
            silent.append(replica)
        elif standing is _FULL:
            full = True
        elif standing is _ELIGIBLE:
            assert replica.snapshot is not None
            score = replica.snapshot.capacity_score
            assert score is not None
            scored.append((replica, score, score))

    if scored:
        if silent:
            worst = min(score for _, _, score in scored)
            scored += [(replica, None, worst) for replica in silent]
        decisions = tuple(Decision(replica, Why.SCORE, score) for replica, score, _ in scored)
        odds = tuple(accumulate(base**policy.exponent for _, _, base in scored))
        return LineUp(Why.SCORE, decisions, odds, now_s, until_s)
    if silent:
        decisions = tuple(Decision(replica, Why.OWN_COUNTS) for replica in silent)
        return LineUp(Why.OWN_COUNTS, decisions, (), now_s, until_s)
    return LineUp(Why.FULL if full else Why.NO_REPLICA, (), (), now_s, until_s)


def draw(line_up: LineUp, in_flight: Mapping[str, int], rng: Random, policy: Policy) -> Decision:
    """Draw one of the line-up."""
    decisions = line_up.decisions
    if not decisions:
        return Decision(None, line_up.why)
    odds: Sequence[float] = line_up.odds
    if not odds:
        counts = (in_flight.get(d.replica.key, 0) for d in decisions if d.replica)
        odds = [*accumulate((1.0 + count) ** -policy.exponent for count in counts)]
    at = bisect_right(odds, rng.random() * odds[-1])
    # Rounding may leave a crumb, and all weights may underflow to 0: then the last one.
    return decisions[at] if at < len(decisions) else decisions[-1]


def _changes_s(replica: Replica, now_s: float, policy: Policy) -> float:
    """When time alone will change how a replica is judged."""
    changes_s = replica.aside_until_s if replica.aside_until_s > now_s else inf
    if replica.snapshot is None:
        return changes_s
    stale_s = replica.received_s + policy.stale_after_s - replica.snapshot.age_s
    return min(changes_s, stale_s) if stale_s >= now_s else changes_s
