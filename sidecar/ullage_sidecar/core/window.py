"""A signal over the last few seconds, averaged by elapsed time.

    mean(now) = Σ value_i · seconds_i / Σ seconds_i        over (now - span, now]

A reading holds until the next one differs, so the signal is a step function and its mean is an
integral: reporting 1 or 1000 times a second gives the same answer, and a long silence means that
the last value still stands. A stretch whose value is unknown (`None`) carries no weight.

Stretches shorter than span / 50 are merged into slots: a window holds at most some 100 of them
however fast the engine steps. A slot is the time-weighted centroid of its stretches, (when read,
value): centroids of points on a line lie on that line, so a trend survives the merging.

A mean or a trend costs the same however many slots there are. The older ones carry the sum of all
that follow them (`tails`), the younger ones have one sum, and none is ever taken off a sum: what
leaves the window is in front. Before the older ones have all left, the younger join them.
"""

from bisect import bisect_right
from itertools import accumulate
from operator import attrgetter
from typing import Final

import msgspec

from ullage_sidecar.core.moments import Moments, joined

SLOTS: Final = 50
JOIN_SHARE: Final = 0.25
"""Of the span: with so little of the older ones left, a pause could outlast them."""


class Slot(msgspec.Struct, frozen=True, gc=False):
    """One stretch of the past, or several short ones merged."""

    start_s: float
    end_s: float
    mean: float
    read_s: float
    """When its values were read: the beginnings of its stretches, averaged like `mean`."""


class Window(msgspec.Struct, frozen=True, gc=False):
    """One signal over the last `span_s` seconds. Unknown is `None` throughout, never 0."""

    span_s: float
    old: tuple[Slot, ...] = ()
    """The past, oldest first; the first may have left the window already."""
    tails: tuple[Moments, ...] = ()
    """Of each old slot and all old ones behind it."""
    young: tuple[Slot, ...] = ()
    """What followed the old ones."""
    young_sum: Moments | None = None
    filling: Slot | None = None
    """The youngest slot, as long as it is too short to be put beside the others."""
    value: float | None = None
    """The latest reading, raw: it holds until another comes."""
    at_s: float | None = None
    """Since when it holds. `None`: nothing was ever read."""

    def push(self, value: float | None, at_s: float) -> "Window":
        """Take in one reading. An older one than the latest changes nothing."""
        span_s, latest, since_s = self.span_s, self.value, self.at_s
        if since_s is None:
            return Window(span_s, value=value, at_s=at_s)
        if at_s < since_s or value == latest:
            return self
        old, tails, young, young_sum = self.old, self.tails, self.young, self.young_sum
        filling = self.filling
        if latest is not None and at_s > since_s:
            if filling is None:
                filling = Slot(since_s, at_s, latest, since_s)
            elif filling.end_s == since_s and at_s - filling.start_s <= span_s / SLOTS:
                start_s, mean, read_s = filling.start_s, filling.mean, filling.read_s
                share = (at_s - since_s) / (at_s - start_s)
                mean += share * (latest - mean)
                filling = Slot(start_s, at_s, mean, read_s + share * (since_s - read_s))
            else:
                old, tails, young, young_sum = self._with_slot(filling, at_s - span_s)
                filling = Slot(since_s, at_s, latest, since_s)
        return Window(span_s, old, tails, young, young_sum, filling, value, at_s)

    def _with_slot(
        self, slot: Slot, edge_s: float
    ) -> tuple[tuple[Slot, ...], tuple[Moments, ...], tuple[Slot, ...], Moments | None]:
        """The past with one slot more, and without what ended before `edge_s`."""
        first = _first_after(edge_s, self.old)
        old, young = self.old[first:], (*self.young, slot)
        if old and old[-1].end_s > edge_s + JOIN_SHARE * self.span_s:
            new = _moments(slot, edge_s)
            total = new if self.young_sum is None else joined(self.young_sum, new)
            return old, self.tails[first:], young, total
        old = (*old, *young[_first_after(edge_s, young) :])
        backwards = [_moments(each, each.start_s) for each in reversed(old)]
        tails = tuple(accumulate(backwards, lambda behind, each: joined(each, behind)))[::-1]
        return old, tails, (), None

    def mean(self, now_s: float) -> float | None:
        """Average by time; `None` when the latest value is unknown."""
        held_s, area = 0.0, 0.0
        for part in self._parts(now_s):
            held_s += part.held_s
            area += part.held_s * part.value
        return area / held_s if held_s > 0.0 else self.value

    def moments(self, now_s: float) -> Moments | None:
        """What a trend can be told from; `None` when the latest value is unknown."""
        total = None
        for part in self._parts(now_s):
            total = part if total is None else joined(total, part)
        return total

    def quantile(self, q: float, now_s: float) -> float | None:
        """The least value that the signal did not exceed for a share `q` (0..1) of the time."""
        parts = sorted((each.value, each.held_s) for each in self._each(now_s))
        left_s = q * sum(held_s for _, held_s in parts)
        for value, held_s in parts:
            left_s -= held_s
            if left_s <= 0.0 and held_s > 0.0:
                return value
        return parts[-1][0] if left_s > 0.0 else self.value

    def _parts(self, now_s: float) -> list[Moments]:
        """What lies within the span, in a few sums, oldest first.

        The latest value comes last, however young. Nothing, when it is unknown.
        """
        if self.value is None or self.at_s is None:
            return []
        now_s = max(now_s, self.at_s)
        edge_s = now_s - self.span_s
        held = _moments(Slot(self.at_s, now_s, self.value, self.at_s), edge_s)
        if self.at_s <= edge_s:
            return [held]
        parts: list[Moments] = []
        first = _first_after(edge_s, self.old)
        if first < len(self.old):
            parts.append(_moments(self.old[first], edge_s))
            parts += self.tails[first + 1 : first + 2]
            if self.young_sum is not None:
                parts.append(self.young_sum)
        else:
            parts += [_moments(slot, edge_s) for slot in self.young if slot.end_s > edge_s]
        if self.filling is not None and self.filling.end_s > edge_s:
            parts.append(_moments(self.filling, edge_s))
        parts.append(held)
        return parts

    def _each(self, now_s: float) -> list[Moments]:
        """The same, each slot by itself."""
        parts = self._parts(now_s)
        if not parts:
            return []
        edge_s = max(now_s, self.at_s or 0.0) - self.span_s
        past = [*self.old, *self.young, *([self.filling] if self.filling else [])]
        return [*(_moments(slot, edge_s) for slot in past if slot.end_s > edge_s), parts[-1]]


_end_s = attrgetter("end_s")


def _first_after(edge_s: float, slots: tuple[Slot, ...]) -> int:
    """The first slot that reaches beyond `edge_s`."""
    if not slots or slots[0].end_s > edge_s:
        return 0
    return bisect_right(slots, edge_s, key=_end_s)


def _moments(slot: Slot, edge_s: float) -> Moments:
    """Of what lies behind `edge_s` of it."""
    start_s, read_s = slot.start_s, slot.read_s
    if start_s < edge_s:
        start_s, read_s = edge_s, max(read_s, edge_s)
    return Moments(slot.end_s - start_s, slot.mean, read_s, 0.0, 0.0, 1, read_s, read_s)
