"""Many clients at once: each gets its own answer, and nobody waits for somebody else's trouble."""

import asyncio
from time import perf_counter

from conformance.play import Play, sentinel
from conformance.promise import (
    ASK_STREAM,
    CHAT,
    Row,
    Wrong,
    chunk,
    event,
    head,
    post,
    reply,
    says,
    stream,
)
from conformance.replica import Call
from conformance.wire import Wire

SOON_S = 1.0
HANGS = b"hang, please"
ASK_HANGING = b'{"model":"tiny","messages":[{"role":"user","content":"%s"}]}' % HANGS
PROMPT = b'{"model":"tiny","messages":[{"role":"user","content":"%s"}]}' % (b"word " * 200_000)
UNFINISHED = head(b"POST %s HTTP/1.1" % CHAT, b"Host: router.test", b"Content-Length: 5000")


async def hangs_if_asked_to(call: Call) -> None:
    if HANGS in call.request.body:
        await call.gone()
    else:
        await call.send(reply())


async def streams_without_end(call: Call) -> None:
    try:
        await call.send(stream())
        while True:
            await call.send(chunk(event(1) * 200))
    except ConnectionError:
        return


async def one_more(play: Play) -> None:
    """A plain request of another client: its own answer, soon."""
    began_s = perf_counter()
    async with await Wire.connect(play.port) as wire:
        if wrong := await sentinel(wire):
            raise Wrong(wrong)
    if (took_s := perf_counter() - began_s) > SOON_S:
        raise Wrong(f"another client waited {took_s:.1f} s")


async def fifty_at_once(play: Play) -> None:
    await asyncio.gather(*(one_more(play) for _ in range(50)))


async def fifty_in_turn_on_ten_connections(play: Play) -> None:
    async def client() -> None:
        async with await Wire.connect(play.port) as wire:
            for _ in range(5):
                if wrong := await sentinel(wire):
                    raise Wrong(wrong)

    await asyncio.gather(*(client() for _ in range(10)))


async def beside(play: Play, sent: bytes, count: int, *, reading: bool = True) -> None:
    """So many connections that have sent this; then ten clients in turn."""
    others = [await Wire.connect(play.port) for _ in range(count)]
    try:
        for other in others:
            if not reading:
                other.pause()
            await other.send(sent)
        await asyncio.sleep(0.1)
        for _ in range(10):
            await one_more(play)
    finally:
        for other in others:
            other.reset()
        await asyncio.sleep(0.05)


async def beside_hanging_ones(play: Play) -> None:
    await beside(play, post(ASK_HANGING), 20)


async def beside_unfinished_ones(play: Play) -> None:
    await beside(play, UNFINISHED + b"{", 100)


async def beside_one_that_does_not_read(play: Play) -> None:
    await beside(play, post(ASK_STREAM), 1, reading=False)


async def beside_long_prompts(play: Play) -> None:
    async def ask_long() -> None:
        async with await Wire.connect(play.port) as wire:
            await wire.send(post(PROMPT))
            if (answer := await wire.answer(within_s=10.0)).status != 200:
                raise Wrong(answer.flaw or f"status {answer.status}")

    asking = [asyncio.ensure_future(ask_long()) for _ in range(8)]
    for _ in range(10):
        await one_more(play)
    await asyncio.gather(*asking)


ROWS = (
    Row(
        name="Fifty clients at once: each gets the answer to its own question.",
        source="RFC 9112 §9.3: answers must not be mixed",
        sends=fifty_at_once,
        replica=says(reply()),
    ),
    Row(
        name="Connections that carry request after request side by side mix no answers.",
        source="RFC 9112 §9.3",
        sends=fifty_in_turn_on_ten_connections,
        replica=says(reply()),
    ),
    Row(
        name="Twenty requests that a replica never answers stall nobody else.",
        source="report 19 (production-stack#749): one hung backend stalls the others",
        sends=beside_hanging_ones,
        replica=hangs_if_asked_to,
    ),
    Row(
        name="A hundred clients that never finish their request stall nobody else.",
        source="report 19; Slowloris",
        sends=beside_unfinished_ones,
        replica=says(reply()),
    ),
    Row(
        name="A client that reads nothing of its stream stalls nobody else.",
        source="report 19",
        sends=beside_one_that_does_not_read,
        replica=streams_without_end,
    ),
    Row(
        name="Eight prompts of 1 MB stall nobody else.",
        source="report 25 (GIE#2928, dynamo#9466): long prompts block the loop",
        sends=beside_long_prompts,
        replica=says(reply()),
    ),
)
