"""A client that sends any bytes and reads answers piece by piece, by a parser of its own.

Rule: nothing is repaired. A body that ends early is `CutError`, a reset is `ConnectionResetError`.
"""

import asyncio
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from scripted_backend import Header, reset
from ullage_shared.address import Address

_LIMIT_BYTES = 1 << 20


class CutError(Exception):
    """The connection ended before the response did."""


@dataclass
class Answer:
    """A response, as far as it was read."""

    status: int
    reason: bytes
    version: bytes
    headers: list[Header]
    interim: list[int] = field(default_factory=list)
    """Statuses of the 1xx responses before it."""
    body: bytes = b""

    def all(self, name: bytes) -> list[bytes]:
        """Every value of a field; `name` in lower case."""
        return [value for given, value in self.headers if given.lower() == name]

    def one(self, name: bytes) -> bytes | None:
        """The value of a field that must not be repeated; None: it is not there."""
        values = self.all(name)
        assert len(values) < 2, f"{name!r} is repeated: {values}"
        return values[0] if values else None

    @property
    def error(self) -> dict[str, Any]:
        """The body's `error` object, checked for OpenAI's form."""
        error = orjson.loads(self.body)["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert self.one(b"content-type") == b"application/json"
        return error


def request(
    target: bytes = b"/v1/completions",
    body: bytes | None = None,
    method: bytes | None = None,
    headers: Iterable[Header] = (),
) -> bytes:
    """A request: POST with `Content-Length` if there is a body, else GET."""
    lines = [
        b"%s %s HTTP/1.1" % (method or (b"GET" if body is None else b"POST"), target),
        b"Host: router.test",
        *(name + b": " + value for name, value in headers),
    ]
    if body is not None:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")


class Client:
    """One connection to the router."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._framing: str | int = 0  # Bytes left of the body, or "chunked", or "close".

    @classmethod
    async def connect(cls, address: Address, tls: ssl.SSLContext | None = None) -> "Client":
        """Open a connection."""
        return cls(
            *await asyncio.open_connection(address.host, address.port, limit=_LIMIT_BYTES, ssl=tls)
        )

    @property
    def certificate(self) -> dict[str, Any]:
        """What the router showed, over TLS."""
        shown: dict[str, Any] = self.writer.get_extra_info("ssl_object").getpeercert()
        return shown

    async def send(self, data: bytes) -> None:
        """Send, and wait until the kernel takes it."""
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, data: bytes, *, bodiless: bool = False) -> Answer:
        """Send a request and read its whole answer."""
        await self.send(data)
        return await self.answer(bodiless=bodiless)

    async def answer(self, *, bodiless: bool = False) -> Answer:
        """The next response, whole. `bodiless`: it answers a HEAD."""
        answer = await self.head(bodiless=bodiless)
        answer.body = b"".join([piece async for piece in self.pieces()])
        return answer

    async def head(self, *, bodiless: bool = False) -> Answer:
        """The head of the next response; its body is then read by `piece`."""
        interim: list[int] = []
        while True:
            answer = self._parse(await self._until(b"\r\n\r\n"))
            if answer.status >= 200:
                break
            interim.append(answer.status)
        answer.interim = interim
        length = answer.one(b"content-length")
        if bodiless or answer.status in (204, 304):
            self._framing = 0
        elif answer.one(b"transfer-encoding") is not None:
            assert length is None
            assert answer.one(b"transfer-encoding") == b"chunked"
            self._framing = "chunked"
        else:
            self._framing = "close" if length is None else int(length)
        return answer

    async def piece(self) -> bytes:
        """The next piece of the body: a chunk, or what has come; empty at the end."""
        if self._framing == "chunked":
            size = int((await self._until(b"\r\n")).partition(b";")[0], 16)
            data = await self._exactly(size)
            if size:
                assert await self._exactly(2) == b"\r\n"
            else:
                while await self._until(b"\r\n") != b"\r\n":
                    pass  # A trailer.
                self._framing = 0
            return data
        if self._framing == "close":
            return await self.reader.read(_LIMIT_BYTES)
        assert isinstance(self._framing, int)
        if not self._framing:
            return b""
        data = await self.reader.read(self._framing)
        if not data:
            raise CutError
        self._framing -= len(data)
        return data

    async def pieces(self) -> Any:
        """The rest of the body."""
        while piece := await self.piece():
            yield piece

    async def closed(self) -> bytes:
        """Wait until the router closes; what came before that."""
        return await self.reader.read()

    def close(self) -> None:
        """Leave in good order."""
        self.writer.close()

    def reset(self) -> None:
        """Leave with a TCP reset."""
        reset(self.writer.transport)

    async def _until(self, end: bytes) -> bytes:
        try:
            return await self.reader.readuntil(end)
        except asyncio.IncompleteReadError as error:
            raise CutError(error.partial) from error

    async def _exactly(self, size: int) -> bytes:
        try:
            return await self.reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            raise CutError(error.partial[-80:]) from error

    @staticmethod
    def _parse(head: bytes) -> Answer:
        first, *lines = head[:-4].split(b"\r\n")
        version, status, reason = first.split(b" ", 2)
        pairs = (line.partition(b": ") for line in lines)
        return Answer(int(status), reason, version, [(name, value) for name, _, value in pairs])
