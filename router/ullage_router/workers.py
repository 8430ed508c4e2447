"""The processes that share a port: started, started again when one dies, told what to do.

Rules
* A worker that dies is started again at once; one that dies time and again, later and later.
* Where systemd watches the supervisor, the supervisor watches its workers: one that answers no call
  for as long as systemd would wait is ended, and started again.
"""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from ullage_router.aggregate import Families, total
from ullage_router.config import Config
from ullage_router.worker import (
    ALIVE_ORDER,
    MOST_BYTES,
    READY,
    STOP_ORDER,
    Held,
    Place,
    config_order,
)
from ullage_shared.background import in_background
from ullage_shared.log import line

_log: Final = logging.getLogger("ullage.router")
_LASTING_S: Final = 10.0
"""A worker that lived so long has not died in a row with the one before."""
_MOST_DELAY_S: Final = 5.0
_MARGIN_S: Final = 5.0
"""How much longer than `limits.stop_grace_s` a worker may take to stop before it is killed."""
_CALLS: Final = 2
"""So many in a row go unanswered. One may, after a supervisor that was itself stopped."""
_LAST_WORDS_S: Final = 1.0
"""For a worker to say where it hangs: Python does at SIGABRT, given PYTHONFAULTHANDLER."""


class Worker:
    """One process, from its start to its end."""

    def __init__(self, place: Place, process: asyncio.subprocess.Process) -> None:
        self.number = place.number
        self.admin = place.admin
        self.process = process
        self.ready = False
        self.seen: Families = {}
        """Its metrics when it was last asked."""
        self._problem = ""
        self._orders: asyncio.StreamWriter
        self._said: asyncio.StreamReader

    @classmethod
    async def start(cls, place: Place, words: Sequence[str]) -> "Worker":
        """Start the process: this interpreter, this command line. Raises `OSError`."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "ullage_router", *words, "--worker", str(place)),
                stdin=theirs.fileno(),
                pass_fds=place.held.descriptors,
            )
        worker = cls(place, process)
        worker._said, worker._orders = await asyncio.open_connection(sock=ours, limit=MOST_BYTES)
        return worker

    def order(self, order: bytes) -> None:
        """Tell it something, unless it is dead already."""
        if not self._orders.is_closing():
            self._orders.write(order)

    async def begun(self) -> bool:
        """Wait until it serves. False: it will not."""
        with suppress(ConnectionError):  # It died before it had read what it was told.
            said = await self._said.readline()
            self.ready = said == READY
            self._problem = "" if self.ready else said.decode().strip()
        return self.ready

    async def watch(self, hung_after_s: float) -> None:
        """Until its end, or until it has answered no call for so long: then end it."""
        every_s = hung_after_s / _CALLS
        unanswered = 0
        with suppress(ConnectionError):  # It is dying by itself.
            while unanswered < _CALLS:
                self.order(ALIVE_ORDER)
                try:
                    if not await asyncio.wait_for(self._said.readline(), every_s):
                        return
                except TimeoutError:
                    unanswered += 1
                else:
                    unanswered = 0
                    await asyncio.sleep(every_s)
            _log.error(line("worker_hung", worker=self.number, silent_s=hung_after_s))
            await self._put_down()

    async def _put_down(self) -> None:
        with suppress(ProcessLookupError):  # It has ended.
            self.process.send_signal(signal.SIGABRT)
            self.process.send_signal(signal.SIGCONT)  # Stopped, it would hear of nothing.
            await asyncio.sleep(_LAST_WORDS_S)
            self.process.kill()

    async def ended(self) -> str:
        """Wait for its end. Returns how it ended, in words."""
        status = await self.process.wait()
        self._orders.close()
        how = f"status {status}"
        if status < 0:
            named = -status in {*signal.Signals}
            how = signal.Signals(-status).name if named else f"signal {-status}"
        return f"{how}: {self._problem}" if self._problem else how

    @property
    def in_order(self) -> bool:
        """Did it end as it should? One that had not begun has lost nothing."""
        return self.process.returncode == 0 or not self.ready


class Workers:
    """All of them."""

    def __init__(
        self,
        config: Config,
        words: Sequence[str],
        held: Held,
        directory: Path,
        hung_after_s: float | None,
    ) -> None:
        """`words`: the command line. `directory`: for the workers' sockets.

        `hung_after_s`: how long a worker may answer no call; None: for ever.
        """
        self.alive: dict[int, Worker] = {}
        """By number, from 1."""
        self.departed: Families = {}
        """What workers that have ended had counted when they were last asked."""
        self.restarts = 0
        self.config = config
        """What all have, or are about to have."""
        self._words = words
        self._held = held
        self._directory = directory
        self._hung_after_s = hung_after_s
        self._stops = 0
        self._stop = asyncio.Event()
        self._in_order = True
        self._keepers: list[asyncio.Task[None]] = []

    async def start(self, number: int) -> str:
        """Start so many. Returns why none of them serves; nothing if one does."""
        loop = asyncio.get_running_loop()
        first = [loop.create_future() for _ in range(number)]
        self._keepers = [
            in_background(self._keep(index, begun)) for index, begun in enumerate(first, 1)
        ]
        problems = await asyncio.gather(*first)
        return problems[0] if all(problems) else ""

    @property
    def stopping(self) -> bool:
        """Have they been told to stop?"""
        return self._stop.is_set()

    def reload(self, config: Config) -> None:
        """Have all take over a configuration; those that start later have it too."""
        self.config = config
        for worker in self.alive.values():
            worker.order(config_order(config))

    def stop(self) -> None:
        """Have all stop; told again, at once. None is waited for without end."""
        self._stops += 1
        self._stop.set()
        for worker in self.alive.values():
            worker.order(STOP_ORDER)
        grace_s = self.config.limits.stop_grace_s if self._stops == 1 else 0.0
        asyncio.get_running_loop().call_later(grace_s + _MARGIN_S, self._kill)

    async def ended(self) -> bool:
        """Wait until all have been told to stop and have ended. Returns: all in good order?"""
        await asyncio.gather(*self._keepers)
        return self._in_order

    def _kill(self) -> None:
        for worker in self.alive.values():
            _log.error(line("worker_killed", worker=worker.number, why="it does not stop"))
            worker.process.kill()

    async def _keep(self, number: int, begun: asyncio.Future[str]) -> None:
        """One worker after the other in the same place."""
        loop = asyncio.get_running_loop()
        in_row = 0
        for incarnation in count():
            self._directory.mkdir(mode=0o700, exist_ok=True)  # /tmp may have been cleaned.
            place = Place(number, self._held, self._directory / f"{number}-{incarnation}.sock")
            began_s = loop.time()
            how = await self._one(place, begun)
            if not begun.done():
                begun.set_result(how)
            if self.stopping:
                return
            in_row = in_row + 1 if loop.time() - began_s < _LASTING_S else 1
            delay_s = 0.0 if in_row == 1 else min(0.125 * 2.0**in_row, _MOST_DELAY_S)
            _log.error(line("worker_died", worker=number, how=how, restart_in_s=delay_s))
            try:
                await asyncio.wait_for(self._stop.wait(), delay_s)
            except TimeoutError:
                self.restarts += 1
            else:
                return

    async def _one(self, place: Place, begun: asyncio.Future[str]) -> str:
        """One worker's life. Returns how it ended."""
        try:
            worker = await Worker.start(place, self._words)
        except OSError as error:
            return f"no process: {error.strerror}"
        self.alive[place.number] = worker
        worker.order(config_order(self.config) + STOP_ORDER * self._stops)
        watching = None
        if await worker.begun():
            _log.info(line("worker_ready", worker=place.number, pid=worker.process.pid))
            if self._hung_after_s is not None:
                watching = in_background(worker.watch(self._hung_after_s))
            if not begun.done():
                begun.set_result("")
        how = await worker.ended()
        if watching is not None:
            watching.cancel()
        del self.alive[place.number]
        self.departed = total([self.departed, worker.seen])
        if self.stopping and not worker.in_order:
            self._in_order = False
        return how
