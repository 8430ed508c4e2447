"""The client's end: raw bytes out, and answers read strictly, by a parser of its own.

Rule: nothing is repaired and nothing is raised. What is wrong with an answer is said in it
(`flaw`), since to judge that is the table's business.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import orjson

Header = tuple[bytes, bytes]
LIMIT_BYTES = 64 << 20
PATIENCE_S = 2.5
"""How long a client waits for what must come at once, retries included."""


@dataclass
class Head:
    """The head of an answer."""

    status: int
    reason: bytes
    headers: list[Header]

    def all(self, name: bytes) -> list[bytes]:
        """Every value of a field; `name` in lower case."""
        return [value for given, value in self.headers if given.lower() == name]


@dataclass
class Answer(Head):
    """An answer, as far as it came."""

    interim: list[Head] = field(default_factory=list)
    framing: str = "none"
    """`none`, `sized`, `chunked` or `close`."""
    pieces: list[bytes] = field(default_factory=list)
    """Of a chunked body its chunks, else what the reads gave."""
    trailers: list[Header] = field(default_factory=list)
    flaw: str = ""
    """Why it is not a whole answer."""

    @property
    def body(self) -> bytes:
        """What came of the body."""
        return b"".join(self.pieces)

    @property
    def error(self) -> dict[str, Any] | None:
        """The error object, if the body is one in OpenAI's form."""
        return openai_error(self.body)


def openai_error(document: bytes) -> dict[str, Any] | None:
    """`{"error": {message, type, param, code}}`, or None."""
    try:
        error = orjson.loads(document)["error"]
        return error if error.keys() == {"message", "type", "param", "code"} else None
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return None


class _Inbox(asyncio.Protocol):
    """What came, and how it ended. What came before a reset is not lost."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = ""
        self._changed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.data += data
        self._changed.set()

    def eof_received(self) -> bool:
        self.ended = "closed"
        self._changed.set()
        return True  # We may still send.

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = self.ended or ("reset" if exc else "closed")
        self._changed.set()

    async def take(self, ready: Callable[[bytearray], int], within_s: float) -> bytes:
        """The first `ready(data)` bytes once that is not 0; else what there is at the end."""
        try:
            async with asyncio.timeout(within_s):
                while not (size := ready(self.data)):
                    if self.ended:
                        size = len(self.data)
                        break
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return b""
        taken = bytes(self.data[:size])
        del self.data[:size]
        return taken


class Wire:
    """One connection to a proxy."""

    def __init__(self, transport: asyncio.Transport, inbox: _Inbox) -> None:
        self._transport = transport
        self._inbox = inbox

    @classmethod
    async def connect(cls, port: int) -> Self:
        """Open a connection; what is written goes out at once, piece by piece."""
        loop = asyncio.get_running_loop()
        return cls(*await loop.create_connection(_Inbox, "127.0.0.1", port))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._transport.abort()
        await asyncio.sleep(0)

    async def send(self, data: bytes) -> None:
        """Send; to a proxy that has closed it sends nothing."""
        if not self._transport.is_closing():
            self._transport.write(data)
        await asyncio.sleep(0)

    def finish(self) -> None:
        """Close the sending side."""
        if not self._transport.is_closing():
            self._transport.write_eof()

    def leave(self) -> None:
        """Close the connection."""
        self._transport.close()

    def reset(self) -> None:
        """Leave with a TCP reset."""
        linger = struct.pack("ii", 1, 0)
        connection = self._transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._transport.abort()

    def pause(self) -> None:
        """Read nothing any more."""
        self._transport.pause_reading()

    async def answer(self, *, bodiless: bool = False, within_s: float = PATIENCE_S) -> Answer:
        """The next answer, whole or with its flaw. `bodiless`: to a HEAD."""
        answer = await self.head(bodiless=bodiless, within_s=within_s)
        while not answer.flaw and await self.piece(answer, within_s):
            pass
        return answer

    async def head(self, *, bodiless: bool = False, within_s: float = PATIENCE_S) -> Answer:
        """The head of the next answer, interim ones before it included."""
        answer = Answer(0, b"", [])
        while answer.status < 200:
            if answer.status:
                answer.interim.append(Head(answer.status, answer.reason, answer.headers))
                if answer.status == 101:
                    return answer
            await self._read_head(answer, within_s)
            if answer.flaw:
                return answer
        codings, lengths = answer.all(b"transfer-encoding"), answer.all(b"content-length")
        if bodiless or answer.status in (204, 304):
            answer.framing = "none"
        elif codings:
            answer.framing = "chunked"
            if codings != [b"chunked"] or lengths:
                answer.flaw = f"framed by {codings} and {lengths}"
        elif lengths:
            answer.framing = "sized"
            if len(lengths) != 1 or not lengths[0].isdigit():
                answer.flaw = f"length {lengths}"
        else:
            answer.framing = "close"
        return answer

    async def piece(self, answer: Answer, within_s: float = PATIENCE_S) -> bytes:
        """The next piece of its body, added to it; empty at its end, or with a flaw."""
        if answer.framing == "none":
            return b""
        if answer.framing == "chunked":
            return await self._chunk(answer, within_s)
        left = LIMIT_BYTES
        if answer.framing == "sized":
            left = int(answer.all(b"content-length")[0]) - len(answer.body)
        data = await self._inbox.take(_any_up_to(left), within_s) if left else b""
        if data:
            answer.pieces.append(data)
        elif answer.framing == "sized" and left:
            answer.flaw = f"{self._inbox.ended or 'silence'} {left} bytes before its end"
        elif answer.framing == "close" and self._inbox.ended != "closed":
            answer.flaw = self._inbox.ended or "no end"
        return data

    async def _chunk(self, answer: Answer, within_s: float) -> bytes:
        line = await self._line(answer, within_s)
        if answer.flaw:
            return b""
        try:
            size = int(line, 16)
        except ValueError:
            answer.flaw = f"chunk size {line[:20]!r}"
            return b""
        if not size:
            while (line := await self._line(answer, within_s)) and not answer.flaw:
                name, _, value = line.partition(b":")
                answer.trailers.append((name, value.strip()))
            return b""
        data = await self._inbox.take(_exactly(size + 2), within_s)
        if not data.endswith(b"\r\n"):
            answer.flaw = f"{self._inbox.ended or 'silence'} within a chunk"
        answer.pieces.append(data[:size])
        return b"" if answer.flaw else data[:size]

    async def _line(self, answer: Answer, within_s: float) -> bytes:
        line = await self._inbox.take(_through(b"\r\n"), within_s)
        if not line.endswith(b"\r\n"):
            answer.flaw = f"{self._inbox.ended or 'silence'} before its last chunk"
        return line[:-2]

    async def _read_head(self, answer: Answer, within_s: float) -> None:
        raw = await self._inbox.take(_through(b"\r\n\r\n"), within_s)
        if not raw.endswith(b"\r\n\r\n"):
            answer.flaw = f"no answer: {self._inbox.ended or 'silence'}" + (
                f" {raw[:40]!r}" if raw else ""
            )
            return
        first, *lines = raw[:-4].split(b"\r\n")
        version, _, rest = first.partition(b" ")
        if version not in (b"HTTP/1.0", b"HTTP/1.1") or not rest[:3].isdigit():
            answer.flaw = f"it begins {first[:40]!r}"
            return
        pairs = [line.partition(b":") for line in lines]
        answer.status, answer.reason = int(rest[:3]), rest[4:]
        answer.headers = [(name, value.strip()) for name, _, value in pairs]

    async def ended(self, within_s: float = 1.0) -> str:
        """How the connection ended: `closed`, `reset`, nothing yet, or what came instead."""
        more = await self._inbox.take(_any_up_to(200), within_s)
        return f"more: {more[:40]!r}" if more else self._inbox.ended

    async def raw(self, size: int, within_s: float = PATIENCE_S) -> bytes:
        """So many bytes, whatever they are (in a tunnel), or fewer when no more come."""
        return await self._inbox.take(_exactly(size), within_s)


def _any_up_to(most: int) -> Callable[[bytearray], int]:
    return lambda data: min(len(data), most)


def _exactly(size: int) -> Callable[[bytearray], int]:
    return lambda data: size if len(data) >= size else 0


def _through(end: bytes) -> Callable[[bytearray], int]:
    return lambda data: data.find(end) + len(end) if end in data else 0
