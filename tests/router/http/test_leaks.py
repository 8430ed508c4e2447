"""After any mixture of outcomes, everything is back where it began.

Report 3 (production-stack#1072, #707): leaked counters and dicts until OOM.
"""

import asyncio
import contextlib
import gc
import logging
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from data_plane import BY_LOAD, Plane, data_plane, eventually
from raw_client import Client, CutError, request
from scripted_backend import (
    LAST_CHUNK,
    Backend,
    Call,
    Script,
    chunk,
    chunked_head,
    head,
    refusing_url,
    response,
)
from ullage_router.config import Limits, RetryPolicy
from ullage_router.core.breaker import BreakerPolicy
from ullage_router.http.downstream import Downstream
from ullage_router.http.exchange import Exchange
from ullage_router.http.request import RequestReader
from ullage_router.http.response import ResponseReader
from ullage_router.http.upstream import Upstream

OWN = (Downstream, Exchange, RequestReader, ResponseReader, Upstream)
AT_ONCE = 50
ENDS_WITHIN_S = 10.0
GROWN_AT_MOST = 50
"""Objects of one type, over thousands of outcomes: none must stay for each."""
GROWN_AT_MOST_BYTES = 40_000
RULES = BY_LOAD._replace(breaker=BreakerPolicy(set_aside_s=0.0, max_ejected_share=0.0))
"""Nobody is left out, whatever he does."""
LIMITS = Limits(
    max_head_bytes=2048,
    max_body_bytes=10_000,
    head_timeout_s=0.1,
    body_timeout_s=0.1,
    idle_client_s=0.1,
    stalled_client_s=0.5,
    first_byte_timeout_s=0.6,
    idle_upstream_s=0.2,
)

# Replicas


async def waits(call: Call) -> None:
    await call.gone()


async def echoes(call: Call) -> None:
    while data := await call.reader.read(4096):
        await call.send(data)


End = Callable[[Call], Awaitable[None] | None] | None
STREAM = chunked_head() + chunk(b"data: 1\n\n")
REFUSAL = chunked_head() + chunk(b'data: {"error": {"message": "full", "code": 503}}\n\n')
SWITCHED = head(101, b"Switching", [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")])
SAID: dict[bytes, tuple[bytes, End]] = {
    b"/ok": (response(b"ok"), None),
    b"/404": (response(b"no", 404, b"Not Found"), None),
    b"/500": (response(b"no", 500, b"Oops"), None),
    b"/full": (response(b"no", 503, b"Full"), None),
    b"/full-event": (REFUSAL + LAST_CHUNK, None),
    b"/full-event-open": (REFUSAL, waits),
    b"/stream": (STREAM + chunk(b"data: 2\n\n") + LAST_CHUNK, None),
    b"/interim": (head(103, b"Early Hints", []) + response(b"ok"), None),
    b"/excess": (response(b"ok") + b"excess", None),
    b"/close": (b"", Call.close),
    b"/close-in-head": (b"HTTP/1.1 200 OK\r\nConte", Call.close),
    b"/reset": (b"", Call.reset),
    b"/garbage": (b"garbage\r\n\r\n", Call.close),
    b"/cut": (STREAM, Call.close),
    b"/cut-in-chunk": (STREAM + b"ff\r\nx", Call.reset),
    b"/until-close": (b"HTTP/1.1 200 OK\r\n\r\nok", Call.close),
    b"/hang": (b"", waits),
    b"/hang-in-head": (b"HTTP/1.1 200 OK\r\nConte", waits),
    b"/hang-mid-stream": (STREAM, waits),
    b"/upgrade": (SWITCHED, echoes),
}
"""What a replica says by target, and how it ends the connection then, if it does."""
NOT_OF_ONE = {b"/full": b"/ok", b"/full-event": b"/stream", b"/full-event-open": b"/stream"}
"""One of the replicas has room."""


def replica(*, has_room: bool) -> Script:
    async def script(call: Call) -> None:
        while True:
            target = (await call.read_request()).target
            said, end = SAID[NOT_OF_ONE.get(target, target) if has_room else target]
            await call.send(said)
            if end is not None:
                if (ending := end(call)) is not None:
                    await ending
                return

    return script


# Clients

ANSWERED = [t for t in SAID if not t.startswith((b"/hang-mid", b"/upgrade"))]
BROKEN = [
    b"garbage\r\n\r\n",
    request(headers=[(b"X", b"x" * 3000)]),
    request(headers=[(b"X", b"x")] * 200),
    request(body=b"x" * 20_000),
    b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
    request(b"/ok", b"late")[:-2],
    request(b"/ok", b"late")[:30],
    b"",
]
"""The last ones are not finished in time."""


async def asks(client: Client, rng: Random) -> None:
    await client.ask(request(rng.choice(ANSWERED), b"x" * rng.randrange(2000)))


async def keeps_on(client: Client, rng: Random) -> None:
    for _ in range(3):
        await client.ask(request(rng.choice([b"/ok", b"/404", b"/stream", b"/full"])))


async def speaks_1_0(client: Client, rng: Random) -> None:
    await client.ask(b"GET %s HTTP/1.0\r\n\r\n" % rng.choice([b"/ok", b"/stream", b"/cut"]))


async def pipelines(client: Client, rng: Random) -> None:
    await client.send(b"".join(request(rng.choice(ANSWERED)) for _ in range(4)))
    for _ in range(rng.randrange(5)):
        await client.answer()


async def leaves_in_request(client: Client, rng: Random) -> None:
    whole = request(b"/ok", b"x" * 100)
    await client.send(whole[: rng.randrange(len(whole))])


async def leaves_before_the_answer(client: Client, rng: Random) -> None:
    await client.send(request(rng.choice([b"/hang", b"/hang-in-head", b"/ok"])))
    await asyncio.sleep(rng.random() * 0.005)


async def leaves_mid_stream(client: Client, rng: Random) -> None:
    await client.send(request(b"/hang-mid-stream") * rng.choice([1, 1, 6]))
    await client.head()


async def leaves_half(client: Client, rng: Random) -> None:
    await client.send(request(rng.choice([b"/hang", b"/ok", b"/stream"])))
    client.writer.write_eof()
    await client.closed()


async def is_broken(client: Client, rng: Random) -> None:
    await client.ask(rng.choice(BROKEN))


async def upgrades(client: Client, rng: Random) -> None:
    wish = [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
    target = rng.choice([b"/upgrade", b"/upgrade", b"/ok", b"/close"])
    await client.send(request(target, headers=wish) + b"early" * (target == b"/upgrade"))
    if target != b"/upgrade":
        await client.answer()
    elif (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 "):
        assert await client.reader.readexactly(5) == b"early"
    else:
        raise CutError  # A busy machine's replica took longer than a first byte may.


KINDS = [
    *(asks, asks, asks, keeps_on, speaks_1_0, pipelines, is_broken, upgrades, leaves_in_request),
    *(leaves_before_the_answer, leaves_mid_stream, leaves_half),
]


async def one_outcome(plane: Plane, rng: Random) -> str:
    """Provoke one outcome; its name."""
    client, kind = await Client.connect(plane.address), rng.choice(KINDS)
    name = kind.__name__
    try:
        async with asyncio.timeout(ENDS_WITHIN_S):
            await kind(client, rng)
    except (CutError, ConnectionError):
        name += ", was cut"
    client.reset() if rng.random() < 0.5 else client.close()
    return name


# What is left


def sockets() -> int:
    count = 0
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # The folder's own.
            count += str(file.readlink()).startswith("socket:")
    return count


async def settled(plane: Plane, replicas: tuple[Backend, ...]) -> None:
    """Wait until nothing is under way any more."""
    await eventually(lambda: not plane.proxy.clients)
    await eventually(lambda: not plane.proxy.pool._idle)
    await eventually(lambda: not any(replica.open for replica in replicas))
    assert repr(plane.router.in_flight) == "InFlight(0: {})"


def objects() -> Counter[str]:
    """How many there are of each type."""
    gc.collect()
    return Counter(type(o).__qualname__ for o in gc.get_objects())


def held() -> int:
    """Bytes in use; without asyncio's table of tasks, whose size follows its own law."""
    others = tracemalloc.Filter(inclusive=False, filename_pattern="*/_weakrefset.py")
    traces = tracemalloc.take_snapshot().filter_traces([others])
    return sum(trace.size for trace in traces.traces)


def forget_decisions(plane: Plane) -> None:
    """They are bounded, but hold pictures of a fleet that keeps changing here."""
    plane.router.recent.clear()
    plane.router._among_many.clear()
    plane.router._numbers = 0


async def some(plane: Plane, ports: tuple[int, int], rng: Random, outcomes: int) -> Counter[str]:
    """That many outcomes, with replicas that come and go; how many there were of each."""
    seen: Counter[str] = Counter()
    async with (
        Backend(replica(has_room=False), ports[0]) as a,
        Backend(replica(has_room=True), ports[1]) as b,
    ):

        async def client() -> None:
            for _ in range(outcomes // AT_ONCE):
                seen[await one_outcome(plane, rng)] += 1

        await asyncio.gather(*(client() for _ in range(AT_ONCE)))
        await settled(plane, (a, b))
    return seen


@pytest.mark.slow
@pytest.mark.alone
async def test_after_ten_thousand_outcomes_everything_is_back_where_it_began(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "ullage.router")  # pytest would keep every line.
    rng = Random(11)
    urls = (refusing_url(), refusing_url(), refusing_url())
    ports = (int(urls[0].rpartition(":")[2]), int(urls[1].rpartition(":")[2]))
    async with data_plane(*urls, limits=LIMITS, rules=RULES) as plane:
        plane.proxy.budget.policy = RetryPolicy(share=1.0, spare=1_000_000)
        await some(plane, ports, rng, AT_ONCE)  # What is made once, is made now.
        gc.collect()
        before = (sockets(), len(asyncio.all_tasks()))
        seen = await some(plane, ports, rng, 5_000)
        tracemalloc.start()  # It doubles the time.
        try:
            seen += await some(plane, ports, rng, 1_000)
            forget_decisions(plane)
            counts = objects()
            before_bytes = held()
            seen += await some(plane, ports, rng, 4_000)
            assert len(plane.router.recent) <= 256
            forget_decisions(plane)
            grown = objects() - counts
            grown_bytes = held() - before_bytes
        finally:
            tracemalloc.stop()

        assert len(seen) >= len(set(KINDS)) + 3, seen
        assert (sockets(), len(asyncio.all_tasks())) == before
        left = Counter(type(o).__name__ for o in gc.get_objects() if isinstance(o, OWN))
        assert not left
        assert plane.router.tallies.keys() <= set(urls)
        assert not {name: n for name, n in grown.items() if n > GROWN_AT_MOST}
        assert grown_bytes < GROWN_AT_MOST_BYTES
