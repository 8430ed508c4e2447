"""`GET /v1/steps?seconds=N`: what the plugins say, byte for byte, to whoever asks, for so long.

The answer is the plugins' own channel (see `channel`): whole datagrams, each with its version and
its length, one behind the other. Each sender says who it is every second, and its steps are
numbered: a gap is what is missing. `ullage-tune record` writes it to a file, `curl` does too.

Rules
* While nobody asks, a look costs one test more. While somebody does, what was heard is handed on as
  it is; nothing is written on this node, and vLLM does nothing more.
* Who takes too little loses what comes beyond `WAITING_BYTES`, and nobody waits for him.
* An answer ends after `seconds`, 60 if not said, `MOST_S` at most; no more than `MOST` at a time.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from ullage_shared.watch import say_goodbye
from ullage_sidecar.channel import DatagramError, whole

PATH: Final = "/v1/steps"
MOST: Final = 4
USUAL_S: Final = 60
MOST_S: Final = 3600
WAITING_BYTES: Final = 1 << 20
"""Held for one that is slow: ten thousand steps."""


@dataclass(slots=True)
class Recorded:
    """What became of those who record."""

    now: int = 0
    refused: int = 0
    """Too many at a time."""
    lost_bytes: int = 0
    """Not handed on: they were too slow."""


def seconds(query: Mapping[str, str]) -> int:
    """For how long. Raises `ValueError`, whose words are for who asks."""
    text = query.get("seconds", str(USUAL_S))
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else 0
    if not 1 <= value <= MOST_S:
        raise ValueError(f"seconds = {text!r}: wanted a whole number from 1 to {MOST_S}")
    return value


class Recording:
    """What waits for one who records."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self.transport = transport
        self.woken = asyncio.Event()
        self._parts: list[bytes] = []
        self._bytes = 0

    def add(self, datagrams: bytes) -> bool:
        """Keep them until they are taken. False: there is no room."""
        if self._bytes + len(datagrams) > WAITING_BYTES:
            return False
        self._parts.append(datagrams)
        self._bytes += len(datagrams)
        self.woken.set()
        return True

    def take(self) -> bytes:
        """All that waits."""
        taken, self._parts, self._bytes = b"".join(self._parts), [], 0
        self.woken.clear()
        return taken


class Recorder:
    """All who record, and what is handed to them."""

    def __init__(self, counts: Recorded) -> None:
        self._counts = counts
        self._recordings: list[Recording] = []
        self._closed = False

    def hear(self, datagrams: bytes) -> None:
        """Hand on what has come, unless it is no datagram: behind one nothing could be read."""
        if not self._recordings or not _is_whole(datagrams):
            return
        for recording in self._recordings:
            if not recording.add(datagrams):
                self._counts.lost_bytes += len(datagrams)

    def close(self) -> None:
        """Let all of them go; at once those that take nothing."""
        self._closed = True
        for recording in self._recordings:
            recording.woken.set()
            if recording.transport.get_write_buffer_size():
                recording.transport.abort()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Serve one until its time is up, it goes, or `close` is called."""
        try:
            for_s = seconds(request.query)
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
        if len(self._recordings) >= MOST or self._closed:
            self._counts.refused += 1
            return web.Response(status=503, text=f"wanted no more than {MOST} at a time\n")
        headers = {"Content-Type": "application/octet-stream", "Cache-Control": "no-store"}
        response = web.StreamResponse(headers=headers)
        response.force_close()
        transport = request.transport
        if request.method == "HEAD" or transport is None:
            return response
        transport.set_write_buffer_limits(high=0)
        with contextlib.suppress(ConnectionError), self._recording(transport) as recording:
            await response.prepare(request)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(for_s):
                    await self._hand_on(request, response, recording)
            await say_goodbye(response, transport)
        return response

    @contextlib.contextmanager
    def _recording(self, transport: asyncio.WriteTransport) -> Iterator[Recording]:
        recording = Recording(transport)
        self._recordings.append(recording)
        self._counts.now = len(self._recordings)
        try:
            yield recording
        finally:
            self._recordings.remove(recording)
            self._counts.now = len(self._recordings)

    async def _hand_on(
        self, request: web.Request, response: web.StreamResponse, recording: Recording
    ) -> None:
        while not self._closed:
            await recording.woken.wait()
            if datagrams := recording.take():
                await response.write(datagrams)
                await request.writer.drain()


def _is_whole(datagrams: bytes) -> bool:
    try:
        return whole(datagrams) == len(datagrams)
    except DatagramError:
        return False
