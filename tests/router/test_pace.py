"""When the table may change: by itself, and with many who push at once."""

import asyncio
from contextlib import AsyncExitStack
from random import Random

import aiohttp
import pytest

from data_plane import eventually
from scripted_backend import Backend, Call, chunk, chunked_head
from snapshots import document, snapshot
from ullage_router.core.fleet import fleet_of
from ullage_router.core.rules import Rules
from ullage_router.feed import SidecarFeed
from ullage_router.pace import EVERY_S, PER_REPLICA_S, Pace
from ullage_router.router import Router
from ullage_shared.snapshot import LINES_TYPE, encode


async def test_the_first_does_not_wait() -> None:
    with pytest.raises(StopIteration):
        Pace().turn(1).send(None)


async def test_those_behind_the_first_go_together() -> None:
    pace, loop = Pace(), asyncio.get_running_loop()
    gone: list[float] = []

    async def go() -> None:
        await pace.turn(1)
        gone.append(loop.time())

    await asyncio.gather(*(go() for _ in range(20)))
    assert gone[1] - gone[0] >= EVERY_S - 0.002  # A timer of uvloop is as fine as a millisecond.
    assert gone[-1] - gone[1] < 5.0 * EVERY_S  # One by one it would be 18 turns.
    await go()
    assert gone[-1] - gone[-2] >= EVERY_S / 2.0


async def test_a_large_fleet_changes_less_often() -> None:
    pace, loop = Pace(), asyncio.get_running_loop()
    await pace.turn(600)
    began_s = loop.time()
    await pace.turn(600)
    assert loop.time() - began_s >= 600 * PER_REPLICA_S - 0.002


async def test_one_who_is_cancelled_keeps_nobody_from_going() -> None:
    pace = Pace()
    await pace.turn(1)
    waiting = [asyncio.ensure_future(pace.turn(1)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(end) for end in ended] == [asyncio.CancelledError, type(None), type(None)]
    await pace.turn(1)


async def test_what_many_push_waits_for_its_turn_and_comes_together() -> None:
    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(chunked_head([(b"Content-Type", LINES_TYPE.encode())]))
        text = encode(document(snapshot(f"http://10.0.0.1:{call._backend.port}")))
        await call.send(chunk(text + b"\n"))
        told.append(call)
        await call.gone()

    told: list[Call] = []
    router, pace = Router(fleet_of([]), Rules(), Random(1)), Pace()
    await pace.turn(1_000_000)  # One that no test waits for.
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        tasks = []
        for _ in range(8):
            backend = await stack.enter_async_context(Backend(script))
            feed = SidecarFeed(router, session, backend.url, pace)
            tasks.append(asyncio.ensure_future(feed.run(60.0)))
        await eventually(lambda: len(told) == 8)
        await asyncio.sleep(0.03)
        assert not router.fleet.replicas
        pace._open.set()
        while not router.fleet.replicas:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert len(router.fleet.replicas) == 8
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
