"""Who has computed what requests begin with: which replicas each cache key was sent to.

A request has a chain of cache keys, each for a longer beginning (see `ask`). A replica that was
sent a request has, or will have, in its KV cache what each of the request's keys stands for; the
longest such key of a later request says how much of it the replica need not compute.

Rules
* It is a guess: nobody tells when a replica's cache has dropped something. At worst a prompt is
  computed that was taken for known.
* A replica that has started anew (another `boot_id`) has an empty cache.
* At most `max_keys` are remembered; those unused for longest are forgotten first.

Each key has a bit for each replica: what all replicas share costs no more than what one has.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ullage_router.core.fleet import Replica

_MOST_BITS: Final = 4096
"""Incarnations of replicas; with one more, all is forgotten: it has taken days."""
_MOST_NEW: Final = 10
_FIRST, _LAST = 2, 8


class Found(NamedTuple):
    """Some that have as much of a prompt."""

    holders: int
    """The bits of the replicas."""
    level: int
    """The index of the longest key that they have."""


class Prefixes:
    """The memory of one router."""

    def __init__(self, max_keys: int) -> None:
        self.max_keys = max_keys
        self._holders: OrderedDict[int, int] = OrderedDict()
        """For each key, a bit for each replica that it was sent to."""
        self._places: dict[str, int] = {}
        """Which bit is that of each replica's present incarnation, by key."""
        self._boot_ids: list[str | None] = []
        """The incarnation, by bit."""
        self._whose: list[str] = []
        """The replica's key, by bit."""
        self._gone = 0
        """The bits of incarnations that were followed by another, or have left."""
        self.given = 0
        """How many bits have been given: with another one, what `bit_of` said may be old."""

    def __len__(self) -> int:
        return len(self._holders)

    def found(self, keys: Sequence[int]) -> list[Found]:
        """Who has some of it, those with the longest key last."""
        seen, rows, holders_of = 0, [], self._holders.get
        for level in range(len(keys) - 1, -1, -1):
            holders = holders_of(keys[level])
            if holders is not None and (new := holders & ~seen):
                seen |= new
                rows.append(Found(new, level))
        return rows[::-1]

    def there(self, holders: int) -> int:
        """How many of the replicas that have these bits are there."""
        return (holders & ~self._gone).bit_count()

    def some_of(self, holders: int, most: int, thrown: float) -> Iterator[str]:
        """The keys of up to `most` replicas that have these bits and are there, from any one on.
        `thrown`: 0 to 1 says which."""
        holders &= ~self._gone
        begin = int(thrown * len(self._whose))
        behind = holders >> begin << begin
        for part in (behind, holders ^ behind):
            left = part
            while left and most > 0:
                first = left & -left
                yield self._whose[first.bit_length() - 1]
                left ^= first
                most -= 1

    def bit_of(self, replica: Replica) -> int:
        """Its bit; 0: it was sent nothing since it started. Good while `given` stays."""
        place = self._places.get(replica.key)
        if place is None or self._boot_ids[place] not in (None, replica.boot_id):
            return 0
        return 1 << place

    def left(self, key: str) -> None:
        """A replica is no longer in the fleet. What it knows stays, should it come back."""
        place = self._places.get(key)
        if place is not None:
            self._gone |= 1 << place

    def keep(self, keys: Sequence[int], replica: Replica) -> None:
        """A request with these keys goes there."""
        bit, holders = self._bit_for(replica), self._holders
        if len(keys) > _MOST_NEW:
            keys = (*keys[:_FIRST], *keys[-_LAST:])
        for key in keys:
            holders[key] = holders.get(key, 0) | bit
            holders.move_to_end(key)
        while len(holders) > self.max_keys:
            holders.popitem(last=False)

    def _bit_for(self, replica: Replica) -> int:
        if bit := self.bit_of(replica):
            self._boot_ids[self._places[replica.key]] = replica.boot_id
            if self._gone & bit:
                self._gone ^= bit
            return bit
        self.left(replica.key)
        if len(self._boot_ids) >= _MOST_BITS:
            self._holders.clear()
            self._places.clear()
            self._boot_ids.clear()
            self._whose.clear()
            self._gone = 0
        self.given += 1
        place = self._places[replica.key] = len(self._boot_ids)
        self._boot_ids.append(replica.boot_id)
        self._whose.append(replica.key)
        return 1 << place
