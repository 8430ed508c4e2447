"""How fast requests end, and so when it is worth while to come back.

    level          decays with exp(-dt / TIME_CONSTANT_S), and rises by 1 with each end
    rate           = level / (TIME_CONSTANT_S · (1 - exp(-seen_s / TIME_CONSTANT_S))), per second
    retry_after_s  = ceil((ahead + 1) / rate), within 1..30

The divisor is the weight of the time that was seen, so that a rate of 100/s reads 100/s from the
first seconds on and not only after some time constants. `seen_s` begins with the first end and is
taken for 1 s at least: two ends in one millisecond are no rate of 1,000/s.

Nothing has ended for 30 s, or ever: 30 s. That is what the formula tends to as the rate falls, and
as much as can be said: whatever holds the replicas takes longer than that. Then the next end begins
anew, since an idle night says nothing about how fast a full fleet drains.

A clock set back begins anew too.
"""

from math import ceil, exp, inf
from typing import Final

TIME_CONSTANT_S: Final = 10.0
LEAST_S: Final = 1
"""Two looks at the sidecars: before that, nothing is known that was not known."""
MOST_S: Final = 30
"""Clients that are sent away for longer go elsewhere, or come back all the same."""
_LEAST_SEEN_S: Final = 1.0


class DrainRate:
    """The rate of what this router saw end."""

    __slots__ = ("_began_s", "_last_s", "_level")

    def __init__(self) -> None:
        self._level = 0.0
        self._began_s = -inf
        self._last_s = -inf

    def ended(self, now_s: float) -> None:
        """A request has ended, and so made room."""
        silent_s = now_s - self._last_s
        if 0.0 <= silent_s <= MOST_S:
            self._level = self._level * exp(-silent_s / TIME_CONSTANT_S) + 1.0
        else:
            self._level, self._began_s = 1.0, now_s
        self._last_s = now_s

    def per_s(self, now_s: float) -> float:
        """Ends per second; 0.0: nothing has ended for so long that nothing is known."""
        silent_s = now_s - self._last_s
        if not 0.0 <= silent_s <= MOST_S:
            return 0.0
        seen_s = max(_LEAST_SEEN_S, now_s - self._began_s)
        level = self._level * exp(-silent_s / TIME_CONSTANT_S)
        return level / (TIME_CONSTANT_S * (1.0 - exp(-seen_s / TIME_CONSTANT_S)))


def retry_after_s(ahead: int, per_s: float) -> int:
    """When one with `ahead` others before it may hope for room, in whole seconds: 1..30."""
    if per_s * MOST_S <= ahead + 1:
        return MOST_S
    return max(LEAST_S, ceil((ahead + 1) / per_s))
