"""Asks ejected replicas whether they are back: `GET /health`, and any answer below 500 will do.

Rules
* Nothing here is on the path of a request, and nothing a replica does ends the loop.
* One probe per replica at a time, side by side: one that hangs delays nobody.
* Never more than `MOST` at once, in the order in which they became due.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import aiohttp

from ullage_shared.log import line

_log: Final = logging.getLogger("ullage.router")
MOST: Final = 32
_TIMEOUT_S: Final = 2.0


class Prober:
    """The probes of one router."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        due: Callable[[], Mapping[str, str]],
        result: Callable[[str, bool], None],
    ) -> None:
        """`due` gives the keys of the replicas to be asked, with their URLs; `result` takes a key,
        and whether that replica answered. It may have left the fleet by then.
        """
        self._session = session
        self._due = due
        self._result = result
        self._waiting: dict[str, str] = {}
        """Due, and not yet asked, in the order in which they became due."""
        self._asking: dict[str, asyncio.Task[bool]] = {}

    async def run(self, look_s: float = 0.25, timeout_s: float = _TIMEOUT_S) -> None:
        """For ever: ask who is due, within `look_s`. Whoever cancels it ends the probes too."""
        try:
            while True:
                self._look(timeout_s)
                await asyncio.sleep(look_s)
        finally:
            asking = list(self._asking.values())
            for probe in asking:
                probe.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    def _look(self, timeout_s: float) -> None:
        due = self._due()
        in_turn = dict.fromkeys([*self._waiting, *due])
        self._waiting = {k: due[k] for k in in_turn if k in due and k not in self._asking}
        for key in list(self._waiting)[: MOST - len(self._asking)]:
            url = self._waiting.pop(key)
            probe = asyncio.get_running_loop().create_task(self._ask(url, timeout_s))
            self._asking[key] = probe
            probe.add_done_callback(partial(self._asked, key))

    async def _ask(self, url: str, timeout_s: float) -> bool:
        try:
            async with self._session.get(
                f"{url}/health",
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as answer:
                return answer.status < 500  # Whatever it says beyond that is not read.
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return False

    def _asked(self, key: str, probe: asyncio.Task[bool]) -> None:
        del self._asking[key]
        if probe.cancelled():
            return
        error = probe.exception()
        if error is not None:  # Which only a fault of ours raises. It shall cost no more than this.
            _log.error(line("probe_broken", replica=key, why=repr(error)), exc_info=error)
        self._result(key, error is None and probe.result())
