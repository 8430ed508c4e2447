"""When the table may change: all that sidecars push within one turn comes into it together.

After a change of the fleet the next request judges its replicas anew, which takes longer than all
else about it. So changes come in turns: the first at once, and those that arrive within `EVERY_S`
of it together, at the end of that. Among more than 200 replicas a turn lasts `PER_REPLICA_S` for
each of them, so that judging never takes more than a few hundredths of the time.
"""

import asyncio
from typing import Final

EVERY_S: Final = 0.02
PER_REPLICA_S: Final = 0.0001


class Pace:
    """The turns of one router."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    async def turn(self, replicas: int) -> None:
        """Wait until the table of so many replicas may be changed; not at all, if nobody has
        changed it for a while. Who is cancelled meanwhile has changed nothing."""
        if not self._open.is_set():
            await self._open.wait()
        if self._open.is_set():  # The first of those who waited together begins the next turn.
            self._open.clear()
            lasts_s = max(EVERY_S, PER_REPLICA_S * replicas)
            asyncio.get_running_loop().call_later(lasts_s, self._open.set)
