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
from collections.abc import Iterable, Sequence
from typing import Final

from ullage_router.core.fleet import Replica

_MOST_BITS: Final = 4096
"""Incarnations of replicas; with one more, all is forgotten: it has taken days."""
_MOST_NEW: Final = 10
_FIRST, _LAST = 2, 8


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
        self.given = 0
        """How many bits have been given: with another one, what `bits` said may be old."""

    def __len__(self) -> int:
        return len(self._holders)

    def found(self, keys: Sequence[int]) -> list[tuple[int, int]]:
        """Who has some of it: the bits of replicas, and the index of the longest key that they
        have; that of the longest key comes last."""
        seen, rows, holders_of = 0, [], self._holders.get
        for level in range(len(keys) - 1, -1, -1):
            holders = holders_of(keys[level])
            if holders is not None and (new := holders & ~seen):
                seen |= new
                rows.append((new, level))
        return rows[::-1]

    def bits(self, replicas: Iterable[Replica]) -> list[int]:
        """The bit of each; 0: it was sent nothing since it started. Good while `given` stays."""
        return [self._known_bit(replica) for replica in replicas]

    def _known_bit(self, replica: Replica) -> int:
        place = self._places.get(replica.key)
        if place is None or self._boot_ids[place] not in (None, replica.boot_id):
            return 0
        return 1 << place

    def keep(self, keys: Sequence[int], replica: Replica) -> None:
        """A request with these keys goes there."""
        bit, holders = self._bit_of(replica), self._holders
        if len(keys) > _MOST_NEW:
            keys = (*keys[:_FIRST], *keys[-_LAST:])
        for key in keys:
            holders[key] = holders.get(key, 0) | bit
            holders.move_to_end(key)
        while len(holders) > self.max_keys:
            holders.popitem(last=False)

    def _bit_of(self, replica: Replica) -> int:
        if bit := self._known_bit(replica):
            self._boot_ids[self._places[replica.key]] = replica.boot_id
            return bit
        if len(self._boot_ids) >= _MOST_BITS:
            self._holders.clear()
            self._places.clear()
            self._boot_ids.clear()
        self.given += 1
        place = self._places[replica.key] = len(self._boot_ids)
        self._boot_ids.append(replica.boot_id)
        return 1 << place
