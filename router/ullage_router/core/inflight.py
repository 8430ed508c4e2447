"""How many requests this router has sent to each replica and not yet seen the end of.

Rule: a count is held by a `Hold`, and released exactly once, at the last byte, whatever the end.
"""

from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Self


class Hold:
    """One request's place in the count. Releasing twice releases once."""

    __slots__ = ("_count", "_key")

    def __init__(self, count: Counter[str], key: str) -> None:
        self._count: Counter[str] | None = count
        self._key = key
        count[key] += 1

    def release(self) -> None:
        """Give the place back."""
        count, self._count = self._count, None
        if count is None:
            return
        if count[self._key] > 1:
            count[self._key] -= 1
        else:
            del count[self._key]  # So that replicas that have left leave nothing behind.

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class InFlight:
    """The counts, by replica key."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count: Counter[str] = Counter()

    def hold(self, key: str) -> Hold:
        """Count one more, until the hold is released."""
        return Hold(self._count, key)

    @property
    def by_replica(self) -> Mapping[str, int]:
        """A live view; a replica without requests reads 0."""
        return self._count

    def __repr__(self) -> str:
        return f"InFlight({sum(self._count.values())}: {dict(self._count)})"
