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
        self._bits: dict[str, int] = {}
        """The bit of each replica's present incarnation, by key."""
        self._replicas: list[tuple[str, str | None]] = []
        """Key and incarnation, by bit."""

    def __len__(self) -> int:
        return len(self._holders)

    def holders(self, keys: Sequence[int]) -> Iterator[tuple[str, str | None, int]]:
        """Each replica that has some of it: its key, its incarnation, the longest key's index."""
        found, holders_of = 0, self._holders.get
        for level in range(len(keys) - 1, -1, -1):
            new = holders_of(keys[level], 0) & ~found
            found |= new
            while new:
                lowest = new & -new
                yield *self._replicas[lowest.bit_length() - 1], level
                new ^= lowest

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
        bit = self._bits.get(replica.key)
        if bit is not None and self._replicas[bit][1] in (None, replica.boot_id):
            self._replicas[bit] = (replica.key, replica.boot_id)
            return 1 << bit
        if len(self._replicas) >= _MOST_BITS:
            self._holders.clear()
            self._bits.clear()
            self._replicas.clear()
        bit = self._bits[replica.key] = len(self._replicas)
        self._replicas.append((replica.key, replica.boot_id))
        return 1 << bit
