"""The replicas' end: raw servers that play a row's script and judge what reaches them.

Rules
* Every request is recorded, one that is not clean with its flaw.
* What routers ask for on their own (health, models, …) is answered and not recorded.
* A request that carries `sentinel-…` in its body gets that word back, whatever the row plays.
"""

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Self

from conformance.arrival import Got, read_request
from conformance.wire import LIMIT_BYTES

MODELS = b'{"object":"list","data":[{"id":"tiny","object":"model","owned_by":"vllm"}]}'
ASKED_BY_ROUTERS = {
    b"/health": b"{}",
    b"/health_generate": b"{}",
    b"/v1/models": MODELS,
    b"/version": b'{"version":"0.11.1"}',
    b"/server_info": b'{"model_id":"tiny"}',
    b"/get_server_info": b'{"model_id":"tiny"}',
    b"/model_info": b'{"model_path":"tiny"}',
    b"/get_model_info": b'{"model_path":"tiny"}',
    b"/get_loads": b"{}",
    b"/v1/loads": b"{}",
    b"/metrics": b"",
}
SENTINEL = re.compile(rb"sentinel-\d+")


class Call:
    """One request of the row, and the means to answer it."""

    def __init__(
        self,
        stage: "Stage",
        request: Got,
        reader: asyncio.StreamReader,
        transport: asyncio.Transport,
    ) -> None:
        self.stage = stage
        self.request = request
        self.number = len(stage.seen)
        """1: the first request of the row, at whichever replica."""
        self.notes = stage.notes
        self.reader = reader
        self._transport = transport

    async def send(self, data: bytes) -> None:
        """Send; for large data, wait while much of it is unsent."""
        if self._transport.is_closing():
            raise ConnectionResetError
        self._transport.write(data)
        while self._transport.get_write_buffer_size() > 1 << 20:
            await asyncio.sleep(0.001)
            if self._transport.is_closing():
                raise ConnectionResetError

    async def gone(self) -> float:
        """Wait until the proxy has closed the connection; when, by `perf_counter`."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(1 << 20):
                pass
        return perf_counter()

    def close(self) -> None:
        """End the connection in good order, once all is sent."""
        self._transport.close()

    def reset(self) -> None:
        """End it with a TCP reset."""
        connection = self._transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    @property
    def closed(self) -> bool:
        """Was it ended by the script?"""
        return self._transport.is_closing()


Script = Callable[[Call], Awaitable[None]]


class Stage:
    """Replicas that play the same script; a context. Their ports stay the same throughout."""

    def __init__(self, *hosts: str) -> None:
        self.replicas = [Replica(self, number, host) for number, host in enumerate(hosts)]
        self.script: Script
        self.seen: list[Got] = []
        """The row's requests, in the order in which they were whole."""
        self.notes: asyncio.Queue[float] = asyncio.Queue()
        """What a script has to tell its row: moments, by `perf_counter`."""
        self._connections = 0

    def set(self, script: Script) -> None:
        """Begin a row."""
        self.script = script
        self.seen = []
        self.notes = asyncio.Queue()

    async def hang_up(self) -> None:
        """End all connections, and give the proxy a moment to notice."""
        for replica in self.replicas:
            await replica.hang_up()
        await asyncio.sleep(0.02)

    def next_connection(self) -> int:
        """A number for each connection."""
        self._connections += 1
        return self._connections

    async def __aenter__(self) -> Self:
        for replica in self.replicas:
            await replica.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        for replica in self.replicas:
            await replica.down()
        await asyncio.sleep(0.01)


class Replica:
    """One server."""

    def __init__(self, stage: Stage, number: int, host: str) -> None:
        self.host = host
        self.port = 0
        self._stage = stage
        self._number = number
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._hole: list[socket.socket] = []

    @property
    def url(self) -> str:
        """Its base URL."""
        return (
            f"http://[{self.host}]:{self.port}"
            if ":" in self.host
            else (f"http://{self.host}:{self.port}")
        )

    async def up(self) -> None:
        """Listen."""
        for one in self._hole:
            one.close()
        self._hole.clear()
        self._server = await asyncio.start_server(
            self._accepted, self.host, self.port, limit=LIMIT_BYTES, backlog=256
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def down(self) -> None:
        """Be gone: connections end, and new ones are refused."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self.hang_up()

    async def hang_up(self) -> None:
        """End its connections, those too that are just being accepted."""
        await asyncio.sleep(0)
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.sleep(0)  # For the transports that were just closed.

    async def hole(self) -> None:
        """Be a black hole: connections end, and new ones are neither accepted nor refused."""
        await self.down()
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.host, self.port))
        listener.listen(0)
        self._hole = [listener]
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex((self.host, self.port))
            self._hole.append(filler)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer.transport))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, transport: asyncio.Transport) -> None:
        connection = self._stage.next_connection()
        try:
            while not transport.is_closing():
                request = await read_request(reader, transport.write)
                request.replica, request.connection = self._number, connection
                await self._play(request, reader, transport)
                if request.flaw:
                    break
            transport.close()
        except (EOFError, ConnectionError):
            transport.close()
        finally:
            if not transport.is_closing():
                transport.abort()

    async def _play(
        self, request: Got, reader: asyncio.StreamReader, transport: asyncio.Transport
    ) -> None:
        path = request.target.partition(b"?")[0]
        if request.method == b"GET" and path in ASKED_BY_ROUTERS and not request.flaw:
            transport.write(json_answer(ASKED_BY_ROUTERS[path]))
        elif (word := SENTINEL.search(request.body)) and not request.flaw:
            transport.write(json_answer(b'{"id":"%s"}' % word[0]))
        else:
            self._stage.seen.append(request)
            if not request.flaw:
                await self._stage.script(Call(self._stage, request, reader, transport))


def json_answer(body: bytes) -> bytes:
    """A plain 200."""
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )
