"""A stand-in for vLLM that a test scripts: a raw socket server, so that any fault can be injected.

Rule: it parses nothing but what framing needs, and sends exactly the bytes that it is told to.

    async def script(call: Call) -> None:      # one task per connection
        await call.read_request()
        await call.send(response(b"hello"))

    async with Backend(script) as backend:
        ...  # backend.url, backend.connections, backend.requests
"""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Self

Header = tuple[bytes, bytes]
_LIMIT_BYTES = 1 << 20
LAST_CHUNK = b"0\r\n\r\n"


class CallerGoneError(Exception):
    """The router closed the connection, where the script expected a request."""


@dataclass(frozen=True)
class Received:
    """A request as it arrived."""

    method: bytes
    target: bytes
    headers: list[Header]
    body: bytes

    def all(self, name: bytes) -> list[bytes]:
        """Every value of a field; `name` in lower case."""
        return [value for given, value in self.headers if given.lower() == name]


def response(
    body: bytes = b"", status: int = 200, reason: bytes = b"OK", headers: Iterable[Header] = ()
) -> bytes:
    """A response with `Content-Length`."""
    own = [*headers, (b"Content-Length", b"%d" % len(body))]
    return head(status, reason, own) + body


def chunked_head(headers: Iterable[Header] = ((b"Content-Type", b"text/event-stream"),)) -> bytes:
    """The head of a chunked 200."""
    return head(200, b"OK", [*headers, (b"Transfer-Encoding", b"chunked")])


def head(status: int, reason: bytes, headers: Iterable[Header]) -> bytes:
    """A response's head, just as given."""
    lines = [b"HTTP/1.1 %d %s" % (status, reason), *(n + b": " + v for n, v in headers)]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


class Call:
    """One connection from the router."""

    def __init__(
        self, backend: "Backend", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.reader = reader
        self.number = backend.connections
        """1 for the first connection that the backend saw."""
        self._backend = backend
        self._writer = writer

    async def read_request(self) -> Received:
        """The next request, whole. Raises `CallerGoneError`."""
        try:
            top = await self.reader.readuntil(b"\r\n\r\n")
            first, *lines = top[:-4].split(b"\r\n")
            method, target, _ = first.split(b" ")
            pairs = (line.partition(b": ") for line in lines)
            headers = [(name, value) for name, _, value in pairs]
            length = next((int(v) for n, v in headers if n.lower() == b"content-length"), 0)
            body = await self.reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise CallerGoneError from error
        request = Received(method, target, headers, body)
        self._backend.requests.append(request)
        return request

    async def send(self, data: bytes) -> None:
        """Send, and wait until the router takes it."""
        self._writer.write(data)
        await self._writer.drain()

    async def gone(self) -> float:
        """Wait until the router has closed the connection; the moment, by `perf_counter`."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(_LIMIT_BYTES):
                pass
        return perf_counter()

    def close(self) -> None:
        """End the connection in good order, once all is sent."""
        self._writer.close()

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        reset(self._writer.transport)


def reset(transport: asyncio.WriteTransport) -> None:
    """Close with a TCP reset."""
    sock = transport.get_extra_info("socket")
    if sock is not None and not transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


Script = Callable[[Call], Awaitable[None]]


def answering(answer: bytes | Callable[[Received], bytes]) -> Script:
    """A script that answers every request alike, keep-alive."""

    async def script(call: Call) -> None:
        while True:
            request = await call.read_request()
            await call.send(answer if isinstance(answer, bytes) else answer(request))

    return script


async def silent(call: Call) -> None:
    """A script that takes everything and never answers."""
    await call.gone()


class Backend:
    """A server that runs one script per connection; a context that ends all of them."""

    def __init__(self, script: Script, port: int = 0, *, tls: ssl.SSLContext | None = None) -> None:
        self.connections = 0
        """How many were ever accepted."""
        self.requests: list[Received] = []
        """Every whole request that a script has read."""
        self.open = 0
        """Connections on which the script still runs."""
        self.url = ""
        self.port = port
        self._tls = tls
        self._script = script
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._accepted,
            "127.0.0.1",
            self.port,
            limit=_LIMIT_BYTES,
            backlog=1024,
            ssl=self._tls,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # For the transports that were just aborted.
        wrong = [e for e in ended if isinstance(e, Exception)]
        if wrong:
            raise ExceptionGroup("scripts that failed", wrong)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        task = asyncio.ensure_future(self._run(Call(self, reader, writer), writer))
        self._tasks.add(task)

    async def _run(self, call: Call, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(CallerGoneError, ConnectionError):
                await self._script(call)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        finally:
            self.open -= 1
            writer.transport.abort()


def refusing_url() -> str:
    """A URL at which nobody listens: a connection there is refused."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@asynccontextmanager
async def black_hole() -> AsyncIterator[str]:
    """A URL that neither accepts nor refuses a connection: its backlog is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            for filler in fillers:
                filler.close()
