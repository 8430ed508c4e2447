"""After any mixture of outcomes, everything is back where it began.

Report 3 (production-stack#1072, #707): leaked counters and dicts until OOM.
"""

import asyncio
import gc
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from data_plane import Plane, data_plane, eventually
from raw_client import Client, CutError, request
from scripted_backend import (
    LAST_CHUNK,
    Backend,
    Call,
    chunk,
    chunked_head,
    refusing_url,
    response,
)
from ullage_router.config import Limits, Policy
from ullage_router.http.downstream import Downstream
from ullage_router.http.exchange import Exchange
from ullage_router.http.request import RequestReader
from ullage_router.http.response import ResponseReader
from ullage_router.http.upstream import Upstream

OWN = (Downstream, Exchange, RequestReader, ResponseReader, Upstream)


async def waits(call: Call) -> None:
    await call.gone()


STREAM = chunked_head() + chunk(b"1")
SAID: dict[bytes, tuple[bytes, Callable[[Call], Awaitable[None] | None] | None]] = {
    b"/ok": (response(b"ok"), None),
    b"/404": (response(b"no", 404, b"Not Found"), None),
    b"/500": (response(b"no", 500, b"Oops"), None),
    b"/stream": (STREAM + chunk(b"2") + LAST_CHUNK, None),
    b"/excess": (response(b"ok") + b"excess", None),
    b"/close": (b"", Call.close),
    b"/reset": (b"", Call.reset),
    b"/garbage": (b"garbage\r\n\r\n", Call.close),
    b"/cut": (STREAM, Call.close),
    b"/until-close": (b"HTTP/1.1 200 OK\r\n\r\nok", Call.close),
    b"/hang": (b"", waits),
    b"/hang-mid-stream": (STREAM, waits),
}
"""What the replica sends by target, and how it ends the connection then, if it does."""


async def everything(call: Call) -> None:
    while True:
        said, end = SAID[(await call.read_request()).target]
        await call.send(said)
        if end is not None:
            if (ending := end(call)) is not None:
                await ending
            return


TARGETS = [target for target in SAID if not target.startswith(b"/hang")]
BROKEN = [
    b"garbage\r\n\r\n",
    request(headers=[(b"X", b"x" * 3000)]),
    request(body=b"x" * 20_000),
    b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
]


async def one_outcome(plane: Plane, rng: Random) -> str:
    """Provoke one outcome; its name."""
    client = await Client.connect(plane.address)
    kind = rng.choice(["asks", "asks", "asks", "pipelines", "leaves", "is broken", "keeps on"])
    try:
        if kind == "asks":
            await client.ask(request(rng.choice(TARGETS), b"x" * rng.randrange(2000)))
        elif kind == "keeps on":
            for _ in range(3):
                await client.ask(request(rng.choice([b"/ok", b"/404", b"/stream"])))
        elif kind == "pipelines":
            await client.send(b"".join(request(rng.choice(TARGETS)) for _ in range(4)))
            await client.answer()
        elif kind == "leaves":
            await client.send(request(rng.choice([b"/hang", b"/hang-mid-stream", b"/ok"])))
            await asyncio.sleep(rng.random() * 0.005)
        else:
            await client.ask(rng.choice(BROKEN))
    except (CutError, ConnectionError):
        kind += ", was cut"
    client.reset() if rng.random() < 0.5 else client.close()
    return kind


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.mark.parametrize("outcomes", [500, pytest.param(2_000, marks=pytest.mark.slow)])
async def test_after_mixed_outcomes_everything_is_back_where_it_began(outcomes: int) -> None:
    rng = Random(11)
    limits = Limits(max_head_bytes=2048, max_body_bytes=10_000, idle_upstream_s=0.2)
    policy = Policy(set_aside_s=0.0)
    async with Backend(everything) as a, Backend(everything) as b:
        urls = (a.url, b.url, refusing_url())
        async with data_plane(*urls, limits=limits, policy=policy) as plane:
            await one_outcome(plane, Random(1))  # What is made once, is made now.
            await eventually(lambda: not plane.proxy.clients and not plane.proxy.pool.idle)
            gc.collect()
            fds, tasks = open_fds(), len(asyncio.all_tasks())

            seen: Counter[str] = Counter()
            for _ in range(outcomes // 25):
                seen.update(await asyncio.gather(*(one_outcome(plane, rng) for _ in range(25))))
            assert len(seen) >= 6, seen

            await eventually(lambda: not plane.proxy.clients)
            await eventually(lambda: not plane.proxy.pool.idle)
            await eventually(lambda: not a.open and not b.open)
            assert repr(plane.router.in_flight) == "InFlight(0: {})"
            await eventually(lambda: not plane.proxy.pool._idle)
            assert plane.router.tallies.keys() <= set(urls)
            assert len(plane.router.recent) <= 256
            await eventually(lambda: len(asyncio.all_tasks()) <= tasks)
            await eventually(lambda: open_fds() <= fds)
            gc.collect()
            left = Counter(type(o).__name__ for o in gc.get_objects() if isinstance(o, OWN))
            assert not left
