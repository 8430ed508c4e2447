"""Ways of choosing one among those that may be chosen.

`weighted` is the mission's (R2): a draw at odds of

    weight = score ** exponent

The draw is random because the alternative, always the highest score, floods the emptiest replica
for as long as the picture lasts, then the next. The square favours headroom, no more.

A request with a cache key draws with dice that the key itself throws (weighted rendezvous hashing:
the replica with the largest `weight / -ln hash(key, replica)`): the odds are the same, and every
router and worker that sees about the same weights chooses the same, without talking. Among more
than `MOST_AT_ONCE`, first one of about √n parts of the ring of seeds is chosen so, by what its
weights came to when who may be chosen last changed, then one in it: about the same odds, for a
small part of the hashing.

Between two snapshots a burst would fall unevenly, as dice do. So a drawn replica that this router
has sent anything since its snapshot is compared with others drawn, `LOOKS` in all, and the one with
the least of it for its weight is taken. Where there is nothing, the first one stands, and the odds
are exact. (Two choices are known to even a burst out, and to be sound on stale pictures:
Mitzenmacher. Four keep 64 over 8 equal replicas within 3 of each other.)
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from heapq import nlargest
from itertools import accumulate, pairwise, repeat
from math import inf, log, log1p
from random import Random
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from ullage_router.core.inflight import InFlight
from ullage_router.core.lineup import Seat, by_seed
from ullage_router.core.policy import Way

LOOKS: Final = 4
MOST_AT_ONCE: Final = 16
_64_BITS: Final = 2**64 - 1
_LN_ALL: Final = 64 * log(2) + 1e-9
"""Of as many hashes as there are: so that no `-ln` of a hash's part of them is 0."""
_TRIES: Final = 8


class Parts(msgspec.Struct, frozen=True, gc=False):
    """The ring of seeds in about √n parts."""

    bounds: Sequence[int]
    """Where each begins, and where the last one ends."""
    weights: list[float]

    def add(self, place: int, weight: float) -> None:
        """The weight of the one at that place has grown by so much."""
        self.weights[bisect_right(self.bounds, place) - 1] += weight


class Field(msgspec.Struct, frozen=True, gc=False):
    """Those that may be chosen, in the order of their seeds; never empty."""

    seats: Sequence[Seat]
    scores: Sequence[float]
    """What each is worth by now."""
    weights: Sequence[float]
    load: InFlight
    by_counts: bool
    """No sidecar speaks for any: the scores come from requests in flight."""
    top: float
    """No weight is above it."""
    parts: Parts | None = None
    """Of more than `MOST_AT_ONCE`."""

    def only(self, places: Sequence[int]) -> "Field":
        """The field without the others."""
        return Field(
            [self.seats[i] for i in places],
            [self.scores[i] for i in places],
            [self.weights[i] for i in places],
            self.load,
            self.by_counts,
            self.top,
        )

    def without(self, place: int) -> "Field":
        """The field without one."""
        seats, scores, weights = [*self.seats], [*self.scores], [*self.weights]
        del seats[place], scores[place], weights[place]
        return Field(seats, scores, weights, self.load, self.by_counts, self.top)


Dice = Callable[[], float]
"""A number from 0 to 1, another one at each throw."""
Choose = Callable[[Field, int | None, Random], int]
"""Which of the field: its place. The key is the request's cache key, if it has one to place."""


def weighted(field: Field, key: int | None, rng: Random) -> int:
    """At odds of the weights; in a burst, evenly."""
    if len(field.seats) == 1:
        return 0
    first = _drawn(field, rng.random) if key is None else _first_of(field, key)
    if not _unseen(field, first):
        return first
    return _least_ahead(field, first, rng.random if key is None else _dice_of(key))


def highest(field: Field, key: int | None, rng: Random) -> int:
    """The highest score. (An earlier rule of the mission; it floods.)"""
    best = max(field.scores)
    return _one_of([i for i, score in enumerate(field.scores) if score == best], field, key, rng)


def two_choices(field: Field, key: int | None, rng: Random) -> int:
    """Of two, the one with fewer requests from this router."""
    if len(field.seats) == 1:
        return 0
    pair: Sequence[int]
    if key is None:
        pair = rng.sample(range(len(field.seats)), 2)
    else:
        chances = _chances(key, field.seats)
        pair = nlargest(2, range(len(chances)), key=chances.__getitem__)
    count = field.load.by_replica
    return min(pair, key=lambda i: count.get(field.seats[i].replica.key, 0))


def least_in_flight(field: Field, key: int | None, rng: Random) -> int:
    """The fewest requests from this router."""
    counts = [field.load.by_replica.get(seat.replica.key, 0) for seat in field.seats]
    least = min(counts)
    return _one_of([i for i, count in enumerate(counts) if count == least], field, key, rng)


def round_robin(field: Field, key: int | None, rng: Random) -> int:  # noqa: ARG001
    """The next on the ring of seeds, whoever may be chosen just now."""
    return _place_after(field.load.last_seed, field.seats)


WAYS: Final[Mapping[Way, Choose]] = {
    Way.WEIGHTED: weighted,
    Way.HIGHEST: highest,
    Way.TWO_CHOICES: two_choices,
    Way.LEAST_IN_FLIGHT: least_in_flight,
    Way.ROUND_ROBIN: round_robin,
}


def neighbours(key: int, seats: Sequence[Seat], count: int) -> list[int]:
    """The places of those that follow a key on the ring of seeds."""
    begin = _place_after(key, seats)
    return [(begin + i) % len(seats) for i in range(min(count, len(seats)))]


def _place_after(seed: int, seats: Sequence[Seat]) -> int:
    return bisect_right(seats, seed, key=by_seed) % len(seats)


def _drawn(field: Field, dice: Dice) -> int:
    """One at odds of the weights: whoever is met at random is taken as often as its weight is of
    the `top`. Where that takes too long, all weights are added up."""
    weights, top = field.weights, field.top
    size = len(weights)
    for _ in range(_TRIES):
        thrown = dice() * size
        place = int(thrown)
        if (thrown - place) * top < weights[place]:  # One throw tells both.
            return place
    up_to = [*accumulate(weights)]
    if not up_to[-1]:  # All have vanished: they are powers of what may be very small.
        return _largest(field.scores)
    # Rounding may leave a crumb: then the last one.
    return min(bisect_right(up_to, dice() * up_to[-1]), size - 1)


def _dice_of(key: int) -> Dice:
    """Dice that throw the same for the same key everywhere (Knuth's numbers, of MMIX)."""

    def throw() -> float:
        nonlocal key
        key = (key * 6364136223846793005 + 1442695040888963407) & _64_BITS
        return share_of(key)

    return throw


def _first_of(field: Field, key: int) -> int:
    """Where a key would go, if nothing were sent."""
    seats, weights, begin = field.seats, field.weights, 0
    if len(seats) > MOST_AT_ONCE:
        parts = field.parts or parts_of(seats, weights)
        ranks = ranks_of(key, range(len(parts.weights)), parts.weights)
        part = ranks.index(max(ranks))
        if ranks[part]:
            begin, end = parts.bounds[part], parts.bounds[part + 1]
            seats, weights = seats[begin:end], weights[begin:end]
    ranks = ranks_of(key, [seat.seed for seat in seats], weights)
    first = ranks.index(max(ranks))
    if not ranks[first]:  # All weights have vanished.
        first = _largest(field.scores[begin : begin + len(seats)])
    return begin + first


def parts_of(seats: Sequence[Seat], weights: Sequence[float]) -> Parts:
    """Part the ring of seeds."""
    bits = len(seats).bit_length() // 2
    begins = (part << (64 - bits) for part in range(1 << bits))
    bounds = [*(bisect_left(seats, begin, key=by_seed) for begin in begins), len(seats)]
    return Parts(bounds, [sum(weights[begin:end]) for begin, end in pairwise(bounds)])


def ranks_of(key: int, seeds: Sequence[int], weights: Sequence[float]) -> list[float]:
    """Weighted rendezvous hashing: the largest wins. Of replicas: by their seeds."""
    logs = map(log1p, map(xxh3_64_intdigest, repeat(key.to_bytes(8, "little")), seeds))
    return [w / (_LN_ALL - ln) for w, ln in zip(weights, logs, strict=True)]


def share_of(key: int) -> float:
    """A number from 0 to 1, 1 left out, that the key alone makes."""
    return (key >> 11) * 2.0**-53


def _chances(key: int, seats: Sequence[Seat]) -> list[int]:
    """For each replica, a number that only the key and the replica make."""
    word = key.to_bytes(8, "little")
    return [xxh3_64_intdigest(word, seat.seed) for seat in seats]


def _unseen(field: Field, place: int) -> float:
    """The headroom that this router's requests have taken there since the snapshot, if that is
    not what they are weighed by anyway."""
    return 0.0 if field.by_counts else field.seats[place].base - field.scores[place]


def _least_ahead(field: Field, first: int, dice: Dice) -> int:
    """Of the first one and others drawn, the one with the least unseen for its weight; the first of
    equals."""
    seats, scores, weights = field.seats, field.scores, field.weights
    best, least, place = first, inf, first
    for look in range(LOOKS):
        if look:
            place = _drawn(field, dice)
        weight = weights[place]
        if weight and (ahead := (seats[place].base - scores[place]) / weight) < least:
            best, least = place, ahead
    return best


def _largest(numbers: Sequence[float]) -> int:
    return max(range(len(numbers)), key=numbers.__getitem__)


def _one_of(equals: Sequence[int], field: Field, key: int | None, rng: Random) -> int:
    if len(equals) == 1:
        return equals[0]
    if key is None:
        return equals[int(rng.random() * len(equals))]
    return equals[_largest(_chances(key, [field.seats[i] for i in equals]))]
