"""What a router expects of those that it looks at for one request (see `waits`).

A small fleet is looked at whole. In one of more than `MOST_AT_ONCE`, a request looks at those that
know most of its prompt, and at a stretch of the ring of seeds that begins anywhere, or where its
key says: others at random, so that a decision costs the same in a fleet of any size, and routers
that see the same picture do not send all that comes to the replica that is idlest.

Rule: a change of one replica's requests costs one row, and only once it is looked at.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from ullage_router.core.inflight import InFlight
from ullage_router.core.lineup import Seat
from ullage_router.core.prefixes import Found, Prefixes
from ullage_router.core.waits import LEAST_UNCACHED, Row, row_of, typical_of

MOST_AT_ONCE: Final = 16
"""Also how long a stretch is. The least of 16 drawn at random is among the best tenth of a large
fleet in 4 of 5 draws."""
MOST_KNOWING: Final = 8
ENOUGH: Final = 4
"""Where so many of those that know as much are expected in the stretch, no more are looked for."""


class Expected:
    """The rows of those that may be chosen, kept up with what this router sends them."""

    __slots__ = (
        "_bits",
        "_given",
        "_guesses",
        "_load",
        "_place",
        "_ring",
        "_rows",
        "_seats",
        "_seen",
        "_words",
        "typical",
    )

    def __init__(self, seats: Sequence[Seat], place: Mapping[str, int], load: InFlight) -> None:
        self._seats = seats
        self._place = place
        self._load = load
        self._seen = load.changed
        self.typical = typical_of([seat.pace for seat in seats[:MOST_AT_ONCE]])
        """Seeds are hashes, so the first ones are any. It is looked for anew after every
        `MOST_AT_ONCE` snapshots: it moves slowly, and all rows are made with it."""
        self._words = 0
        self._guesses = self._any_unknown()
        """Is a typical speed taken for somebody's? Then it is looked for after each snapshot."""
        self._rows: list[Row | None] = [None] * len(seats)
        """None: to be made."""
        self._ring = [*range(len(seats)), *range(MOST_AT_ONCE)]
        """Places, and the first ones once more."""
        self._bits: list[int] = []
        self._given = -1

    def places(self, found: Sequence[Found], prefixes: Prefixes, thrown: float) -> Sequence[int]:
        """Whom to look at for a request of whose prompt this is known. `thrown`: 0 to 1."""
        size = len(self._seats)
        if size <= MOST_AT_ONCE:
            return range(size)
        begin = int(thrown * size)
        places = self._ring[begin : begin + MOST_AT_ONCE]
        knowing = 0
        for holders, _ in reversed(found):
            if prefixes.there(holders) * MOST_AT_ONCE > ENOUGH * size:
                break
            for key in prefixes.some_of(holders, MOST_KNOWING - knowing, thrown):
                knowing += 1
                place = self._place.get(key)
                if place is not None and (place - begin) % size >= MOST_AT_ONCE:
                    places.append(place)
        return places

    def rows(self, places: Sequence[int]) -> list[Row]:
        """What is expected of each."""
        rows = self._rows
        return [rows[place] or self._row(place) for place in places]

    def _row(self, place: int) -> Row:
        seat = self._seats[place]
        row = row_of(seat.replica.key, seat.pace, self.typical, self._load)
        self._rows[place] = row
        return row

    def uncached(
        self,
        places: Sequence[int],
        tokens: int,
        found: Sequence[Found],
        shares: Sequence[float],
        prefixes: Prefixes,
    ) -> list[int]:
        """Of a prompt with so many tokens, about how many each has yet to compute."""
        left = [tokens] * len(places)
        if found:
            bits = self._bits_of(places, prefixes)
            for holders, level in found:
                rest = max(tokens - int(tokens * shares[level]), LEAST_UNCACHED)
                left = [rest if holders & bit else n for bit, n in zip(bits, left, strict=True)]
        return left

    def heard(self, place: int) -> None:
        """Another snapshot of that one has come, perhaps of another incarnation."""
        self._words += 1
        if self._words >= MOST_AT_ONCE or self._guesses:
            self._words = 0
            self.typical = typical_of([seat.pace for seat in self._seats[:MOST_AT_ONCE]])
            self._guesses = self._any_unknown()
            self._rows[:] = [None] * len(self._seats)
        self._rows[place] = None
        if self._bits:
            self._bits[place] = -1

    def _any_unknown(self) -> bool:
        return any(seat.pace.token_s is None for seat in self._seats[:MOST_AT_ONCE])

    def catch_up(self) -> None:
        """Take in what has been sent, begun and ended since the last look."""
        load = self._load
        new = load.changed - self._seen
        if not new:
            return
        self._seen = load.changed
        if new > len(load.changes) or new > len(self._seats):
            self._rows[:] = [None] * len(self._seats)
            return
        for key in islice(reversed(load.changes), new):
            place = self._place.get(key)
            if place is not None:
                self._rows[place] = None

    def _bits_of(self, places: Sequence[int], prefixes: Prefixes) -> list[int]:
        if self._given != prefixes.given:
            self._given = prefixes.given
            self._bits = [-1] * len(self._seats)
        known = self._bits
        bits = [known[place] for place in places]
        if -1 in bits:
            for at, place in enumerate(places):
                if bits[at] < 0:
                    bits[at] = known[place] = prefixes.bit_of(self._seats[place].replica)
        return bits
