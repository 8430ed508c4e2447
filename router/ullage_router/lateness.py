"""How late the event loop is: is the router itself what holds requests up?

Everything here runs on one thread. What is due while another piece of work runs waits for its end;
so does a request, and each piece of an answer. A timer that rings `EVERY_S` after it was set, and
the rest of what it took, says how long such a wait is now.
"""

import asyncio
from time import perf_counter
from typing import Final

from ullage_router.tally import Histogram

EVERY_S: Final = 0.1
BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Timers are rounded to a millisecond: below 0.0025 there is nothing to see."""


async def watch_lateness(late_s: Histogram) -> None:
    """For ever: observe how late the loop is. One that rings early is not late."""
    while True:
        due_s = perf_counter() + EVERY_S
        await asyncio.sleep(EVERY_S)
        late_s.observe(max(0.0, perf_counter() - due_s))
