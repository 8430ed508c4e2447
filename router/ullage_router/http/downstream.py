"""A client's connection: requests in, one after the other, answers out in the same order.

Rules
* A client that closes its side has gone, whatever it still wanted: its exchange ends at once.
* Reading goes on during an exchange, since nothing else would tell that the client has gone; but
  once several requests wait behind it, the client must.
* A slow client stops the reading of its own replica connection, and nobody else's; no further
  answer begins until it has caught up.
"""

import asyncio
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Final, cast

from ullage_router.http.errors import Refusal
from ullage_router.http.exchange import Exchange
from ullage_router.http.keepalive import keep_alive
from ullage_router.http.message import Request, whole_response
from ullage_router.http.request import CONTINUE, RequestReader

if TYPE_CHECKING:
    from ullage_router.http.proxy import Proxy

_MOST_WAITING: Final = 8
_LEAVE_WITHIN_S: Final = 1.0
_NO_LINGER: Final = struct.pack("ii", 1, 0)


class Downstream(asyncio.Protocol):
    """One client connection."""

    def __init__(self, proxy: "Proxy") -> None:
        self.slow = False
        """The client reads more slowly than its answer comes."""
        self._proxy = proxy
        self._transport: asyncio.Transport
        self._reader: RequestReader
        self._waiting: deque[Request] = deque()
        self._exchange: Exchange | None = None
        self._serving = False
        self._paused = False
        self._turned_away: asyncio.TimerHandle | None = None

    # Called by the exchange

    def write(self, data: bytes) -> None:
        """Send to the client."""
        self._transport.write(data)

    def done(self, *, keep_alive: bool) -> None:
        """The exchange is over, and the client has its whole answer."""
        self._exchange = None
        if not keep_alive or self._proxy.stopping:
            self._close()
        elif not self._serving:
            self._serve()

    def cut(self, *, reset: bool) -> None:
        """End the connection so that no client takes a part for the whole.

        `reset`: the answer has no end but the connection's, so an orderly close would look like it.
        """
        if reset:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self._transport.abort()
        else:
            self._close()

    def stop_when_idle(self) -> None:
        """The router is stopping: close now, or after the answer that is under way."""
        if self._exchange is None:
            self._close()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        limits = self._proxy.limits
        self._reader = RequestReader(
            peer[0].encode() if peer else b"unknown",
            max_head_bytes=limits.max_head_bytes,
            max_body_bytes=limits.max_body_bytes,
        )
        self._proxy.clients.add(self)
        keep_alive(transport)

    def data_received(self, data: bytes) -> None:
        """A piece of one request, or of several."""
        if self._turned_away is not None:
            return
        self._waiting += self._reader.feed(data)
        if self._exchange is None:
            self._serve()
        if len(self._waiting) > _MOST_WAITING and not self._paused:
            self._transport.pause_reading()
            self._paused = True

    def pause_writing(self) -> None:
        """The client does not keep up."""
        self.slow = True
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.slow = False
        if self._exchange is not None:
            self._exchange.resume()
        elif not self._serving:
            self._serve()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The client has gone."""
        self._proxy.client_left(self)
        if self._turned_away is not None:
            self._turned_away.cancel()
        self._waiting.clear()
        self._reader.close()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.abandon()

    def _serve(self) -> None:
        """Answer what waits, until an answer takes its time."""
        self._serving = True  # An exchange may end before `start` returns.
        while self._waiting and self._idle:
            request = self._waiting.popleft()
            if not self._answered_here(request):
                self._exchange = Exchange(self._proxy, self, request)
                self._exchange.start()
        self._serving = False
        if self._waiting or not self._idle:
            return
        if self._reader.refusal is not None:
            self._turn_away(self._reader.refusal)
        elif self._reader.wants_continue:
            self._reader.wants_continue = False
            self.write(CONTINUE)
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    @property
    def _idle(self) -> bool:
        """Can the next answer begin? Not while the client has yet to read the last one."""
        return self._exchange is None and not self.slow and not self._transport.is_closing()

    def _answered_here(self, request: Request) -> bool:
        if request.target != b"/v1/models" or request.method != b"GET":
            return False
        body = self._proxy.models()
        if body is None:
            return False
        keep_alive = request.keep_alive and not self._proxy.stopping and not request.http_1_0
        content_type = (b"Content-Type", b"application/json")
        self.write(whole_response(200, (content_type,), body, keep_alive=keep_alive))
        if not keep_alive:
            self._close()
        return True

    def _turn_away(self, refusal: Refusal) -> None:
        """Say why nothing more is taken, then let the client leave.

        It may still be sending. To close with bytes unread would reset the connection, and the
        reset overtake the reason: so what comes is dropped, for a moment.
        """
        self.write(refusal.render(None, keep_alive=False))
        self._transport.write_eof()
        self._turned_away = self._proxy.loop.call_later(_LEAVE_WITHIN_S, self._transport.abort)

    def _close(self) -> None:
        """Close once all that was written has gone out."""
        self._transport.close()
