"""What the candidates of a line-up are worth by now, kept up with what this router has sent them.

    unseen = headroom that this router's requests take now - what they took by the snapshot
    score  = the snapshot's - unseen                    it must exceed the floor, or its queue moves
    weight = (the snapshot's · trend - unseen) ** exponent · share

A falling one is weighed down, not refused: its trend is no part of its score. Requests that have
ended since the snapshot count for nothing: others may have come from elsewhere. Where no sidecar
speaks for any, score = 1 / (1 + requests in flight), and there is no floor.

Rule: a change of one count costs one candidate's arithmetic, whatever the size of the fleet.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import cycle, islice
from operator import attrgetter
from typing import Final

from ullage_router.core.expected import Expected
from ullage_router.core.inflight import InFlight
from ullage_router.core.lineup import Basis, LineUp, Seat, by_seed
from ullage_router.core.selection import MOST_AT_ONCE, Field, Parts, parts_of
from ullage_router.core.waits import LEAST_UNCACHED, late

SOME: Final = 64
"""Of a large fleet, so many are looked at where a few were full."""
_NONE: Final[set[int]] = set()
_base: Final = attrgetter("base")


class Odds:
    """The candidates that may be chosen now."""

    __slots__ = (
        "_below",
        "_best",
        "_by_counts",
        "_expected",
        "_floor",
        "_load",
        "_place",
        "_seen",
        "_turn",
        "field",
        "full",
        "line_up",
        "returning",
        "scores",
        "seats",
        "weights",
    )

    def __init__(self, line_up: LineUp, load: InFlight) -> None:
        self.line_up = line_up
        self._load = load
        self._by_counts = line_up.basis is Basis.OWN_COUNTS
        self._floor = line_up.floor if line_up.basis is Basis.SCORE else 0.0
        self._best = 1.0 if self._by_counts else max(map(_base, line_up.seats), default=1.0)
        self._turn = 0
        self._judge_all()

    _best: float
    """No candidate's score is above it."""
    _seen: int
    _expected: Expected | None
    seats: list[Seat]
    """Those whose score is above the floor, or whose queue moves, in the order of their seeds."""
    scores: list[float]
    weights: list[float]
    field: Field
    """The same, for those who choose."""
    full: dict[str, float]
    """The scores of the others, by key: this router has filled them."""
    returning: set[int]
    """Of `seats`, the places of those that return from an ejection."""
    _below: set[str]
    """Of `seats`, the keys of those whose score is not above the floor."""

    def follow(self, line_up: LineUp, heard: Iterable[str]) -> None:
        """The same candidates as before, of which these were heard (see `follow`)."""
        self.catch_up()
        self.line_up = line_up
        for key in heard:
            at = line_up.at.get(key)
            if at is None:
                continue
            seat, place = line_up.seats[at], self._place.get(key)
            if place is None:
                self._look_at(key)
                continue
            self.seats[place] = seat
            if self._expected is not None:
                self._expected.heard(place)
            before, parts = self.weights[place], self.field.parts
            if self._weigh(place, key) and parts is not None:
                parts.add(place, self.weights[place] - before)
            self._rise(seat)
        self.returning = {i for i in self.returning if self.seats[i].share < 1.0}

    def catch_up(self) -> None:
        """Take in what has been sent, and what has ended, since the last look."""
        load = self._load
        new = load.changed - self._seen
        if not new:
            return
        self._seen = load.changed
        if new > len(load.changes) or new > len(self.line_up.seats):
            self._judge_all()
            return
        for key in {*islice(reversed(load.changes), new)}:
            place = self._place.get(key)
            if place is None:
                self._look_at(key)
            else:
                self._weigh(place, key)

    def _weigh(self, place: int, key: str) -> bool:
        """What one that may be chosen is worth by now. Returns whether it still may."""
        seat = self.seats[place]
        score = self._score(seat, key)
        if not self._has_room(seat, score):
            self.full[key] = score
            del self.seats[place], self.scores[place], self.weights[place]
            self._seated()
            return False
        self.scores[place] = score
        self.weights[place] = weight_of(seat, score, self.line_up.exponent)
        (self._below.add if score <= self._floor else self._below.discard)(key)
        return True

    def _look_at(self, key: str) -> None:
        """Has one that was full room again?"""
        at = self.line_up.at.get(key)
        if at is None:
            return
        seat = self.line_up.seats[at]
        score = self._score(seat, key)
        if not self._has_room(seat, score):
            self.full[key] = score
            return
        del self.full[key]
        self._rise(seat)
        place = bisect_left(self.seats, seat.seed, key=by_seed)
        self.seats.insert(place, seat)
        self.scores.insert(place, score)
        self.weights.insert(place, weight_of(seat, score, self.line_up.exponent))
        self._seated()

    def place(self, key: str) -> int | None:
        """Where a replica is among those that may be chosen. None: it has no room, or is out."""
        return self._place.get(key)

    def expected(self) -> Expected:
        """What waits are to be expected of them, up to now."""
        if self._expected is None:
            self._expected = Expected(self.seats, self._place, self._load)
        self._expected.catch_up()
        return self._expected

    def late(self, places: Sequence[int], uncached: Sequence[int], beyond_s: float) -> set[int]:
        """Which of these are full for a request that has so many tokens to compute there: not above
        the floor, and their queue takes longer than `beyond_s`."""
        below = self._below
        if not below:
            return _NONE
        expected = self.expected()
        if not expected.typical.measured:  # Then nobody knows how long a queue takes.
            beyond_s = -1.0
        rows = expected.rows(places)
        return {
            place
            for place, row, tokens in zip(places, rows, uncached, strict=True)
            if self.seats[place].replica.key in below and late(row, tokens, beyond_s)
        }

    def breathing(self, beyond_s: float) -> int:
        """How many have headroom; of those below the floor, up to `SOME` are looked at, others each
        time."""
        some = [*islice(cycle(self._below), self._turn, self._turn + min(SOME, len(self._below)))]
        self._turn = (self._turn + len(some)) % max(1, len(self._below))
        places = [self._place[key] for key in some]
        late = self.late(places, [LEAST_UNCACHED] * len(places), beyond_s)
        return len(self.seats) - len(self._below) + len(places) - len(late)

    def _rise(self, seat: Seat) -> None:
        """No weight may be above the top."""
        if seat.base > self._best and not self._by_counts:
            self._best = seat.base
            self._show(self.field.parts)

    def _has_room(self, seat: Seat, score: float) -> bool:
        return score > self._floor or seat.queue_moves

    def _judge_all(self) -> None:
        self.seats, self.scores, self.weights, self.full = [], [], [], {}
        for key, at in self.line_up.at.items():
            seat = self.line_up.seats[at]
            score = self._score(seat, key)
            if self._has_room(seat, score):
                self.seats.append(seat)
                self.scores.append(score)
                self.weights.append(weight_of(seat, score, self.line_up.exponent))
            else:
                self.full[key] = score
        self._seen = self._load.changed
        self._seated()

    def _seated(self) -> None:
        """Who may be chosen has changed."""
        self._expected = None
        self._place = {seat.replica.key: place for place, seat in enumerate(self.seats)}
        scored = zip(self.seats, self.scores, strict=True)
        self._below = {seat.replica.key for seat, score in scored if score <= self._floor}
        self.returning = {i for i, seat in enumerate(self.seats) if seat.share < 1.0}
        many = len(self.seats) > MOST_AT_ONCE
        self._show(parts_of(self.seats, self.weights) if many else None)

    def _show(self, parts: Parts | None) -> None:
        top = self._best**self.line_up.exponent
        self.field = Field(
            self.seats, self.scores, self.weights, self._load, self._by_counts, top, parts
        )

    def _score(self, seat: Seat, key: str) -> float:
        if self._by_counts:
            return 1.0 / (1.0 + self._load.by_replica.get(key, 0))
        unseen = self._load.taken.get(key, 0.0) - seat.then
        score = seat.base if unseen <= 0.0 else seat.base - unseen
        return score if score > 0.0 else 0.0


def weight_of(seat: Seat, score: float, exponent: float) -> float:
    """At what odds a candidate of this score is drawn."""
    if seat.trend < 1.0:
        score = max(0.0, score - seat.base * (1.0 - seat.trend))
    return float(score**exponent) * seat.share
