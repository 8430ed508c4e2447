"""A client's connection: requests in, one after the other, answers out in the same order.

Rules
* A client that closes its side has gone, whatever it still wanted: its exchange ends at once.
* Reading goes on during an exchange, since nothing else would tell that the client has gone; but
  once several requests wait behind it, the client must.
* A slow client stops the reading of its own replica connection, and nobody else's; no further
  answer begins until it has caught up.
* Whatever a client is waited for has an end: `due_s` (see `limits`).
* A router that stops says `Connection: close` with each answer, and closes no connection that it
  has not said it of before it was idle for a while: the next request may be on its way.
"""

import asyncio
import fcntl
import select
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Final, cast

from ullage_router.http.access import Access
from ullage_router.http.errors import (
    BODY_TIMEOUT,
    HEAD_TIMEOUT,
    STOPPING,
    Refusal,
    too_many_connections,
)
from ullage_router.http.exchange import Exchange
from ullage_router.http.listener import Guest
from ullage_router.http.message import Request, whole_response
from ullage_router.http.request import BODY, CONTINUE, HEAD, IDLE, TUNNEL, Phase, RequestReader
from ullage_router.http.sockets import keep_alive
from ullage_router.http.story import End, tell_short

if TYPE_CHECKING:
    from ullage_router.http.proxy import Proxy

_MODELS: Final = b"/v1/models"
_MOST_WAITING: Final = 8
_MOST_BEYOND_BYTES: Final = 65_536
_MOST_BEHIND_BYTES: Final = 1_048_576
_MOST_TURNED_AWAY: Final = 32
_LEAVE_WITHIN_S: Final = 1.0
_LOOK_EVERY_S: Final = 0.05
_NO_LINGER: Final = struct.pack("ii", 1, 0)


class Downstream(Guest):
    """One client connection."""

    _exchange: Exchange | None = None
    _serving = False
    _paused = False
    _tunnel = False
    _looking: asyncio.TimerHandle | None = None
    _turned_away: asyncio.TimerHandle | None = None
    _unsent_bytes = 0
    """What a slow client had yet to take when that was last looked at."""

    def __init__(self, proxy: "Proxy") -> None:
        self.slow = False
        """The client reads more slowly than its answer comes."""
        self.due_s = inf
        """When what this connection waits for must have come, by the event loop's clock."""
        self._proxy = proxy
        self._transport: asyncio.Transport
        self._reader: RequestReader
        self._phase: Phase = IDLE
        self._waiting: deque[Request] = deque()

    # Called by the exchange

    @property
    def writer(self) -> Callable[[bytes], None]:
        """What sends to the client, for those who do so often."""
        return self._transport.write

    def write(self, data: bytes) -> None:
        """Send to the client."""
        self._transport.write(data)

    def done(self, *, keep_alive: bool) -> None:
        """The exchange is over, and the client has its whole answer."""
        self._exchange = None
        if not keep_alive:
            self._close()
            return
        if self._reader.phase is TUNNEL and not self._waiting:
            self._waiting += self._reader.go_on()
        if not self._serving:
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

    def tunnel(self) -> None:
        """The protocol has changed: from here on, whatever comes goes to the replica, unread."""
        assert self._exchange is not None
        self._tunnel = True
        self.pause_reading(paused=False)
        if self._reader.beyond:
            self._exchange.from_client(bytes(self._reader.beyond))
            self._reader.beyond.clear()

    def pause_reading(self, *, paused: bool) -> None:
        """Stop reading from the client, or go on: what it sends waits in the kernel meanwhile."""
        if paused is not self._paused and not self._transport.is_closing():
            self._paused = paused
            if paused:
                self._transport.pause_reading()
                if self._looking is None:
                    self._look_for_leaving()
            else:
                self._transport.resume_reading()

    def _look_for_leaving(self) -> None:
        """While nothing is read, only asking tells that the client has gone."""
        self._looking = None
        if not self._paused or self._transport.is_closing():
            return
        poll = select.poll()
        # In a tunnel, what it sent before it closed has yet to be read; a reset has not.
        closed = 0 if self._tunnel else select.POLLRDHUP
        poll.register(self._transport.get_extra_info("socket").fileno(), closed)
        if poll.poll(0):
            self._transport.abort()
        else:
            self._looking = self._proxy.loop.call_later(_LOOK_EVERY_S, self._look_for_leaving)

    # Called by the proxy

    def note(self, noted: frozenset[bytes], access: Access | None) -> None:
        """From the next request on, these fields are noted, and these clients may come."""
        self._reader.note(noted)
        self._reader.access = access

    def stop_when_idle(self) -> None:
        """The router is stopping. What the client may just be sending is still answered."""
        if self._exchange is None and self._reader.phase is IDLE:
            self.due_s = min(self.due_s, self._proxy.loop.time() + self._proxy.idle_s)

    def stop_now(self) -> None:
        """The router will wait no longer."""
        if self._exchange is not None:
            self._exchange.stop()
        elif self._reader.phase is IDLE:
            self._close()
        elif self._turned_away is None:
            self._turn_away(STOPPING)

    def overdue(self) -> None:
        """What was waited for has not come in time."""
        self.due_s = inf
        if self.slow or self._transport.is_closing():
            self._cut_if_stalled()
        elif self._exchange is not None:
            self._exchange.overdue()
        elif self._reader.phase is HEAD:
            self._turn_away(HEAD_TIMEOUT)
        elif self._reader.phase is BODY:
            self._turn_away(BODY_TIMEOUT)
        elif self._has_come():
            self.due_s = self._proxy.loop.time()
        else:
            self._close()

    def _has_come(self) -> bool:
        """Has the client sent what the event loop has yet to read? If so, it is no idle one."""
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self.is_in = True
        self._transport = cast(asyncio.Transport, transport)
        proxy = self._proxy
        limits = proxy.limits
        peer = transport.get_extra_info("peername")
        self._reader = RequestReader(
            peer[0].encode() if peer else b"unknown",
            max_head_bytes=limits.max_head_bytes,
            max_headers=limits.max_headers,
            max_body_bytes=limits.max_body_bytes,
            tls=transport.get_extra_info("sslcontext") is not None,
            noted=proxy.noted,
        )
        self._reader.access = proxy.access
        too_many = len(proxy.clients) - proxy.max_connections
        proxy.clients.add(self)
        if too_many >= _MOST_TURNED_AWAY:  # They would take what replica connections need.
            self._transport.abort()
            return
        if too_many >= 0:
            self._turn_away(too_many_connections(proxy.max_connections))
            return
        self.due_s = proxy.loop.time() + proxy.idle_s
        keep_alive(transport)

    def data_received(self, data: bytes) -> None:
        """A piece of one request, or of several."""
        if self._tunnel and self._exchange is not None:
            self._exchange.from_client(data)
            return
        if self._turned_away is not None:
            return
        self._waiting += self._reader.feed(data)
        if self._exchange is None:
            self._serve()
        if self._holds_enough():
            self.pause_reading(paused=True)

    def _holds_enough(self) -> bool:
        """Must the client wait with what it sends behind a request that is under way?"""
        waiting, reader = self._waiting, self._reader
        if len(waiting) > _MOST_WAITING or len(reader.beyond) > _MOST_BEYOND_BYTES:
            return True
        if self._exchange is None:
            return False
        behind_bytes = sum(len(request.body) for request in waiting) if waiting else 0
        return behind_bytes + reader.body_bytes > _MOST_BEHIND_BYTES

    def pause_writing(self) -> None:
        """The client does not keep up."""
        self.slow = True
        self._wait_for_reader()
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.slow = False
        self.due_s = inf
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
            self.due_s = inf
            if request.target != _MODELS or not self._answered_here(request):
                self._exchange = self._proxy.exchange(self._proxy, self, request)
                self._exchange.start()
        self._serving = False
        if self._exchange is not None or self._waiting or not self._idle:
            return
        if self._reader.refusal is not None:
            self._turn_away(self._reader.refusal)
            return
        if self._reader.wants_continue:
            self._reader.wants_continue = False
            self.write(CONTINUE)
        if self._paused:
            self.pause_reading(paused=False)
        self._wait_for_client()

    def _wait_for_client(self) -> None:
        """Set when the next thing that the client must do is due."""
        phase = self._reader.phase
        limits, now_s = self._proxy.limits, self._proxy.loop.time()
        if phase is BODY:  # Every piece is a sign of life.
            self.due_s = now_s + limits.body_timeout_s
        elif phase is HEAD:  # Its pieces are not: a head is small.
            if self._phase is not HEAD or self.due_s == inf:
                self.due_s = now_s + limits.head_timeout_s
        elif self._phase is not IDLE or self.due_s == inf:
            self.due_s = now_s + self._proxy.idle_s
        self._phase = phase

    @property
    def _idle(self) -> bool:
        """Can the next answer begin? Not while the client has yet to read the last one."""
        free = self._exchange is None and self._turned_away is None
        return free and not self.slow and not self._transport.is_closing()

    def _answered_here(self, request: Request) -> bool:
        body = self._proxy.models()
        if request.method != b"GET" or body is None:
            return False
        keep_alive = request.keep_alive and not self._proxy.stopping and not request.http_1_0
        content_type = (b"Content-Type", b"application/json")
        answer = whole_response(200, (content_type,), body, keep_alive=keep_alive)
        self.write(answer)
        tell_short(self._proxy.witnesses, request.client, request, 200, End.WHOLE, len(answer))
        if not keep_alive:
            self._close()
        return True

    def _turn_away(self, refusal: Refusal) -> None:
        """Say why nothing more is taken, then let the client leave.

        It may still be sending. To close with bytes unread would reset the connection, and the
        reset overtake the reason: so what comes is dropped, for a moment.
        """
        self._proxy.router.refusals[refusal.code] += 1
        self.due_s = inf
        answer = refusal.render(None, keep_alive=False)
        self.write(answer)
        tell_short(
            self._proxy.witnesses,
            self._reader.client,
            None,
            refusal.status,
            refusal.code,
            len(answer),
        )
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self.pause_reading(paused=False)
        self._turned_away = self._proxy.loop.call_later(_LEAVE_WITHIN_S, self._transport.abort)

    def _cut_if_stalled(self) -> None:
        """End the connection of a client that has taken nothing since this was last looked at."""
        before_bytes = self._unsent_bytes
        self._wait_for_reader()
        if self._unsent_bytes >= before_bytes:
            self._proxy.router.clients_stalled += 1
            self.cut(reset=True)

    def _wait_for_reader(self) -> None:
        """Set when the client must have taken something of what is on its way to it."""
        self._unsent_bytes = self._unsent()
        self.due_s = self._proxy.loop.time() + self._proxy.limits.stalled_client_s

    def _unsent(self) -> int:
        """Bytes that the client has yet to take, the kernel's included."""
        sock = self._transport.get_extra_info("socket")
        kernels = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4)
        return self._transport.get_write_buffer_size() + int(struct.unpack("i", kernels)[0])

    def _close(self) -> None:
        """Close once all that was written has gone out."""
        if not self._transport.is_closing():
            self._wait_for_reader()
            self._transport.close()
