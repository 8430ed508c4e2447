"""A connection to one replica. It carries one exchange at a time, and waits in the pool between.

Rules
* One read is one write: what has come goes on at once.
* An exchange is told exactly once how it ended: `finished` or `broken`.
* Bytes that nobody asked for end the connection.
* A body that goes on as it is passes by its exchange: llhttp reads along, only to find its end.
"""

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol, cast

import httptools

from ullage_router.http.message import Head
from ullage_router.http.response import (
    SHORT_BYTES,
    TAIL_BYTES,
    InvalidResponseError,
    ResponseReader,
)
from ullage_router.http.sockets import buffer_little, keep_alive
from ullage_router.tally import Tally
from ullage_shared.address import Address


class Failure(StrEnum):
    """How a replica failed an exchange."""

    CONNECT = "connect"
    """No connection: refused, unreachable, or not in time."""
    CLOSED = "closed"
    """The connection ended before the response did."""
    INVALID = "invalid"
    """What came is not HTTP."""
    TIMEOUT = "timeout"
    """The answer did not begin in time."""
    FULL = "full"
    """It has no room, as it says itself."""


class Exchange(Protocol):
    """What one request is told of its response, in this order."""

    def head(self, head: Head, body: bytes) -> None:
        """The head has come, and perhaps some of the body with it."""

    def data(self, data: bytes) -> None:
        """A further piece of the body, unless it is passed on without asking."""

    def finished(self) -> None:
        """The response is whole; the connection is the exchange's to `Upstream.release`."""

    def broken(self, failure: Failure, problem: str) -> None:
        """It will not become whole; the connection is gone."""

    def replica_slow(self) -> None:
        """The replica reads more slowly than its client sends."""

    def replica_caught_up(self) -> None:
        """No longer."""


class Upstream(asyncio.Protocol):
    """One connection. Slots, since each piece of each stream finds it cold in memory."""

    __slots__ = (
        "_exchange",
        "_pass_on",
        "_paused",
        "_reader",
        "_tally",
        "_transport",
        "address",
        "idle_since_s",
        "reused",
        "silent",
    )

    def __init__(self, address: Address) -> None:
        self.address = address
        self.reused = False
        """Has it carried an exchange before this one? Then the replica may just have closed it."""
        self.silent = True
        """Has nothing come, not even an interim response, since the last request went out?"""
        self.idle_since_s = 0.0
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._reader = ResponseReader()
        self._paused = False
        self._pass_on: Callable[[bytes], None] | None = None
        self._tally: Tally

    def send(
        self, exchange: Exchange, head: bytes, body: bytes, *, bodiless: bool, dechunk: bool
    ) -> None:
        """Start an exchange on an open, idle connection."""
        self._reader.begin(bodiless=bodiless, dechunk=dechunk)
        self._start(exchange, head, body)

    def send_websocket(self, exchange: Exchange, head: bytes) -> None:
        """Start an exchange that may change the protocol."""
        self._reader.begin(bodiless=False, dechunk=False, websocket=True)
        self._start(exchange, head, b"")

    def _start(self, exchange: Exchange, head: bytes, body: bytes) -> None:
        assert self._transport is not None
        self._exchange = exchange
        self.silent = True
        if len(body) < 65_536:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def pass_on(self, write: Callable[[bytes], None], tally: Tally) -> None:
        """From here on, the body goes straight to `write`, and is counted."""
        self._tally = tally
        self._pass_on = write

    def release(self) -> bool:
        """Let a finished exchange go. True: the connection is open and may carry another."""
        if self._paused:
            self.resume()
        self._exchange = self._pass_on = None
        self.reused = True
        reader, transport = self._reader, self._transport
        again = reader.whole and reader.keep_alive and transport and not transport.is_closing()
        # What is left of this request would come before a next one.
        if again and transport and not transport.get_write_buffer_size():
            return True
        self.abort()
        return False

    def abort(self) -> None:
        """End the connection now. Its exchange hears nothing more."""
        self._exchange = self._pass_on = None
        if self._transport is not None:
            self._transport.abort()

    @property
    def open(self) -> bool:
        """Can it carry a request?"""
        return self._transport is not None and not self._transport.is_closing()

    def pause(self) -> None:
        """The client is slow: read no more for now."""
        if not self._paused and self.open:
            cast(asyncio.Transport, self._transport).pause_reading()
            self._paused = True

    def resume(self) -> None:
        """The client has caught up."""
        if self._paused:
            self._paused = False
            if self.open:
                cast(asyncio.Transport, self._transport).resume_reading()

    # In a tunnel

    def tunnel(self, write: Callable[[bytes], None], tally: Tally) -> None:
        """From here on, whatever comes goes to `write`, unread."""
        self._reader.close()
        self._reader.parse = _unread
        self.pass_on(write, tally)

    def write(self, data: bytes) -> None:
        """Send what the client sent."""
        if self.open:
            cast(asyncio.Transport, self._transport).write(data)

    def leave(self) -> None:
        """The client has closed its end of the tunnel: close this one behind what it sent."""
        self._exchange = self._pass_on = None
        if self._transport is not None:
            self._transport.close()

    @property
    def tail(self) -> bytes:
        """The last bytes of the answer so far."""
        return self._reader.tail

    def between_events(self) -> bool:
        """After a break: did what was passed on end with an event, and with a chunk?"""
        return self._reader.between_events()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast(asyncio.Transport, transport)
        keep_alive(transport)
        buffer_little(transport)

    def data_received(self, data: bytes) -> None:
        """The hot path."""
        pass_on, reader = self._pass_on, self._reader
        if pass_on is None:
            self._received(data)
            return
        try:
            reader.parse(data)
            reader.tail = data if len(data) > SHORT_BYTES else reader.tail[-TAIL_BYTES:] + data
            if reader.whole:
                reader.passed()
        except (httptools.HttpParserError, InvalidResponseError) as error:
            self._fail(Failure.INVALID, str(error))
            return
        tally = self._tally
        tally.chunks += 1
        tally.response_bytes += len(data)
        pass_on(data)
        if reader.whole and self._exchange is not None:
            self._exchange.finished()

    def _received(self, data: bytes) -> None:
        """A piece of a head, or of a body that its exchange wants to see."""
        exchange, reader = self._exchange, self._reader
        if exchange is None:
            self.abort()
            return
        self.silent = False
        in_body = reader.head is not None
        try:
            body = reader.feed(data)
        except InvalidResponseError as error:
            self._fail(Failure.INVALID, str(error))
            return
        if not in_body:
            if reader.head is None:
                return
            exchange.head(reader.head, body)
        elif body:
            exchange.data(body)
        if reader.whole and self._exchange is exchange:
            exchange.finished()

    def pause_writing(self) -> None:
        """The replica does not keep up with what the client sends."""
        if self._exchange is not None:
            self._exchange.replica_slow()

    def resume_writing(self) -> None:
        """It has caught up."""
        if self._exchange is not None:
            self._exchange.replica_caught_up()

    def eof_received(self) -> None:
        """The replica has said all it will; the event loop closes the connection."""
        if self._exchange is not None and self._reader.end_of_stream():
            self._exchange.finished()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._transport = None
        self._fail(Failure.CLOSED, str(exc) if exc else "it closed the connection")
        self._reader.close()

    def _fail(self, failure: Failure, problem: str) -> None:
        exchange = self._exchange
        self.abort()
        if exchange is not None:
            exchange.broken(failure, problem)


def _unread(_: bytes) -> None:
    """A tunnel's bytes are nobody's business."""
