"""`GET /v1/snapshots?watch`: the document, a line at a time, to whoever holds the connection.

A line comes at once, then on a change worth it, and at least every `interval_ms`, or as often as
whoever answers says in `Ullage-Interval-Ms`; never two within `spacing_ms`. An empty line says that
nothing but `ts` has changed since the line before. That `watch` is there is what counts, not its
value; a parameter that is unknown is ignored.

Rules
* A line is made when it can be taken. Who is slow gets the newest, late, and never a backlog: one
  line is in our hands, and little of it in the kernel's.
* Who has not taken a line within `STALLED_S` is cut off.
* However many watch, a document is rendered once for all of them.
* What is told of is looked at after something has come in that may be a change, and no more often
  than `LOOK_EVERY_S`; while nobody watches, not at all.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from aiohttp import web

from ullage_shared.log import Seldom, line
from ullage_shared.snapshot import INTERVAL, INTERVAL_HEADER, LINES_TYPE, SPACING

MOST: Final = 256
"""Watchers at a time; one more is refused. Each is a connection, and a line in memory at most."""
RENDER_EVERY_S: Final = 0.02
STALLED_S: Final = 5.0
GOODBYE_S: Final = 0.2
LOOK_EVERY_S: Final = 0.005
TIMER_S: Final = 0.001
"""As fine as a timer of the loop is: it may come early by that."""
INTERVAL_MS: Final = 500
LEAST_MS: Final = 20
MOST_MS: Final = 60_000
_UNSENT_BYTES: Final = 4096
"""What the kernel takes of a line before the peer has room for it."""

_log = logging.getLogger("ullage.watch")


@dataclass(slots=True)
class Watched:
    """What became of those who watch."""

    now: int = 0
    documents: int = 0
    """Lines with a document."""
    unchanged: int = 0
    """Empty lines."""
    stalled: int = 0
    """Watchers cut off because they took nothing."""
    refused: int = 0
    """Watchers too many."""


class Rendered(Protocol):
    """A document as it was rendered."""

    @property
    def at_s(self) -> float:
        """When."""
        ...

    @property
    def seq(self) -> int:
        """Grows with every change of its content."""
        ...

    @property
    def body(self) -> bytes:
        """As it is sent, without an end of line in it."""
        ...


Doc = TypeVar("Doc", bound=Rendered)


class Watchable(Protocol[Doc]):
    """What there is to watch: a node, or many."""

    tell: Callable[[], None] | None
    """To be called whenever something has come in that may be a change."""
    shown: Doc | None
    """The document that those who are told have. `None`: whatever comes in is a change."""

    def published(self, now_s: float, wall_s: float) -> Doc:
        """The document of now, or of a moment ago."""
        ...

    def moved(self, since: Doc) -> bool:
        """Has anything changed since that is worth a line at once?"""
        ...


class Wish(NamedTuple):
    """How a watcher wants its lines, in seconds."""

    interval_s: float
    """One this often at least."""
    spacing_s: float
    """No two within that."""


def wish(query: Mapping[str, str]) -> Wish:
    """What a watcher asks for. Raises `ValueError`, whose words are for it."""
    interval_ms = _milliseconds(query, INTERVAL, INTERVAL_MS)
    spacing_ms = _milliseconds(query, SPACING, LEAST_MS)
    return Wish(interval_ms / 1000.0, min(spacing_ms, interval_ms) / 1000.0)


def _milliseconds(query: Mapping[str, str], name: str, usual: int) -> int:
    text = query.get(name, str(usual))
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else -1
    if not LEAST_MS <= value <= MOST_MS:
        wanted = f"wanted a whole number from {LEAST_MS} to {MOST_MS}"
        raise ValueError(f"{name} = {text!r}: {wanted}")
    return value


class Watchers(Generic[Doc]):
    """All that watch, and what wakes them."""

    def __init__(
        self,
        node: Watchable[Doc],
        counts: Watched,
        clock: Callable[[], float],
        wall: Callable[[], float],
        *,
        least_s: float = 0.0,
        render_every_s: float | None = None,
    ) -> None:
        """`least_s`: however often a watcher wants a line, it gets none more often than that, but
        for a change. `render_every_s`: for how long `node` gives the same document; None:
        `RENDER_EVERY_S`."""
        self._node = node
        self._least_s = least_s
        self._render_every_s = RENDER_EVERY_S if render_every_s is None else render_every_s
        self._counts = counts
        self._clock = clock
        self._wall = wall
        self._watchers: dict[asyncio.Event, asyncio.WriteTransport] = {}
        """Each with what wakes it."""
        self._looked_s = 0.0
        self._look: asyncio.TimerHandle | None = None
        self._closed = False
        self._seldom = Seldom()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Serve one watcher until it goes, stalls, or `close` is called."""
        try:
            wanted = wish(request.query)
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
        if len(self._watchers) >= MOST or self._closed:
            self._counts.refused += 1
            return web.Response(status=503, text=f"wanted no more than {MOST} watchers: poll\n")
        headers = {"Content-Type": LINES_TYPE, "Cache-Control": "no-store"}
        interval_s = max(wanted.interval_s, self._least_s)
        spacing_s = max(wanted.spacing_s, self._render_every_s)
        if interval_s > wanted.interval_s:
            headers[INTERVAL_HEADER] = str(round(interval_s * 1000.0))
        response = web.StreamResponse(headers=headers)
        response.force_close()
        transport = request.transport
        if request.method == "HEAD" or transport is None:
            return response
        _hold_little(transport)
        with contextlib.suppress(ConnectionError), self._watching(transport) as woken:
            await response.prepare(request)
            await self._stream(request, response, woken, Wish(interval_s, spacing_s))
            await say_goodbye(response, transport)
        return response

    def close(self) -> None:
        """Let all of them go; at once those that take nothing."""
        self._closed = True
        for woken, transport in self._watchers.items():
            woken.set()
            if transport.get_write_buffer_size():
                transport.abort()

    @contextlib.contextmanager
    def _watching(self, transport: asyncio.WriteTransport) -> Iterator[asyncio.Event]:
        woken = asyncio.Event()
        self._watchers[woken] = transport
        self._counts.now = len(self._watchers)
        self._node.tell = self._look_soon
        try:
            yield woken
        finally:
            del self._watchers[woken]
            self._counts.now = len(self._watchers)
            if not self._watchers:
                self._node.tell = self._node.shown = None

    async def _stream(
        self,
        request: web.Request,
        response: web.StreamResponse,
        woken: asyncio.Event,
        wanted: Wish,
    ) -> None:
        loop = asyncio.get_running_loop()
        last: Doc | None = None
        while not self._closed:
            woken.clear()
            timer = loop.call_later(wanted.interval_s, woken.set)
            try:
                now = self._node.published(self._clock(), self._wall())
                if self._node.shown is None:
                    self._node.shown = now
                    self._look_soon()  # It may have been rendered before something came in.
                if last is not None and now.seq == last.seq:
                    await _send(request, response, b"\n")
                    self._counts.unchanged += 1
                else:
                    await _send(request, response, now.body + b"\n")
                    self._counts.documents += 1
                last, sent_s = now, loop.time()
                await woken.wait()
                if (early_s := sent_s + wanted.spacing_s - loop.time()) > 0.0:
                    await asyncio.sleep(early_s)
            except TimeoutError:
                self._cut_off(request)
                return
            finally:
                timer.cancel()

    def _cut_off(self, request: web.Request) -> None:
        self._counts.stalled += 1
        if request.transport is not None:
            request.transport.abort()
        if self._seldom.allows(self._clock()):
            why = f"took nothing for {STALLED_S:g} s"
            peer, kept_back = request.remote, self._seldom.kept_back
            _log.warning(line("watcher_cut_off", peer=peer, why=why, kept_back=kept_back))

    def _look_soon(self) -> None:
        """Something has come in: look at it, and at what else comes by then."""
        if self._look is None:
            self._look_at(self._looked_s + LOOK_EVERY_S)

    def _look_at(self, due_s: float) -> None:
        delay_s = due_s - self._clock()
        delay_s = delay_s + TIMER_S if delay_s > 0.0 else 0.0
        self._look = asyncio.get_running_loop().call_later(delay_s, self._look_now)

    def _look_now(self) -> None:
        self._look = None
        self._looked_s = now_s = self._clock()
        shown = self._node.shown
        if shown is None or not self._node.moved(shown):
            return
        published = self._node.published(now_s, self._wall())
        if self._node.moved(published):  # It was rendered before this came in.
            self._look_at(published.at_s + self._render_every_s)
            return
        self._node.shown = published
        for woken in self._watchers:
            woken.set()


async def _send(request: web.Request, response: web.StreamResponse, text: bytes) -> None:
    """Send, and wait until the kernel has it all. Raises `TimeoutError`, `ConnectionError`."""
    async with asyncio.timeout(STALLED_S):
        await response.write(text)
        await request.writer.drain()


async def say_goodbye(response: web.StreamResponse, transport: asyncio.WriteTransport) -> None:
    """End the answer as an answer ends, unless that would keep us. Raises `ConnectionError`."""
    try:
        async with asyncio.timeout(GOODBYE_S):
            await response.write_eof()
    except TimeoutError:
        transport.abort()


def _hold_little(transport: asyncio.WriteTransport) -> None:
    """A line that cannot go must not wait behind others, in our memory or in the kernel's."""
    transport.set_write_buffer_limits(high=0)
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
