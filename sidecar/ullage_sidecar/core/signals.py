"""The three gauges of one engine over time: free KV ratio, running, waiting.

Rule: whoever speaks, the newest step wins. Each step's stats reach only one of vLLM's API
processes, and the others keep their last value for ever.
"""

import msgspec

from ullage_sidecar.core.settings import Settings
from ullage_sidecar.core.window import Window


class Signals(msgspec.Struct, frozen=True, gc=False):
    """Windows over the gauges, and when the newest step in them was made."""

    free: Window
    """Free share of the KV blocks, 0..1, over `window.span_s`."""
    trend: Window
    """The same over `depletion.slope_s`."""
    running: Window
    waiting: Window
    stepped_at_s: float | None = None
    """`None`: no step is known of."""

    @staticmethod
    def of(settings: Settings) -> "Signals":
        """Nothing read yet."""
        return Signals.over(settings.window.span_s, settings.depletion.slope_s)

    def cleared(self) -> "Signals":
        """The same windows, empty: a new incarnation shares no history with the old one."""
        return Signals.over(self.free.span_s, self.trend.span_s)

    @staticmethod
    def over(span_s: float, slope_s: float) -> "Signals":
        """Empty windows. One window does for both where the spans agree."""
        smoothed = Window(span_s)
        trend = smoothed if slope_s == span_s else Window(slope_s)
        return Signals(smoothed, trend, smoothed, smoothed)

    def with_step(
        self, running: int | None, waiting: int | None, kv_usage: float | None, at_s: float
    ) -> "Signals":
        """Take in one step, unless a newer one is known."""
        if self.stepped_at_s is not None and at_s < self.stepped_at_s:
            return self
        ratio = None if kv_usage is None else 1.0 - kv_usage
        free, trend, in_run, queue = self.free, self.trend, self.running, self.waiting
        if ratio != free.value:
            moved = free.push(ratio, at_s)
            trend = moved if trend is free else trend.push(ratio, at_s)
            free = moved
        if running != in_run.value:
            in_run = in_run.push(running, at_s)
        if waiting != queue.value:
            queue = queue.push(waiting, at_s)
        return Signals(free, trend, in_run, queue, at_s)

    def has_work(self) -> bool:
        """Does the newest step tell of running or waiting requests?"""
        return bool(self.running.value) or bool(self.waiting.value)
