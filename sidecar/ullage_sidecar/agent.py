"""The agent-check side: a TCP port that tells HAProxy how much of a server's weight it is worth.

A check connects, says a name and a newline (`agent-send "NAME\\n"`), or nothing, and gets one line;
see `core.agent_check`. Then the connection is closed.

* A name that is not complete within `LINE_WITHIN_S` is taken as it is: with no newline, or empty.
* No check costs more than `MAX_LINE` bytes, `LINE_WITHIN_S` and one line out of the published
  document. Beyond `MAX_OPEN` of them the one that has waited longest is answered at once: a crowd
  of silent ones keeps nobody out who says a name.
* A flood is no flood of log lines: one every `SELDOM_S` for all checks whose name nobody has.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, cast

from ullage_shared.address import parse_listen
from ullage_shared.log import Seldom, line
from ullage_sidecar.core import agent_check
from ullage_sidecar.core.named import named, servers
from ullage_sidecar.endpoints import Served
from ullage_sidecar.node import Node
from ullage_sidecar.sources.plugin import ListenError

LINE_WITHIN_S: Final = 0.1
MAX_LINE: Final = 128
"""Bytes. The longest name is of 64, and a rank."""
MAX_OPEN: Final = 256
BACKLOG: Final = 1024

_log = logging.getLogger("ullage.sidecar")


class Agent:
    """Knows the answers."""

    def __init__(
        self, node: Node, served: Served, clock: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self.open: dict[_Check, None] = {}
        """Checks that have no answer yet, the longest waiting first."""
        self._node = node
        self._served = served
        self._clock = clock
        self._wall = wall
        self._seldom = Seldom()

    def answer(self, asked: bytes) -> bytes:
        """The line for what a check has said. Whatever that was, nothing is raised."""
        now_s = self._clock()
        name = asked.decode("ascii", "replace").strip()
        replicas = self._node.published(now_s, self._wall()).replicas
        meant = named(replicas, name)
        if meant:
            self._served.agent_checks += 1
            return agent_check.answer(meant).encode("ascii")
        self._served.agent_checks_misnamed += 1
        if self._seldom.allows(now_s):
            _log.warning(
                line(
                    "agent_check_misnamed",
                    asked=name,
                    engines=",".join(servers(replicas)),
                    fix='give each server line of haproxy.cfg its agent-send "NAME\\n"',
                    kept_back=self._seldom.kept_back,
                )
            )
        return agent_check.nobody(replicas, name).encode("ascii")


class _Check(asyncio.Protocol):
    """One connection."""

    def __init__(self, agent: Agent, loop: asyncio.AbstractEventLoop) -> None:
        self._agent = agent
        self._loop = loop
        self._said = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._patience = self._loop.call_later(LINE_WITHIN_S, self._answer)
        self._agent.open[self] = None
        if len(self._agent.open) > MAX_OPEN:
            next(iter(self._agent.open))._answer()

    def data_received(self, data: bytes) -> None:
        self._said += data[: MAX_LINE - len(self._said)]
        if b"\n" in self._said or len(self._said) >= MAX_LINE:
            self._answer()

    def eof_received(self) -> None:
        self._answer()

    def connection_lost(self, _: Exception | None) -> None:
        self._patience.cancel()
        self._agent.open.pop(self, None)

    def abort(self) -> None:
        """End it without an answer."""
        self._transport.abort()

    def _answer(self) -> None:
        if self in self._agent.open:
            del self._agent.open[self]
            self._patience.cancel()
            self._transport.write(self._agent.answer(self._said.partition(b"\n")[0]))
            self._transport.close()


@asynccontextmanager
async def listening(agent: Agent, listen: str) -> AsyncIterator[None]:
    """Answer checks at `listen`, `host:port`; empty: nowhere. Raises `ListenError`."""
    if not listen:
        yield
        return
    loop = asyncio.get_running_loop()
    address = parse_listen(listen)
    try:
        server = await loop.create_server(
            lambda: _Check(agent, loop), address.host, address.port, backlog=BACKLOG
        )
    except OSError as error:
        raise ListenError.at(address, error) from error
    host, port = server.sockets[0].getsockname()[:2]
    _log.info(line("agent_check", tcp=f"{host}:{port}"))
    try:
        yield
    finally:
        server.close()
        for check in tuple(agent.open):
            check.abort()
