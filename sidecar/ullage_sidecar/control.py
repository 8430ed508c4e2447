"""The operator's side: a unix socket beside the readings' one, of the same mode.

POST /drain[?engine=NAME]      take it out of service: its score is 0 from the next snapshot on
POST /undrain[?engine=NAME]    take it back
GET  /status[?engine=NAME]     how the engines stand

Each answers with the engines' rows, 404 if there is no such engine. Who may send readings may
drain: the file's mode is the only guard. Like the readings' one, a file that somebody deletes is
made anew.
"""

import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from ullage_shared.log import line
from ullage_shared.snapshot import State
from ullage_sidecar.config import CONTROL_SUFFIX
from ullage_sidecar.core.assess import Assessment
from ullage_sidecar.core.engine import Engine
from ullage_sidecar.core.reading import SCRAPE
from ullage_sidecar.core.render import label, source_of
from ullage_sidecar.drained import Kept
from ullage_sidecar.node import Node
from ullage_sidecar.sources.plugin import MODE, ListenError, is_at

_log: Final = logging.getLogger("ullage.sidecar")


class Row(msgspec.Struct, frozen=True):
    """How one engine stands."""

    engine: str
    state: State
    reason: str
    capacity_score: float | None
    running: int | None
    """Requests in vLLM's running batch; `None`: unknown."""
    waiting: int | None
    drained: bool
    gone: bool
    """Nobody listens at its port, or it says itself that it is dead."""
    source: str = ""
    """Who tells how it stands: `plugin` or `scrape`; empty: nobody."""
    note: str = ""
    """What is not known for want of its plugin; else empty."""


class Standing(msgspec.Struct, frozen=True):
    """An answer."""

    rows: list[Row]
    not_kept: str = ""
    """Why a restart of the sidecar would forget what is drained; else empty."""


def path_of(readings: str) -> Path:
    """Where the control socket is, by where the readings' one is."""
    return Path(readings + CONTROL_SUFFIX)


class Control:
    """Carries out what operators want."""

    def __init__(self, node: Node, kept: Kept, clock: Callable[[], float]) -> None:
        self._node = node
        self._kept = kept
        self._clock = clock

    def application(self) -> web.Application:
        """The HTTP side."""
        app = web.Application()
        app.router.add_post("/drain", self._drain)
        app.router.add_post("/undrain", self._undrain)
        app.router.add_get("/status", self._status)
        return app

    async def _drain(self, request: web.Request) -> web.Response:
        return self._command(self._node.drain, request)

    async def _undrain(self, request: web.Request) -> web.Response:
        return self._command(self._node.undrain, request)

    async def _status(self, request: web.Request) -> web.Response:
        return _answer(Standing(self._rows(request.query.get("engine"))))

    def _command(
        self, command: Callable[[str | None, float], None], request: web.Request
    ) -> web.Response:
        name = request.query.get("engine")
        if request.query.keys() - {"engine"}:
            return web.Response(status=404, text="wanted no parameter but engine")
        try:
            command(name, self._clock())
        except KeyError:
            known = ", ".join(entry.name for entry in self._node.config.engine)
            return web.Response(status=404, text=f"no engine {name!r}; wanted one of: {known}")
        return _answer(Standing(self._rows(name), self._kept.keep(self._node.drains)))

    def _rows(self, name: str | None) -> list[Row]:
        rows = []
        for engine, judged in self._node.assessed(self._clock()):
            running, waiting = engine.signals.running.value, engine.signals.waiting.value
            if name in (None, engine.name):
                rows.append(
                    Row(
                        label(engine),
                        judged.state,
                        judged.reason,
                        judged.capacity,
                        None if judged.silent or running is None else int(running),
                        None if judged.silent or waiting is None else int(waiting),
                        engine.drain is not None,
                        engine.health.fault is not None and engine.health.certain,
                        source_of(engine, judged),
                        _what_is_lost(engine, judged, self._node.config.scrape.interval_s),
                    )
                )
        return rows


@contextlib.asynccontextmanager
async def listening(control: Control, path: Path, close_within_s: float) -> AsyncIterator["Door"]:
    """Serve at `path`. Raises `ListenError`."""
    application = control.application()
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=close_within_s)
    await runner.setup()
    door = Door(runner, path)
    try:
        await door.open()
        yield door
    finally:
        await runner.cleanup()
        door.remove()


class Door:
    """The socket, and its file."""

    def __init__(self, runner: web.AppRunner, path: Path) -> None:
        self._runner = runner
        self._path = path
        self._site: web.SockSite | None = None
        self._owned = 0
        self._fault = ""

    async def open(self) -> None:
        """Listen. Raises `ListenError`."""
        listener = _bound(self._path)
        self._owned = self._path.stat().st_ino
        self._site = web.SockSite(self._runner, listener)
        await self._site.start()

    async def mend(self) -> None:
        """Make the file anew if it is gone; of a failure the log tells, once."""
        if is_at(self._path, self._owned):
            return
        if self._site is not None:
            await self._site.stop()
            self._site = None
        try:
            await self.open()
        except ListenError as error:
            if str(error) != self._fault:
                self._fault = str(error)
                _log.error(line("socket_lost", why=error, fix="no drain can reach this sidecar"))
        else:
            self._fault = ""
            _log.warning(line("socket_bound_anew", socket=self._path, why="its file was gone"))

    def remove(self) -> None:
        """Take the file away, unless it is another's."""
        with contextlib.suppress(OSError):
            if is_at(self._path, self._owned):
                self._path.unlink()


def _bound(path: Path) -> socket.socket:
    """A socket at `path`. Raises `ListenError`.

    Who has the readings' socket has this one: what lies here is a dead sidecar's.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            path.unlink()
        listener.bind(str(path))
        path.chmod(MODE)
    except OSError as error:
        listener.close()
        raise ListenError(f"socket {path}: {error.strerror}") from error
    return listener


def _what_is_lost(engine: Engine, judged: Assessment, interval_s: float) -> str:
    """What its operator should know of an engine that is scraped; of any other nothing."""
    if source_of(engine, judged) != SCRAPE:
        return ""
    lost = (
        f"its plugin is not heard, so its own /metrics is read: signals are up to {interval_s:g} s "
        "old, and what happens in between is not seen"
    )
    if not engine.estimates_seqs:
        return lost
    return f"{lost}; max_num_seqs = {engine.max_num_seqs} is estimated, set it in [[engine]]"


def _answer(standing: Standing) -> web.Response:
    return web.Response(body=msgspec.json.encode(standing), content_type="application/json")
