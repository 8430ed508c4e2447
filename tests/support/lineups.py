"""Line-ups, decisions and fleets as tests of who may be given a request want them."""

from collections.abc import Mapping
from random import Random

from mission import AS_ASKED
from snapshots import document
from ullage_router.core.affinity import Memory
from ullage_router.core.breaker import (
    BreakerPolicy,
    Event,
    after,
)
from ullage_router.core.decide import decide
from ullage_router.core.decision import Decision, Need
from ullage_router.core.fleet import (
    Fleet,
    fleet_of,
    hear,
    with_breaker,
)
from ullage_router.core.inflight import InFlight
from ullage_router.core.lineup import LineUp, line_up
from ullage_router.core.odds import Odds
from ullage_router.core.rules import Rules
from ullage_shared.snapshot import RequestClass, Snapshot

A, B, C, D = (f"http://{name}:8000" for name in "abcd")
SIDECAR = "http://sidecar:9400"
RULES = AS_ASKED
SEQS = 16
"""Of the replicas that `snapshot` makes: one request takes a sixteenth."""
SHARE = 1 / SEQS
BREAKER = BreakerPolicy()


def lined_up(
    fleet: Fleet,
    now_s: float = 0.0,
    *,
    rules: Rules = RULES,
    size: RequestClass = RequestClass.MIXED,
    tried: tuple[str, ...] = (),
) -> LineUp:
    return line_up(fleet, None, size, now_s, rules, tried)


def keys(candidates: LineUp) -> set[str]:
    return {seat.replica.key for seat in candidates.seats}


def base_of(candidates: LineUp, key: str) -> float:
    return candidates.seats[candidates.at[key]].base


def by_now(candidates: LineUp, load: InFlight) -> Mapping[str, float]:
    """What each is worth by now."""
    odds = Odds(candidates, load)
    worth = zip(odds.seats, odds.scores, strict=True)
    return {seat.replica.key: score for seat, score in worth} | odds.full


def decided(fleet: Fleet, now_s: float = 0.0, load: InFlight | None = None) -> Decision:
    return decide(fleet, Need(), now_s, Random(1), RULES, load or InFlight(), Memory(10))


def heard(
    *snapshots: Snapshot,
    fleet: Fleet | None = None,
    now_s: float = 0.0,
    load: InFlight | None = None,
) -> Fleet:
    """Each replica has a sidecar of its own."""
    fleet, load = fleet or fleet_of([]), load or InFlight()
    load.note(now_s)
    for one in snapshots:
        fleet, _ = hear(fleet, f"{one.url}/sidecar", document(one), now_s, load.taken_at)
    return fleet


def with_events(fleet: Fleet, key: str, *events: tuple[Event, float]) -> Fleet:
    for event, now_s in events:
        fleet = with_breaker(fleet, key, after(fleet.replicas[key].breaker, event, now_s, BREAKER))
    return fleet


def eject(fleet: Fleet, *gone: str) -> Fleet:
    for key in gone:
        fleet = with_events(fleet, key, *[(Event.FAILED, 0.0)] * BREAKER.eject_after)
    return fleet
