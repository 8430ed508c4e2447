"""What has come between two looks at `/status`: shares, rates, times to first byte. Pure.

Rules (the status page's `history.js` has the same)
* A count that falls has begun anew (its replica left and came back): what it shows is new.
* After a restart, or when other workers answer than before, all is counted from then on.
* A time is estimated within its bucket, as if those in it were spread evenly.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final, NamedTuple

Page = Mapping[str, Any]
Key = tuple[str, int | None]
LATE_S: Final = 0.5
"""A look may come that much later than it was due."""


def key_of(row: Page) -> Key:
    """What tells a replica from others."""
    return row["url"], row["dp_rank"]


class Look(NamedTuple):
    """The page as of a moment of the looker's clock."""

    at_s: float
    page: Page
    rows: Mapping[Key, Page]


class Looks:
    """The looks of the last seconds."""

    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self._looks: deque[Look] = deque()

    def take(self, page: Page, at_s: float) -> "Since":
        """Another look; returns what has come since the oldest that is kept."""
        looks = self._looks
        if looks and not _goes_on(page, looks[-1].page):
            looks.clear()
        looks.append(Look(at_s, page, {key_of(row): row for row in page["replicas"]}))
        while looks[0].at_s < at_s - self._kept_s - LATE_S:
            looks.popleft()
        return Since(looks[0], looks[-1])


def _goes_on(page: Page, before: Page) -> bool:
    same = all(page.get(name) == before.get(name) for name in ("workers", "restarts"))
    return bool(same and page["uptime_s"] >= before["uptime_s"])


class Since:
    """What has come between two looks; nothing, if they are one."""

    def __init__(self, then: Look, now: Look) -> None:
        self.page = now.page
        self.s = now.at_s - then.at_s
        self._then = then
        self._now = now
        self._sent = {key: self._grown(key, "dispatched") for key in now.rows}
        self.sent = sum(self._sent.values())

    @property
    def sent_per_s(self) -> float | None:
        """Requests sent to replicas; None: one look is too few to tell."""
        return self.sent / self.s if self.s > 0.0 else None

    def share(self, key: Key) -> float | None:
        """A replica's share of all that was sent, 0..1; None: nothing was."""
        return self._sent[key] / self.sent if self.sent else None

    def grown(self, *path: str) -> int:
        """How far a count of the page grew, or all that are in it: `grown("queue", "refused")`."""
        now, then = _at(self._now.page, path), _at(self._then.page, path)
        if not isinstance(now, Mapping):
            return _grown(now, then)
        return sum(_grown(count, then.get(name, 0)) for name, count in now.items())

    def first_bytes(self, key: Key) -> list[int]:
        """Answers begun there, by bucket."""
        counts = self._now.rows[key]["first_byte_counts"]
        before = self._then.rows.get(key, {}).get("first_byte_counts") or [0] * len(counts)
        if self.s <= 0.0:
            return [0] * len(counts)
        if any(count < was for count, was in zip(counts, before, strict=True)):
            return list(counts)
        return [count - was for count, was in zip(counts, before, strict=True)]

    def ttft_s(self, key: Key, q: float) -> float | None:
        """The time to first byte that the share `q` of its answers was under."""
        return quantile(self.first_bytes(key), self.page["first_byte_bounds_s"], q)

    def ttft_of_all_s(self, q: float) -> float | None:
        """The same of all replicas."""
        columns = zip(*(self.first_bytes(key) for key in self._now.rows), strict=True)
        return quantile([sum(each) for each in columns], self.page["first_byte_bounds_s"], q)

    def _grown(self, key: Key, name: str) -> int:
        if self.s <= 0.0:
            return 0
        return _grown(self._now.rows[key][name], self._then.rows.get(key, {}).get(name, 0))


def quantile(counts: Sequence[int], bounds: Sequence[float], q: float) -> float | None:
    """The value that the share `q` (0..1) of what was counted is under: None of nothing, infinite
    beyond the last bound."""
    wanted, passed, low = q * sum(counts), 0, 0.0
    if not wanted:
        return None
    for count, high in zip(counts, bounds, strict=False):
        if count and passed + count >= wanted:
            return low + (high - low) * (wanted - passed) / count
        passed, low = passed + count, high
    return inf


def _at(page: Page, path: Sequence[str]) -> Any:
    for name in path:
        page = page[name]
    return page


def _grown(now: int, then: int) -> int:
    return now if now < then else now - then
