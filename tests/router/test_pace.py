"""When the table may change: by itself, and with many who push at once."""

import asyncio
from contextlib import AsyncExitStack
from itertools import pairwise
from random import Random

import aiohttp

from data_plane import eventually
from scripted_backend import Backend, Call, chunk, chunked_head
from snapshots import document, snapshot
from ullage_router.core.fleet import Fleet, fleet_of
from ullage_router.core.rules import Rules
from ullage_router.feed import SidecarFeed
from ullage_router.pace import EVERY_S, PER_REPLICA_S, Pace
from ullage_router.router import Router
from ullage_shared.snapshot import LINES_TYPE, encode


async def test_the_first_goes_at_once_and_those_behind_it_together() -> None:
    pace, loop = Pace(), asyncio.get_running_loop()
    gone: list[float] = []

    async def go() -> None:
        await pace.turn(1)
        gone.append(loop.time())

    began_s = loop.time()
    await asyncio.gather(*(go() for _ in range(20)))
    assert gone[0] - began_s < EVERY_S / 2.0
    assert gone[1] - gone[0] >= EVERY_S - 0.002  # A timer of uvloop is as fine as a millisecond.
    assert gone[-1] - gone[1] < EVERY_S / 2.0
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


class Noted(Router):
    """A router that notes when its table changes."""

    @property
    def fleet(self) -> Fleet:
        return super().fleet

    @fleet.setter
    def fleet(self, fleet: Fleet) -> None:
        changed_s.append(asyncio.get_running_loop().time())
        Router.fleet.fset(self, fleet)


changed_s: list[float] = []
TOGETHER_S = 0.005
"""What lies no further apart was one round of the loop."""


async def test_what_many_push_changes_the_table_once_per_turn() -> None:
    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(chunked_head([(b"Content-Type", LINES_TYPE.encode())]))
        for seq in range(20):
            text = encode(document(snapshot(f"http://10.0.0.1:{call._backend.port}", seq=seq)))
            await call.send(chunk(text + b"\n"))
            await asyncio.sleep(0.01)
        await call.gone()

    changed_s.clear()
    router = Noted(fleet_of([]), Rules(), Random(1))
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        pace, tasks = Pace(), []
        for _ in range(8):
            backend = await stack.enter_async_context(Backend(script))
            feed = SidecarFeed(router, session, backend.url, pace)
            tasks.append(asyncio.ensure_future(feed.run(60.0)))
        await eventually(lambda: len(changed_s) >= 50)
        assert len(router.fleet.replicas) == 8
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    turns = [changed_s[0]]
    turns += [later for before, later in pairwise(changed_s) if later - before > TOGETHER_S]
    most = (changed_s[-1] - changed_s[0]) / EVERY_S + 2.0
    assert len(turns) <= 1.5 * most  # A busy machine tears a turn apart.
    assert len(changed_s) > 3 * len(turns)
