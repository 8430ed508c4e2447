"""Which replica gets a request, and by which rule.

    line up (who may be?)  ►  odds (worth what, now?)  ►  affinity (who knows it?)  ►  a way

Nobody above the floor and nobody silent: refuse. Never push a request into a full replica.

Everything here only looks. What a decision entails (a key has a home, a request is in flight) is
for the router to do.
"""

from collections.abc import Collection, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Final

import msgspec

from ullage_router.core.affinity import MOVE, SPILL, SPREAD, STAY, Known, Memory, Move, homes_for
from ullage_router.core.decision import Decision, Look, Need, Why
from ullage_router.core.fleet import Fleet
from ullage_router.core.inflight import InFlight
from ullage_router.core.least_wait import least_wait
from ullage_router.core.lineup import Basis, line_up
from ullage_router.core.odds import Odds
from ullage_router.core.policy import Way
from ullage_router.core.prefixes import Prefixes
from ullage_router.core.rules import Rules
from ullage_router.core.selection import WAYS, Field, neighbours

_LEAST_WAIT: Final = Way.LEAST_WAIT
_SLACK: Final = 8
"""By own counts, a home keeps its key until it has clearly more requests than others."""
_WHY: Final = {basis: Why(basis) for basis in Basis}
_AFFINITY, _BY_CHANCE = Why.AFFINITY, Why.AFFINITY_BY_CHANCE
_NEW_KEY, _HOT_KEY = Why.NEW_KEY, Why.HOT_KEY
"""The usual ones: to look a member up in its enum takes as long as the rest of a line."""
_NOTHING: Final[Mapping[str, float]] = MappingProxyType({})


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
    return choose(Odds(candidates, load), need, now_s, rng, rules, memory, Prefixes(1))


def choose(
    odds: Odds,
    need: Need,
    now_s: float,
    rng: Random,
    rules: Rules,
    memory: Memory,
    prefixes: Prefixes,
) -> Decision:
    """Choose one of those that `odds` has, for such a request."""
    lined_up, field, keys = odds.line_up, odds.field, need.keys
    full = dict(odds.full) if odds.full else _NOTHING
    if odds.seats and rules.choose.way is _LEAST_WAIT:
        return least_wait(odds, need, rng, rules, prefixes, full)
    look = Look(lined_up.seats, lined_up.exponent, tuple(odds.scores), full)
    if not odds.seats:
        why = Why.FULL if lined_up.seats else _WHY[lined_up.basis]
        return Decision(None, why, look=look)
    known = None
    if not keys or not rules.affinity.enabled:
        turn = Turn(_WHY[lined_up.basis], field)
    elif (known := memory.find(keys)) is None:
        turn = Turn(_NEW_KEY, field, STAY, keys[0])
    elif (homes := homes_for(known.placed, rules.hot_per_s, now_s)) > 1:
        turn = _spread(known, keys, odds, homes, rules)
    else:
        at = odds.place(known.home)
        if at is not None and (stays := _stays(field, at, rng, rules)) is not None:
            seat = field.seats[at]
            return Decision(seat.replica, stays, seat.score, known, STAY, look)
        turn = _elsewhere(known, keys, odds, at, now_s, rules)
    field, way = turn.field, rules.choose.way
    if odds.returning and way is not Way.WEIGHTED:  # Whose weights count with it.
        field = _thinned(field, rng)
    seat = field.seats[WAYS[way](field, turn.key, rng)]
    return Decision(seat.replica, turn.why, seat.score, known, turn.move, look)


class Turn(msgspec.Struct, frozen=True, gc=False):
    """What is left to choose from, and by which rule."""

    why: Why
    field: Field
    move: Move = STAY
    key: int | None = None
    """Whose dice are thrown; None: the router's."""


def _elsewhere(
    known: Known,
    keys: Sequence[int],
    odds: Odds,
    at: int | None,
    now_s: float,
    rules: Rules,
) -> Turn:
    """The lower tiers: the key's home, at that place in the field or out of it, does not keep the
    request."""
    field, home, moved_s = odds.field, known.home, known.placed.moved_s
    key = keys[min(known.level + 1, len(keys) - 1)]
    if at is not None:
        return Turn(Why.KEY_SPILLED, field.without(at), SPILL, key)
    here = home in odds.line_up.at or home in odds.line_up.busy
    if here and 0.0 <= now_s - moved_s < rules.affinity.dwell_s:
        return Turn(Why.KEY_SPILLED, field, SPILL, key)
    return Turn(Why.KEY_MOVED, field, MOVE, key)


def _stays(field: Field, at: int, rng: Random, rules: Rules) -> Why | None:
    """By which tier the key's home, at that place, keeps the request; None: it does not. Above
    `stay_above` it does, or by chance; and where nobody else has room. By own counts, its score is
    held against the least. One that returns from an ejection keeps its part."""
    if len(field.seats) == 1:
        return _AFFINITY
    score, share = field.scores[at], field.seats[at].share
    if share < 1.0 and rng.random() >= share:
        return None
    if field.by_counts:
        score = (_SLACK + 1.0 / max(field.scores)) / (_SLACK + 1.0 / score)
    if score > rules.affinity.stay_above:
        return _AFFINITY
    return _BY_CHANCE if rng.random() < rules.affinity.stay_chance else None


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
        return Turn(_HOT_KEY, field, SPREAD, key)
    theirs = neighbours(keys[level], field.seats, homes)
    first = odds.place(known.home)
    if first is not None and first not in theirs:
        theirs = [first, *theirs[:-1]]
    with_room = [i for i in theirs if field.scores[i] > stay_above]
    return Turn(_HOT_KEY, field.only(with_room) if with_room else field, SPREAD, key)
