"""The default way of choosing: by when the first token is expected (see `waits`, `expected`).

Whoever knows the beginning of the prompt has less to compute. Those that are full for it are left
out; where all that were looked at are, others are looked at; where those are, too, it is refused.
"""

from collections.abc import Mapping, Sequence
from math import inf
from random import Random
from typing import Final

from ullage_router.core.decision import Decision, Look, Need, Waits, Why
from ullage_router.core.lineup import Basis, Seat
from ullage_router.core.odds import SOME, Odds
from ullage_router.core.prefixes import Found, Prefixes
from ullage_router.core.rules import Rules
from ullage_router.core.selection import ranks_of, share_of
from ullage_router.core.waits import LEAST_UNCACHED, WORK, drawn, waits_of, weights_of

_AFFINITY: Final = Why.AFFINITY
_NO_KEY: Final = {basis: Why(basis) for basis in Basis} | {Basis.SCORE: Why.WAIT}


def least_wait(
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
