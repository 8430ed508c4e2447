"""One who watches a sidecar's document, and notes when each line came."""

import asyncio
import socket
import time
from dataclasses import dataclass
from typing import Self

import aiohttp

from ullage_shared.snapshot import LINES_TYPE, Snapshot, decode

LARGE = ("x" * 1000,) * 16
"""Models that make a document larger than the buffers on its way to one who takes nothing."""


@dataclass(frozen=True)
class Line:
    """One line, and when it came."""

    at_s: float
    text: bytes

    @property
    def replicas(self) -> tuple[Snapshot, ...]:
        """What it says; nothing may be wrong with it."""
        document, faults = decode(self.text)
        assert faults == ()
        return document.replicas

    @property
    def replica(self) -> Snapshot:
        """The first of them."""
        return self.replicas[0]


async def stalled(listen: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Watch, and take nothing: as little as can be waits here."""
    host, port = listen.rsplit(":", 1)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
    assert isinstance(writer.transport, asyncio.ReadTransport)
    writer.transport.pause_reading()
    writer.write(b"GET /v1/snapshots?watch&interval_ms=60000 HTTP/1.1\r\nHost: sidecar\r\n\r\n")
    return reader, writer


class Watcher:
    """A context: a connection that takes lines as they come."""

    def __init__(
        self, listen: str, interval_ms: int | None = None, spacing_ms: int | None = None
    ) -> None:
        interval = "" if interval_ms is None else f"&interval_ms={interval_ms}"
        interval += "" if spacing_ms is None else f"&spacing_ms={spacing_ms}"
        self._url = f"http://{listen}/v1/snapshots?watch{interval}"
        self.lines: list[Line] = []

    async def __aenter__(self) -> Self:
        self._client = aiohttp.ClientSession()
        self.answer = await self._client.get(self._url)
        assert (self.answer.status, self.answer.content_type) == (200, LINES_TYPE)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.answer.close()
        await self._client.close()

    async def line(self, within_s: float = 10.0) -> Line | None:
        """The next one; None: the sidecar has ended the answer."""
        text = await asyncio.wait_for(self.answer.content.readline(), within_s)
        if not text:
            return None
        assert text.endswith(b"\n")
        self.lines.append(Line(time.monotonic(), text[:-1]))
        return self.lines[-1]

    async def until(self, good) -> Line:
        """The first line with a document that is `good`."""
        while True:
            line = await self.line()
            assert line is not None
            if line.text and good(line.replica):
                return line
