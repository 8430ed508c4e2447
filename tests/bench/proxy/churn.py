"""Clients of every kind, good and bad, many times a second: the load of the soak.

Each worker, over and over: draws a kind, behaves so on a connection of its own, notes how that
ended. While backends die and return, any end may be right but one: `hung`, nothing for HANG_S.
"""

import asyncio
import json
import random
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, Self

HANG_S: Final = 15.0
WORKERS: Final = 48
MOST_PAUSE_S: Final = 0.2
LARGE_TOKENS: Final = 100_000  # 400 KB of answer
SLOW_BYTES_PER_S: Final = 1024

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def request(**fields: object) -> bytes:
    """Make a chat request, whole."""
    body = json.dumps({"model": "tiny", "messages": [], **fields}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def _read_answer(reader: asyncio.StreamReader) -> str:
    """Read one answer to its end; its status."""
    head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
    if length := fields.get(b"content-length"):
        await reader.readexactly(int(length))
    else:
        await reader.readuntil(b"\r\n0\r\n\r\n")
    return head.split(b" ", 2)[1].decode()


async def _unary(streams: Streams, dice: random.Random) -> str:
    reader, writer = streams
    status = ""
    for _ in range(dice.randint(1, 20)):
        writer.write(request(max_tokens=8))
        status = await _read_answer(reader)
    return status


async def _pipelined(streams: Streams, dice: random.Random) -> str:
    reader, writer = streams
    count = dice.randint(2, 5)
    writer.write(request() * count)
    return [await _read_answer(reader) for _ in range(count)][-1]


async def _stream(streams: Streams, dice: random.Random) -> str:
    reader, writer = streams
    writer.write(request(stream=True, max_tokens=dice.randint(1, 64)))
    return await _read_answer(reader)


async def _large(streams: Streams, dice: random.Random) -> str:
    reader, writer = streams
    writer.write(request(max_tokens=LARGE_TOKENS))
    return await _read_answer(reader)


async def _long_prompt(streams: Streams, dice: random.Random) -> str:
    reader, writer = streams
    writer.write(request(prompt="word " * dice.randint(1_000, 50_000)))
    return await _read_answer(reader)


async def _leaves_stream(streams: Streams, dice: random.Random) -> str:
    reader, writer = streams
    writer.write(request(stream=True, max_tokens=1_000_000))
    await reader.readuntil(b"\r\n\r\n")
    await asyncio.sleep(dice.random() / 2)
    return "left"


async def _leaves_at_once(streams: Streams, dice: random.Random) -> str:
    streams[1].write(request(stream=dice.random() < 0.5))
    await asyncio.sleep(dice.choice((0.0, 0.0, 0.001, 0.01)))
    return "left"


async def _leaves_amid_request(streams: Streams, dice: random.Random) -> str:
    whole = request(prompt="word " * 10_000)
    streams[1].write(whole[: dice.randrange(len(whole))])
    await asyncio.sleep(dice.random() / 10)
    return "left"


async def _leaves_large_unread(streams: Streams, dice: random.Random) -> str:
    streams[1].write(request(max_tokens=100 * LARGE_TOKENS))
    await asyncio.sleep(dice.random())
    return "left"


async def _speaks_no_http(streams: Streams, dice: random.Random) -> str:
    reader, writer = streams
    writer.write(dice.randbytes(dice.randint(1, 200)) + b"\r\n\r\n")
    return (await reader.read(12))[9:12].decode() or "closed"


KINDS: Final[dict[Callable[[Streams, random.Random], Awaitable[str]], int]] = {
    _unary: 6,
    _pipelined: 2,
    _stream: 6,
    _large: 1,
    _long_prompt: 1,
    _leaves_stream: 4,
    _leaves_at_once: 4,
    _leaves_amid_request: 2,
    _leaves_large_unread: 1,
    _speaks_no_http: 1,
}
"""How a client behaves, and how often."""


class Churn:
    """The workers, while its context lasts; `ends` counts (kind, how it ended)."""

    def __init__(self, port: int, seed: int) -> None:
        self.ends: Counter[str] = Counter()
        self._port = port
        self._dice = random.Random(seed)
        self._workers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._workers = [asyncio.create_task(self._work()) for _ in range(WORKERS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    async def _work(self) -> None:
        kinds, weights = list(KINDS), list(KINDS.values())
        while True:
            (kind,) = self._dice.choices(kinds, weights)
            try:
                async with asyncio.timeout(HANG_S):  # 3.11's wait_for may lose a cancellation
                    end = await self._behave(kind)
            except TimeoutError:
                end = "hung"
            except (OSError, asyncio.IncompleteReadError):
                end = "cut"
            self.ends[f"{kind.__name__.strip('_')} {end}"] += 1
            await asyncio.sleep(self._dice.random() * MOST_PAUSE_S)

    async def _behave(self, kind: Callable[[Streams, random.Random], Awaitable[str]]) -> str:
        streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        try:
            return await kind(streams, self._dice)
        finally:
            streams[1].transport.abort()


async def read_slowly(port: int, tokens: int, seconds: float) -> int:
    """Ask for a large answer and take SLOW_BYTES_PER_S of it; returns the bytes that came."""
    loop = asyncio.get_running_loop()
    until_s, got = loop.time() + seconds, 0
    with socket.socket() as sock:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await loop.sock_connect(sock, ("127.0.0.1", port))
        await loop.sock_sendall(sock, request(max_tokens=tokens))
        while loop.time() < until_s:
            async with asyncio.timeout(HANG_S):
                piece = await loop.sock_recv(sock, SLOW_BYTES_PER_S)
            if not piece:
                raise ConnectionError("the answer ended before its end")
            got += len(piece)
            await asyncio.sleep(len(piece) / SLOW_BYTES_PER_S)
    return got
