"""How much of the machine others used while a benchmark ran: `/proc/stat` less our own processes.

What they use, they take from proxies, client and backends: tails grow first.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from processes import TICK_S

NOT_BUSY: Final = (3, 4)
"""The fields of `/proc/stat` that are idle time."""
GUEST: Final = 8
"""From here on fields repeat what others contain."""


class Neighbours:
    """Counts from its making; `ours_s` gives the CPU seconds of all that is ours."""

    def __init__(self, ours_s: Callable[[], float]) -> None:
        self._ours_s = ours_s
        self._began_s = time.monotonic()
        self._others_began_s = self._others_s()

    def share(self) -> float:
        """Of all cores' time since then, 0..1."""
        whole_s = (time.monotonic() - self._began_s) * (os.cpu_count() or 1)
        return max(0.0, (self._others_s() - self._others_began_s) / whole_s)

    def _others_s(self) -> float:
        fields = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        busy = sum(n for at, n in enumerate(fields[:GUEST]) if at not in NOT_BUSY)
        return busy * TICK_S - self._ours_s()
