"""One level per signal out of its window, so that one request's end does not make the score jump.

`mean` averages by time. `quantile` is for the wary: q = 0.9 takes the load that was not exceeded
for 90 % of the time, and of the free blocks the level that was undercut for only 10 % of it.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from ullage_sidecar.core.window import Window


class Smoothing(StrEnum):
    """How a window becomes one number."""

    MEAN = "mean"
    QUANTILE = "quantile"


class WindowSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table `[window]`."""

    span_s: Annotated[
        float,
        Meta(gt=0.0, le=3600.0, description="Seconds smoothed over; more is calmer, and later."),
    ] = 5.0
    smoothing: Annotated[
        Smoothing, Meta(description="`mean`, or `quantile` of the load over the window.")
    ] = Smoothing.MEAN
    quantile: Annotated[
        float,
        Meta(ge=0.0, le=1.0, description="For `quantile`: 0.9 counts the worse tenth of the time."),
    ] = 0.9


def load(window: Window, settings: WindowSettings, now_s: float) -> float | None:
    """The smoothed level of a signal of which more is worse; `None`: unknown."""
    if settings.smoothing is Smoothing.MEAN:
        return window.mean(now_s)
    return window.quantile(settings.quantile, now_s)


def room(window: Window, settings: WindowSettings, now_s: float) -> float | None:
    """The smoothed level of a signal of which more is better; `None`: unknown."""
    if settings.smoothing is Smoothing.MEAN:
        return window.mean(now_s)
    return window.quantile(1.0 - settings.quantile, now_s)
