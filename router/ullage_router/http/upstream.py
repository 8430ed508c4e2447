"""A connection to one replica. It carries one exchange at a time, and waits in the pool between.

Rules
* One read is one write: what has come goes on at once.
* An exchange is told exactly once how it ended: `finished` or `broken`.
* Bytes that nobody asked for end the connection.
"""

import asyncio
from enum import StrEnum
from typing import Protocol, cast

from ullage_router.http.keepalive import keep_alive
from ullage_router.http.response import Head, InvalidResponseError, ResponseReader
from ullage_shared.address import Address


class Failure(StrEnum):
    """How a replica failed an exchange."""

    CONNECT = "connect"
    """No connection: refused, unreachable, or not in time."""
    CLOSED = "closed"
    """The connection ended before the response did."""
    INVALID = "invalid"
    """What came is not HTTP."""


class Exchange(Protocol):
    """What one request is told of its response, in this order."""

    def head(self, head: Head, body: bytes) -> None:
        """The head has come, and perhaps some of the body with it."""

    def data(self, data: bytes) -> None:
        """A further piece of the body."""

    def finished(self) -> None:
        """The response is whole; the connection is the exchange's to `Upstream.release`."""

    def broken(self, failure: Failure, problem: str) -> None:
        """It will not become whole; the connection is gone."""


class Upstream(asyncio.Protocol):
    """One connection."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.reused = False
        """Has it carried an exchange before this one? Then the replica may just have closed it."""
        self.idle_since_s = 0.0
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._reader: ResponseReader | None = None
        self._paused = False

    def send(self, exchange: Exchange, reader: ResponseReader, head: bytes, body: bytes) -> None:
        """Start an exchange on an open, idle connection."""
        assert self._transport is not None
        self._exchange = exchange
        self._reader = reader
        if len(body) < 65_536:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def release(self) -> bool:
        """Let a finished exchange go. True: the connection is open and may carry another."""
        self.resume()
        reader, self._reader, self._exchange = self._reader, None, None
        self.reused = True
        if reader is not None and reader.whole and reader.keep_alive and self._spent:
            return True
        self.abort()
        return False

    def abort(self) -> None:
        """End the connection now. Its exchange hears nothing more."""
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()

    @property
    def open(self) -> bool:
        """Can it carry a request?"""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def _spent(self) -> bool:
        """Is it open, with nothing left of the last request that a next one would come behind?"""
        return self.open and cast(asyncio.Transport, self._transport).get_write_buffer_size() == 0

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

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast(asyncio.Transport, transport)
        keep_alive(transport)

    def data_received(self, data: bytes) -> None:
        """The hot path."""
        exchange, reader = self._exchange, self._reader
        if exchange is None or reader is None:
            self.abort()
            return
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
        if reader.whole:
            exchange.finished()

    def eof_received(self) -> None:
        """The replica has said all it will; the event loop closes the connection."""
        exchange, reader = self._exchange, self._reader
        if exchange is not None and reader is not None and reader.end_of_stream():
            exchange.finished()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._transport = None
        self._fail(Failure.CLOSED, str(exc) if exc else "it closed the connection")

    def _fail(self, failure: Failure, problem: str) -> None:
        exchange = self._exchange
        self.abort()
        if exchange is not None:
            exchange.broken(failure, problem)
