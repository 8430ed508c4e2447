"""Which replica gets a request, and by which rule.

    line up (who may be?)  ►  odds (worth what, now?)  ►  affinity (who knows it?)  ►  a way

Nobody above the floor and nobody silent: refuse. Never push a request into a full replica.

Everything here only looks. What a decision entails (a key has a home, a request is in flight) is
for the router to do.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from random import Random
from types import MappingProxyType
from typing import Final, NamedTuple

from ullage_router.core.affinity import Known, Memory, Move, homes_for
from ullage_router.core.fleet import Fleet, Replica
from ullage_router.core.inflight import InFlight
from ullage_router.core.lineup import Basis, Seat, line_up
from ullage_router.core.odds import Odds
from ullage_router.core.policy import Way
from ullage_router.core.rules import Rules
from ullage_router.core.selection import WAYS, Field, neighbours
from ullage_shared.snapshot import RequestClass

_SLACK: Final = 8
"""By own counts, a home keeps its key until it has clearly more requests than others."""


class Why(StrEnum):
    """The rule that settled a decision."""

    __hash__ = str.__hash__  # Enum's own is written in Python, and each decision is counted by it.

    SCORE = "score"
    """No key settles it: chosen among those with headroom, by `choose.way`."""
    OWN_COUNTS = "own_counts"
    """No sidecar speaks for any candidate: chosen by this router's requests in flight."""
    AFFINITY = "affinity"
    """It goes where what it begins with is known."""
    NEW_KEY = "new_key"
    """Nobody is known to know how it begins: chosen as the key prefers."""
    KEY_MOVED = "key_moved"
    """Its key's replica is full or gone: balanced, and the key moves along."""
    KEY_SPILLED = "key_spilled"
    """Its key's replica has little room, or none but the key has moved a moment ago: balanced, and
    the key stays."""
    HOT_KEY = "hot_key"
    """Its key comes so often that several replicas share it."""
    FULL = "full"
    """Refused, after it has waited or at once: replicas serve, and none has headroom."""
    NO_REPLICA = "no_replica"
    """Refused: no replica is serving."""


_WHY: Final = {basis: Why(basis) for basis in Basis}
_NOTHING: Final[Mapping[str, float]] = MappingProxyType({})


class Need(NamedTuple):
    """What choosing needs to know of a request."""

    model: str | None = None
    """None: it names none, or all replicas serve the same."""
    size: RequestClass = RequestClass.MIXED
    keys: tuple[int, ...] = ()
    """Its cache keys, of 64 bits, the shortest beginning first."""
    prompt_tokens: int = 0
    """Estimated."""


class Look(NamedTuple):
    """What was looked at, so that it can be told."""

    seats: tuple[Seat, ...]
    """The candidates."""
    exponent: float
    scores: tuple[float, ...]
    """What each that could be chosen was worth by then, in the order of the seats."""
    full: Mapping[str, float]
    """The same of those whom this router had filled, by key."""


class Decision(NamedTuple):
    """Where a request goes, and why. `replica` None: it is refused."""

    replica: Replica | None
    why: Why
    score: float | None = None
    """The replica's capacity score at that moment; None: it was silent."""
    known: Known | None = None
    """The longest of its keys that had a home."""
    move: Move = Move.STAY
    look: Look | None = None


def decide(
    fleet: Fleet,
    need: Need,
    now_s: float,
    rng: Random,
    rules: Rules,
    load: InFlight,
    memory: Memory,
    tried: Collection[str] = (),
) -> Decision:
    """Choose among all replicas but the keys in `tried`. Total: every input has its answer."""
    candidates = line_up(fleet, need.model, need.size, now_s, rules, tried)
    return choose(Odds(candidates, load), need.keys, now_s, rng, rules, memory)


def choose(
    odds: Odds,
    keys: Sequence[int],
    now_s: float,
    rng: Random,
    rules: Rules,
    memory: Memory,
) -> Decision:
    """Choose one of those that `odds` has, for a request with these keys."""
    lined_up = odds.line_up
    full = dict(odds.full) if odds.full else _NOTHING
    look = Look(lined_up.seats, lined_up.exponent, tuple(odds.scores), full)
    if not odds.seats:
        why = Why.FULL if lined_up.seats else _WHY[lined_up.basis]
        return Decision(None, why, look=look)
    field, known = odds.field, None
    if not keys or not rules.affinity.enabled:
        turn = Turn(_WHY[lined_up.basis], field)
    elif (known := memory.find(keys)) is None:
        turn = Turn(Why.NEW_KEY, field, key=keys[0])
    elif (homes := homes_for(known.placed, rules.hot_per_s, now_s)) > 1:
        turn = _spread(known, keys, odds, homes, rules)
    else:
        turn = _at_home(known, keys, odds, now_s, rng, rules)
    field, way = turn.field, rules.choose.way
    if odds.returning and way is not Way.WEIGHTED:  # Whose weights count with it.
        field = _thinned(field, rng)
    seat = field.seats[WAYS[way](field, turn.key, rng)]
    return Decision(seat.replica, turn.why, seat.score, known, turn.move, look)


class Turn(NamedTuple):
    """What is left to choose from, and by which rule."""

    why: Why
    field: Field
    move: Move = Move.STAY
    key: int | None = None
    """Whose dice are thrown; None: the router's."""


def _at_home(
    known: Known,
    keys: Sequence[int],
    odds: Odds,
    now_s: float,
    rng: Random,
    rules: Rules,
) -> Turn:
    """The three tiers. Where nobody else has room, a home that has some keeps the request."""
    field = odds.field
    home, moved_s = known.home, known.placed.moved_s
    at = odds.place(home)
    if at is not None and (len(field.seats) == 1 or _stays(field, at, rng, rules)):
        return Turn(Why.AFFINITY, field.one(at))
    key = keys[min(known.level + 1, len(keys) - 1)]
    if at is not None:
        return Turn(Why.KEY_SPILLED, field.without(at), Move.SPILL, key)
    here = home in odds.line_up.at or home in odds.line_up.busy
    if here and 0.0 <= now_s - moved_s < rules.affinity.dwell_s:
        return Turn(Why.KEY_SPILLED, field, Move.SPILL, key)
    return Turn(Why.KEY_MOVED, field, Move.MOVE, key)


def _stays(field: Field, at: int, rng: Random, rules: Rules) -> bool:
    """Above `stay_above`, or by chance. By own counts, the home's is held against the least. One
    that returns from an ejection keeps its part."""
    score, share = field.scores[at], field.seats[at].share
    if share < 1.0 and rng.random() >= share:
        return False
    if field.by_counts:
        score = (_SLACK + 1.0 / max(field.scores)) / (_SLACK + 1.0 / score)
    if score > rules.affinity.stay_above:
        return True
    return rng.random() < rules.affinity.stay_chance


def _thinned(field: Field, rng: Random) -> Field:
    """Leave those out that return from an ejection, as often as they lack of their share."""
    kept = [i for i, s in enumerate(field.seats) if s.share >= 1.0 or rng.random() < s.share]
    return field.only(kept) if kept else field


def _spread(known: Known, keys: Sequence[int], odds: Odds, homes: int, rules: Rules) -> Turn:
    """A hot key is at home at its first home, and at those that follow it on the ring; of these,
    the ones with room to stay. None has: anywhere."""
    field, level = odds.field, known.level
    stay_above = 0.0 if field.by_counts else rules.affinity.stay_above
    key = keys[level + 1] if level + 1 < len(keys) else None
    if homes >= len(field.seats) and min(field.scores) > stay_above:
        return Turn(Why.HOT_KEY, field, Move.SPREAD, key)
    theirs = neighbours(keys[level], field.seats, homes)
    first = odds.place(known.home)
    if first is not None and first not in theirs:
        theirs = [first, *theirs[:-1]]
    with_room = [i for i in theirs if field.scores[i] > stay_above]
    return Turn(Why.HOT_KEY, field.only(with_room) if with_room else field, Move.SPREAD, key)
