"""Many sidecars in one process, each at a port of its own: `many_sidecars.py NUMBER CHANGES_PER_S`.

Prints its ports as JSON, then serves until it is killed. Each speaks for one replica, and pushes
as a real one does: at the interval that was asked for, and at a change, but never two lines within
the spacing that was asked for. `ts` of a line is this machine's monotonic clock: whoever reads it
on the same machine knows how old what it has really is. The replicas are one port at many addresses
of the loopback, which says that it serves no model.

The HTTP is the least that our own feeds read; nobody else would get on with it.
"""

import asyncio
import json
import random
import re
import sys
import time
from functools import partial
from typing import cast

import msgspec
import uvloop

from snapshots import document, snapshot
from ullage_shared.snapshot import INTERVAL, LINES_TYPE, SPACING, encode

HEAD = (
    f"HTTP/1.1 200 OK\r\nContent-Type: {LINES_TYPE}\r\nTransfer-Encoding: chunked\r\n\r\n"
).encode()


NO_MODELS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 12\r\n"
    b'Connection: close\r\n\r\n{"data": []}'
)


class Replica(asyncio.Protocol):
    """Whatever it is asked, it serves no model."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, _: bytes) -> None:
        self._transport.write(NO_MODELS)
        self._transport.close()


class Watched(asyncio.Protocol):
    """One connection to one sidecar."""

    def __init__(self, number: int, changes_per_s: float, replicas_port: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._number = number
        self._rate = changes_per_s
        self._dice = random.Random(number)
        url = f"http://127.{1 + (number >> 8)}.{number & 255}.1:{replicas_port}"
        self._said = snapshot(url, id=f"gpu-{number:04d}/vllm", models=())
        self._seq = time.monotonic_ns() // 1_000_000
        self._timer: asyncio.TimerHandle | None = None
        self._change: asyncio.TimerHandle | None = None
        self._sent_s = self._due_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        wanted = dict(re.findall(r"(\w+_ms)=(\d+)", data.decode()))
        self._interval_s = int(wanted[INTERVAL]) / 1000.0
        self._spacing_s = int(wanted.get(SPACING, 20)) / 1000.0
        self._transport.write(HEAD)
        self._push()
        self._plan()

    def connection_lost(self, _: Exception | None) -> None:
        for handle in (self._timer, self._change):
            if handle is not None:
                handle.cancel()

    def _plan(self) -> None:
        delay_s = self._dice.expovariate(self._rate) if self._rate else 3600.0
        self._change = self._loop.call_later(delay_s, self._moved)

    def _moved(self) -> None:
        self._plan()
        at_s = max(self._sent_s + self._spacing_s, self._loop.time())
        if self._timer is not None and at_s < self._due_s:
            self._timer.cancel()
            self._push_at(at_s)

    def _push_at(self, at_s: float) -> None:
        self._due_s = at_s
        self._timer = self._loop.call_at(at_s, self._push)

    def _push(self) -> None:
        self._seq += 1
        now_s = self._loop.time()
        score = round(self._dice.random(), 4)
        self._said = msgspec.structs.replace(
            self._said, capacity_score=score, seq=self._seq, ts=time.monotonic()
        )
        body = encode(document(self._said, node=f"gpu-{self._number:04d}")) + b"\n"
        self._transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        self._sent_s = now_s
        self._push_at(now_s + self._interval_s)


async def main(number: int, changes_per_s: float) -> None:
    loop = asyncio.get_running_loop()
    replicas = await loop.create_server(Replica, "0.0.0.0", 0)
    replicas_port = replicas.sockets[0].getsockname()[1]
    ports = []
    for each in range(number):
        one = partial(Watched, each, changes_per_s, replicas_port)
        server = await loop.create_server(one, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
    print(json.dumps(ports), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), float(sys.argv[2])))
