"""Which replica knows what a request begins with (mission R4), and keys that are hot (R5).

A request has a chain of cache keys, each for a longer beginning (see `ask`). The longest that is
known says where it goes, by the score of that key's replica, its home:

    above stay_above           stay
    down to choose.floor       stay with stay_chance, else it is balanced, and the key stays
    below, or busy             it is balanced, and the key moves along, unless it moved less than
                               dwell_s ago: then it stays
    gone                       the key moves at once (dead, draining, warming, ejected, removed)

A key that comes more than `hot_per_s` times a second would pin one replica: it has as many homes as
its rate needs, ⌈rate / hot_per_s⌉: the first, and those that follow the key on the ring of seeds.
In a chain only the hot level gives way: what is behind it has a home of its own.

A conversation's turns each begin with the one before. So what is behind a *leaf* (the whole of an
earlier request) goes on with its home and its dwell; what is behind any other key (a system prompt
that many share) is new, and at home where it was sent.

Rates are counts that decay with `RATE_S`: a key seen r times a second stands at r · RATE_S, with a
relative error of √(1 / (2 r RATE_S)).
"""

from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum, auto
from itertools import islice
from math import ceil, exp, inf
from typing import Final

import msgspec

RATE_S: Final = 5.0
_MOST_HOMES: Final = 1e6
_MOST_NEW: Final = 10
_FIRST, _LAST = 2, 8
_SHARED: Final = 2
_LOOKED_AT: Final = 4096
"""Keys looked at for hot ones. A hot key is among those used last."""


class Placed(msgspec.Struct, gc=False):
    """What is remembered of one key."""

    home: str
    """Key of the replica it goes to."""
    moved_s: float
    """When it last moved there from another."""
    leaf: bool
    """Is it the whole of an earlier request?"""
    count: float = 1.0
    """Its requests, decayed, as of `at_s`."""
    at_s: float = 0.0

    def counted(self, now_s: float) -> float:
        """Its requests, decayed until now. A clock set back ages nothing."""
        age_s = now_s - self.at_s
        return self.count * exp(-age_s / RATE_S) if age_s > 0.0 else self.count

    def rate_per_s(self, now_s: float) -> float:
        """How often it comes."""
        return self.counted(now_s) / RATE_S


class Known(msgspec.Struct, frozen=True, gc=False):
    """The longest key of a request that has a home."""

    level: int
    """Its index among the request's keys."""
    placed: Placed
    home: str
    """Where it was at home then."""


class Move(Enum):
    """What a decision means for the known key."""

    STAY = auto()
    MOVE = auto()
    SPILL = auto()
    """The request goes elsewhere, the key does not."""
    SPREAD = auto()
    """The key is hot: the request goes to one of its homes."""


STAY, MOVE, SPILL, SPREAD = Move
"""On each decision's path: to look a member up in its enum takes as long as the rest of a line."""


class Memory:
    """The homes of keys: at most `max_keys`, those unused for longest forgotten first."""

    def __init__(self, max_keys: int) -> None:
        self.max_keys = max_keys
        self._placed: OrderedDict[int, Placed] = OrderedDict()

    def __len__(self) -> int:
        return len(self._placed)

    def find(self, keys: Sequence[int]) -> Known | None:
        """The longest key that has a home."""
        level, placed_at = len(keys), self._placed.get
        for key in reversed(keys):
            level -= 1
            placed = placed_at(key)
            if placed is not None:
                return Known(level, placed, placed.home)
        return None

    def keep(
        self, keys: Sequence[int], known: Known | None, chosen: str, move: Move, now_s: float
    ) -> None:
        """Remember that a request with these keys goes to the replica `chosen`."""
        home, moved_s, behind = chosen, -inf, 0
        if known is not None:
            behind = known.level + 1
            placed = known.placed
            if move is MOVE and placed.home != chosen:
                placed.home = chosen
                placed.moved_s = now_s
            if placed.leaf and move is not SPREAD:
                home, moved_s = placed.home, placed.moved_s
            self._count(keys[: known.level + 1], now_s)
        new = keys[behind:]
        if len(new) > _MOST_NEW:
            new = (*new[:_FIRST], *new[-_LAST:])
        table = self._placed
        for key in new:
            table[key] = Placed(home, moved_s, leaf=False, at_s=now_s)
        if new:
            table[new[-1]].leaf = True
            while len(table) > self.max_keys:
                table.popitem(last=False)

    def hot(self, hot_per_s: float, now_s: float) -> list[tuple[int, Placed]]:
        """The keys that need several homes now, those that come most often first.

        Of the latest `_LOOKED_AT` in use: a look at all would hold up requests.
        """
        latest = islice(reversed(self._placed.items()), _LOOKED_AT)
        hot = [each for each in latest if homes_for(each[1], hot_per_s, now_s) > 1]
        return sorted(hot, key=lambda each: -each[1].counted(now_s))

    def _count(self, keys: Sequence[int], now_s: float) -> None:
        """One more of the known key, and of the shortest two: those that many may share."""
        table = self._placed
        for key in keys if len(keys) <= _SHARED + 1 else (*keys[:_SHARED], keys[-1]):
            placed = table.get(key)
            if placed is not None:
                placed.count = placed.counted(now_s) + 1.0
                placed.at_s = now_s
                table.move_to_end(key)


def homes_for(placed: Placed, hot_per_s: float, now_s: float) -> int:
    """How many replicas a key needs: one, unless it is hot."""
    one = hot_per_s * RATE_S
    if placed.count <= one:  # It has decayed since, if anything.
        return 1
    return max(1, ceil(min(placed.counted(now_s) / one, _MOST_HOMES)))
