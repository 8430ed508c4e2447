"""Blocks that are falling fast count as gone already.

    predicted = clamp(latest + slope · ahead_s)          slope in ratio per second
    effective = min(smoothed, predicted)

`slope` is the least-squares line through the last `slope_s` seconds of the free ratio, in
*seconds*, each reading weighted by how long it held: how often the engine reports does not change
it. Without a slope (fewer than three different readings, or less than a fifth of `slope_s` between
them: three readings 10 ms apart are noise, not a trend) the prediction is the latest value.

The minimum is taken against the *smoothed* ratio: a finished request frees its blocks at once, and
the score must not jump for it. So a rise counts slowly and a fall at once, and `effective` is never
above `smoothed`.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ullage_sidecar.core.window import Window

LEAST_READINGS: Final = 3
LEAST_SHARE: Final = 0.2
FAR_S: Final = 86_400.0


class DepletionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table `[depletion]`."""

    slope_s: Annotated[
        float,
        Meta(gt=0.0, le=3600.0, description="Seconds the slope is taken over; more is calmer."),
    ] = 5.0
    ahead_s: Annotated[
        float,
        Meta(ge=0.0, le=3600.0, description="Seconds to look ahead; more refuses earlier."),
    ] = 3.0


def slope_per_s(free: Window, now_s: float) -> float | None:
    """How fast the free ratio changes, per second; `None` when too little was read to say."""
    read = free.moments(now_s)
    if (
        read is None
        or read.number < LEAST_READINGS
        or read.last_s - read.first_s < LEAST_SHARE * free.span_s
        or read.spread <= 0.0
    ):
        return None
    return read.rise / read.spread


def predicted(latest: float | None, slope: float | None, ahead_s: float) -> float | None:
    """The free ratio `ahead_s` from now, 0..1; no slope: as it is. Unknown stays `None`."""
    if latest is None:
        return None
    return min(1.0, max(0.0, latest + (slope or 0.0) * ahead_s))


def effective(smoothed: float, ahead: float) -> float:
    """The free ratio to score by: the prediction where it is worse than the smoothed one."""
    return min(smoothed, ahead)


def exhaustion_s(latest: float | None, slope: float | None) -> float | None:
    """Seconds until no block is free; `None`: they do not fall, or last for more than a day."""
    if latest is None or slope is None or slope >= 0.0 or latest > -slope * FAR_S:
        return None
    return max(0.0, latest) / -slope
