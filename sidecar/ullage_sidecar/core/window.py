"""A signal over the last few seconds, averaged by elapsed time.

    mean(now) = Σ value_i · seconds_i / Σ seconds_i        over (now - span, now]

A reading holds until the next one differs, so the signal is a step function and its mean is an
integral: reporting 1 or 1000 times a second gives the same answer, and a long silence means that
the last value still stands. A stretch whose value is unknown (`None`) carries no weight.

Stretches shorter than span / 100 are merged into slots: a window holds at most some 200 of them
however fast the engine steps. A slot is the time-weighted centroid of its stretches, (when read,
value): centroids of points on a line lie on that line, so a trend survives the merging.
"""

from typing import Final, NamedTuple

SLOTS: Final = 100


class Slot(NamedTuple):
    """One stretch of the past, or several short ones merged."""

    start_s: float
    end_s: float
    mean: float
    read_s: float
    """When its values were read: the beginnings of its stretches, averaged like `mean`."""


class Window(NamedTuple):
    """One signal over the last `span_s` seconds. Unknown is `None` throughout, never 0."""

    span_s: float
    slots: tuple[Slot, ...] = ()
    """The past, oldest first; the first may have left the window already."""
    filling: Slot | None = None
    """The youngest slot, as long as it is too short to be put beside the others."""
    value: float | None = None
    """The latest reading, raw: it holds until another comes."""
    at_s: float | None = None
    """Since when it holds. `None`: nothing was ever read."""

    def push(self, value: float | None, at_s: float) -> "Window":
        """Take in one reading. An older one than the latest changes nothing."""
        since_s, slots, filling = self.at_s, self.slots, self.filling
        if since_s is not None and (at_s < since_s or value == self.value):
            return self
        if since_s is not None and self.value is not None and at_s > since_s:
            ended = Slot(since_s, at_s, self.value, since_s)
            joined = _joined(filling, ended, self.span_s / SLOTS)
            if filling is not None and joined is None:
                slots = (*slots[_first_after(at_s - self.span_s, slots) :], filling)
            filling = joined or ended
        return Window(self.span_s, slots, filling, value, at_s)

    def mean(self, now_s: float) -> float | None:
        """Average by time; `None` when the latest value is unknown."""
        total_s, area = 0.0, 0.0
        for start_s, end_s, value, _ in self.within(now_s):
            total_s += end_s - start_s
            area += (end_s - start_s) * value
        return area / total_s if total_s > 0.0 else self.value

    def quantile(self, q: float, now_s: float) -> float | None:
        """The least value that the signal did not exceed for a share `q` (0..1) of the time."""
        slots = sorted(self.within(now_s), key=lambda slot: slot.mean)
        left_s = q * sum(slot.end_s - slot.start_s for slot in slots)
        for slot in slots:
            left_s -= slot.end_s - slot.start_s
            if left_s <= 0.0 and slot.end_s > slot.start_s:
                return slot.mean
        return slots[-1].mean if left_s > 0.0 else self.value

    def within(self, now_s: float) -> tuple[Slot, ...]:
        """What lies within the span, oldest first; the latest value comes last, however young.

        Nothing, when the latest value is unknown.
        """
        if self.value is None or self.at_s is None:
            return ()
        now_s = max(now_s, self.at_s)
        edge_s = now_s - self.span_s
        held_from_s = max(self.at_s, edge_s)
        held = Slot(held_from_s, now_s, self.value, held_from_s)
        past = self.slots if self.filling is None else (*self.slots, self.filling)
        first = _first_after(edge_s, past)
        if first == len(past):
            return (held,)
        oldest = past[first]
        clipped = oldest._replace(
            start_s=max(oldest.start_s, edge_s), read_s=max(oldest.read_s, edge_s)
        )
        return (clipped, *past[first + 1 :], held)


def _first_after(edge_s: float, slots: tuple[Slot, ...]) -> int:
    """The first slot that reaches beyond `edge_s`."""
    first = 0
    while first < len(slots) and slots[first].end_s <= edge_s:
        first += 1
    return first


def _joined(slot: Slot | None, ended: Slot, limit_s: float) -> Slot | None:
    """One slot for both, if they touch and are no longer than `limit_s` together."""
    if slot is None or slot.end_s != ended.start_s or ended.end_s - slot.start_s > limit_s:
        return None
    share = (ended.end_s - ended.start_s) / (ended.end_s - slot.start_s)
    return Slot(
        slot.start_s,
        ended.end_s,
        slot.mean + share * (ended.mean - slot.mean),
        slot.read_s + share * (ended.read_s - slot.read_s),
    )
