"""How a replica's score has moved from snapshot to snapshot (mission R6).

A snapshot is up to one interval old, and what was just sent shows up later still: a replica whose
score keeps falling has less headroom than it says. So it is weighed by where it is heading.

    factor = (score - fall_per_s · AHEAD_S) / score        at least LEAST, at most 1

`fall_per_s` is the mean over the run of falls. One fall is noise: the factor is 1 until FALLS in a
row have come to LEAST_FALL together. A score that stays or rises ends the run at once, and so does
a snapshot that has been the latest for HELD_S; an unknown score, or a new incarnation, begins anew.

Snapshots may be pushed fifty times a second. One that comes sooner than STEP_S after the last step
is none itself: else noise would make falls, and break them, as often as it is looked at.
"""

from dataclasses import dataclass
from typing import Final

FALLS: Final = 2
LEAST_FALL: Final = 0.02
AHEAD_S: Final = 1.0
"""Two intervals: the age of the snapshot, and the time until the next shows what is sent now."""
LEAST: Final = 0.5
STEP_S: Final = 0.25
"""Half an interval, so that one asked for a little early counts."""
HELD_S: Final = 2.0
"""Of an aggregator's snapshots, which come every second, one may be seen several times."""


@dataclass(frozen=True, slots=True)
class Trend:
    """The run of falls up to the latest step."""

    falls: int = 0
    from_score: float | None = None
    """Where the run began: the latest step's score, while there is none."""
    from_s: float = 0.0
    to_score: float | None = None
    to_s: float = 0.0


FLAT: Final = Trend()


def follow(trend: Trend, score: float | None, now_s: float) -> Trend:
    """The next snapshot has come. A clock set back begins anew."""
    last = trend.to_score
    if last is None or score is None or now_s <= trend.to_s:
        return Trend(0, score, now_s, score, now_s)
    if now_s - trend.to_s < STEP_S:
        return trend
    if score >= last:
        return Trend(0, score, now_s, score, now_s)
    return Trend(trend.falls + 1, trend.from_score, trend.from_s, score, now_s)


def held(trend: Trend, now_s: float) -> Trend:
    """The same snapshot has been seen once more: that is no step, but a run must not stand still
    for long."""
    if 0.0 <= now_s - trend.to_s <= HELD_S:
        return trend
    return Trend(0, trend.to_score, now_s, trend.to_score, now_s)


def factor(trend: Trend) -> float:
    """What the latest score is multiplied with: `LEAST`..1."""
    before, now = trend.from_score, trend.to_score
    if trend.falls < FALLS or before is None or not now or before - now < LEAST_FALL:
        return 1.0
    fall_per_s = (before - now) / (trend.to_s - trend.from_s)
    return max(LEAST, 1.0 - fall_per_s * AHEAD_S / now)
