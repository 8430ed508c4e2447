"""The operator's side: a unix socket beside the readings' one, of the same mode.

POST /drain[?engine=NAME]      take it out of service: its score is 0 from the next snapshot on
POST /undrain[?engine=NAME]    take it back
GET  /status                   how the engines stand

Each answers with the engines' rows, 404 if there is no such engine. Who may send readings may
drain: the file's mode is the only guard.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec
from aiohttp import web

from ullage_shared.snapshot import State
from ullage_sidecar.config import CONTROL_SUFFIX
from ullage_sidecar.drained import Kept
from ullage_sidecar.node import Node
from ullage_sidecar.sources.plugin import MODE, ListenError


class Row(msgspec.Struct, frozen=True):
    """How one engine stands."""

    engine: str
    state: State
    reason: str
    capacity_score: float | None
    running: int | None
    """Requests in vLLM's running batch; `None`: unknown."""
    waiting: int | None


def path_of(socket: str) -> Path:
    """Where the control socket is, by where the readings' one is."""
    return Path(socket + CONTROL_SUFFIX)


class Control:
    """Carries out what operators want."""

    def __init__(
        self, node: Node, kept: Kept, clock: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self._node = node
        self._kept = kept
        self._clock = clock
        self._wall = wall

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

    async def _status(self, _: web.Request) -> web.Response:
        return _answer(self._rows(None))

    def _command(
        self, command: Callable[[str | None, float], None], request: web.Request
    ) -> web.Response:
        name = request.query.get("engine")
        try:
            command(name, self._clock())
        except KeyError:
            known = ", ".join(entry.name for entry in self._node.config.engine)
            return web.Response(status=404, text=f"no engine {name!r}; wanted one of: {known}")
        self._kept.keep(self._node.drains)
        return _answer(self._rows(name))

    def _rows(self, name: str | None) -> list[Row]:
        published = self._node.published(self._clock(), self._wall())
        node = f"{self._node.config.node}/"
        rows = []
        for snapshot in published.replicas:
            engine = snapshot.id.removeprefix(node)
            if name in (None, engine.partition(":")[0]):
                rows.append(
                    Row(
                        engine,
                        snapshot.state,
                        snapshot.reason,
                        snapshot.capacity_score,
                        snapshot.running,
                        snapshot.waiting,
                    )
                )
        return rows


async def listen(runner: web.AppRunner, path: Path) -> None:
    """Serve at `path`. Raises `ListenError`."""
    try:
        await web.UnixSite(runner, str(path)).start()
        path.chmod(MODE)  # noqa: ASYNC240 -- once, at the start
    except OSError as error:
        raise ListenError(f"socket {path}: {error.strerror or error}") from error


def _answer(rows: list[Row]) -> web.Response:
    return web.Response(body=msgspec.json.encode(rows), content_type="application/json")
