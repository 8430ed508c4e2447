"""Large requests begin one at a time: one each time the event loop comes round.

To read a body of 220 KB for its keys and to send it on takes half a millisecond. Of a hundred that
are whole at the same moment, each lets pass what has become ready meanwhile: small requests, chunks
of answers, `/healthz`. Else all of it would wait until the hundredth is on its way.
"""

import asyncio
from typing import Final, Protocol

LARGE_BYTES: Final = 65_536
"""Of a body: below that, to begin takes less than a turn of the loop does."""


class Starter(Protocol):
    """A request that has yet to begin."""

    def begin(self) -> None:
        """Its turn has come."""


class Turns:
    """Those that wait for their turn, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._line: dict[Starter, None] = {}
        self._called = False

    def wait(self, starter: Starter) -> None:
        """Let it begin behind those that wait already, one to a turn."""
        self._line[starter] = None
        self._call()

    def leave(self, starter: Starter) -> None:
        """It will not begin, if it has not yet."""
        self._line.pop(starter, None)

    def _call(self) -> None:
        if not self._called:
            self._called = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._called = False
        if not self._line:
            return
        starter = next(iter(self._line))
        del self._line[starter]
        if self._line:
            self._call()
        starter.begin()
