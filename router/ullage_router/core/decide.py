"""Which replica gets a request, and by which rule.

    line up (who may be?)  ►  odds (worth what, now?)  ►  affinity (who knows it?)  ►  a way

Nobody above the floor and nobody silent: refuse. Never push a request into a full replica.

Everything here only looks. What a decision entails (a key has a home, a request is in flight) is
for the router to do.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from math import inf
from random import Random
from types import MappingProxyType
from typing import Final

import msgspec

from ullage_router.core.affinity import MOVE, SPILL, SPREAD, STAY, Known, Memory, Move, homes_for
from ullage_router.core.fleet import Fleet, Replica
from ullage_router.core.inflight import InFlight
from ullage_router.core.lineup import Basis, Seat, line_up
from ullage_router.core.odds import SOME, Odds
from ullage_router.core.policy import Way
from ullage_router.core.prefixes import Found, Prefixes
from ullage_router.core.rules import Rules
from ullage_router.core.selection import WAYS, Field, neighbours, ranks_of, share_of
from ullage_router.core.waits import LEAST_UNCACHED, WORK, drawn, waits_of, weights_of
from ullage_shared.snapshot import RequestClass

_LEAST_WAIT: Final = Way.LEAST_WAIT
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
    AFFINITY_BY_CHANCE = "affinity_by_chance"
    """Its key's replica has little room, and keeps this request by `affinity.stay_chance`."""
    NEW_KEY = "new_key"
    """Nobody is known to know how it begins: chosen as the key prefers."""
    WAIT = "wait"
    """Nobody knows how it begins, or only who has more to do: where the least wait is expected."""
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
_NO_KEY: Final = _WHY | {Basis.SCORE: Why.WAIT}
_AFFINITY, _BY_CHANCE = Why.AFFINITY, Why.AFFINITY_BY_CHANCE
_NEW_KEY, _HOT_KEY = Why.NEW_KEY, Why.HOT_KEY
"""The usual ones: to look a member up in its enum takes as long as the rest of a line."""
_NOTHING: Final[Mapping[str, float]] = MappingProxyType({})


class Need(msgspec.Struct, frozen=True, gc=False):
    """What choosing needs to know of a request."""

    model: str | None = None
    """None: it names none, or all replicas serve the same."""
    size: RequestClass = RequestClass.MIXED
    keys: tuple[int, ...] = ()
    """Its cache keys, of 64 bits, the shortest beginning first."""
    prompt_tokens: int = 0
    """Estimated."""
    shares: tuple[float, ...] = ()
    """How much of the prompt each key covers, 0..1."""


class Waits(msgspec.Struct, frozen=True, gc=False):
    """What was expected of those that were looked at."""

    places: Sequence[int]
    """Which of those that could be chosen, in the order of the seats."""
    waits_s: Sequence[float]
    uncached: Sequence[int]
    """Tokens of the prompt that were to be computed there."""
    weights: Sequence[float]
    tokens: int
    """Of the prompt."""

    def by_place(self) -> dict[int, tuple[float, int, float]]:
        """Wait, uncached tokens and weight of each that was looked at."""
        told = zip(self.waits_s, self.uncached, self.weights, strict=True)
        return dict(zip(self.places, told, strict=True))


class Look(msgspec.Struct, frozen=True, gc=False):
    """What was looked at, so that it can be told."""

    seats: tuple[Seat, ...]
    """The candidates."""
    exponent: float
    scores: tuple[float, ...]
    """What each that could be chosen was worth by then, in the order of the seats."""
    full: Mapping[str, float]
    """The same of those whom this router had filled, by key."""
    waits: Waits | None = None
    """By `least_wait`: what was expected of them."""


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Where a request goes, and why. `replica` None: it is refused."""

    replica: Replica | None
    why: Why
    score: float | None = None
    """The replica's capacity score at that moment; None: it was silent."""
    known: Known | None = None
    """The longest of its keys that had a home."""
    move: Move = STAY
    look: Look | None = None
    uncached: int = 0
    """About how many tokens of the prompt the replica has yet to compute."""
    ttft_s: float | None = None
    """By `least_wait`: in how many seconds its first token is expected."""


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
        return _least_wait(odds, need, rng, rules, prefixes, full)
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


def _least_wait(
    odds: Odds,
    need: Need,
    rng: Random,
    rules: Rules,
    prefixes: Prefixes,
    full: Mapping[str, float],
) -> Decision:
    """By when the first token is expected: who knows the beginning has less to compute."""
    seats, tokens = odds.seats, max(need.prompt_tokens, LEAST_UNCACHED)
    expected = odds.expected()
    found = prefixes.found(need.keys) if rules.affinity.enabled else []
    key = _new_in(need.keys, found) if rules.affinity.enabled else None
    thrown = rng.random() if key is None else share_of(key)
    places = expected.places(found, prefixes, thrown)
    uncached = expected.uncached(places, tokens, found, need.shares, prefixes)
    late = odds.late(places, uncached, rules.choose.full_beyond_s)
    if len(late) == len(places) < len(seats):
        begin = int(rng.random() * len(seats))
        places = [(begin + i) % len(seats) for i in range(min(SOME, len(seats)))]
        uncached = expected.uncached(places, tokens, found, need.shares, prefixes)
        late = odds.late(places, uncached, rules.choose.full_beyond_s)
    rows = expected.rows(places)
    waits = waits_of(rows, uncached)
    judged: Sequence[float] = waits
    if late or odds.returning:
        judged = _of_those_with_room(waits, places, late, odds, rng)
        if min(judged) == inf:
            told = Waits(places, waits, uncached, [0.0] * len(waits), tokens)
            look = Look(odds.line_up.seats, odds.line_up.exponent, tuple(odds.scores), full, told)
            return Decision(None, Why.FULL, look=look)
    weights = weights_of(judged, rules.choose.temperature * expected.typical.step_s)
    taken = drawn(weights, rng) if key is None else _drawn_by(key, places, weights, seats)
    seat, left, row = seats[places[taken]], uncached[taken], rows[taken]
    ttft_s = row.begins_s + left * row.token_s / WORK
    told = Waits(places, waits, uncached, weights, tokens)
    look = Look(odds.line_up.seats, odds.line_up.exponent, tuple(odds.scores), full, told)
    why = _AFFINITY if left < tokens else _NO_KEY[odds.line_up.basis]
    return Decision(seat.replica, why, seat.score, look=look, uncached=left, ttft_s=ttft_s)


def _new_in(keys: Sequence[int], found: Sequence[Found]) -> int | None:
    """The shortest beginning that nobody is known to know. Its dice are thrown, so that routers
    that expect about the same send it to the same replica. None: somebody knows all of it; a key
    that comes often would have all routers take the same one of those."""
    level = found[-1].level + 1 if found else 0
    return keys[level] if level < len(keys) else None


def _drawn_by(
    key: int, places: Sequence[int], weights: Sequence[float], seats: Sequence[Seat]
) -> int:
    """The same draw, with the key's dice: which of the places, counted from 0. Most have no chance,
    and are not hashed."""
    near = [at for at, weight in enumerate(weights) if weight]
    if len(near) == 1:
        return near[0]
    seeds = [seats[places[at]].seed for at in near]
    ranks = ranks_of(key, seeds, [weights[at] for at in near])
    return near[ranks.index(max(ranks))]


def _of_those_with_room(
    waits: Sequence[float],
    places: Sequence[int],
    late: set[int],
    odds: Odds,
    rng: Random,
) -> Sequence[float]:
    """Infinite for those that are full; and for those that return from an ejection, as often as
    they lack of their share: one that had nothing to do meanwhile would be by far the least."""
    seats, returning = odds.seats, odds.returning
    passed = {p for p in places if p in returning and rng.random() >= seats[p].share}
    for out in (late | passed, late):
        judged = [inf if p in out else wait for p, wait in zip(places, waits, strict=True)]
        if min(judged) < inf:
            break
    return judged


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
