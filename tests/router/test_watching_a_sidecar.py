"""A feed and a real sidecar process, between them a real socket: what neither can show alone."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import aiohttp
import pytest

from data_plane import eventually
from scripted_backend import Backend, answering, response
from sidecar_process import Sidecar, hello, step
from ullage_router.core.fleet import fleet_of
from ullage_router.core.rules import Rules
from ullage_router.feed import SidecarFeed
from ullage_router.pace import Pace
from ullage_router.router import Router
from ullage_shared.feed import Poll
from ullage_sidecar.channel import Sender

pytestmark = pytest.mark.slow

LONG_S = 60.0
"""An interval that no test waits for."""


class Pair:
    """The two, and a fake engine."""

    def __init__(self, sidecar: Sidecar, feed: SidecarFeed, router: Router, url: str) -> None:
        self.sidecar, self.feed, self.router, self.url = sidecar, feed, router, url
        self.sender = Sender(str(sidecar.socket))
        self.seq = 0

    async def start(self) -> None:
        await self.sidecar.start("--engine", self.url)
        self.sender.close()
        self.sender = Sender(str(self.sidecar.socket))
        assert self.sender.connect()
        self.sender.send(hello(started_s=1.0))

    def step(self, running: int) -> None:
        self.seq += 1
        self.sender.send(step(self.seq, running=running))

    @property
    def running(self) -> int | None:
        replica = self.router.fleet.replicas.get(self.url)
        return replica.snapshot.running if replica and replica.snapshot else None


@pytest.fixture
async def pair(
    request: pytest.FixtureRequest, tmp_path: Path, unused_tcp_port: int
) -> AsyncIterator[Pair]:
    """Started, and watching; the parameter is the interval."""
    router = Router(fleet_of([]), Rules(), Random(1))
    sidecar = Sidecar(tmp_path, unused_tcp_port)
    async with (
        Backend(answering(response())) as engine,
        aiohttp.ClientSession() as session,
    ):
        feed = SidecarFeed(router, session, f"http://{sidecar.listen}", Pace())
        pair = Pair(sidecar, feed, router, engine.url)
        await pair.start()
        task = asyncio.ensure_future(feed.run(getattr(request, "param", LONG_S)))
        await eventually(lambda: feed.watching and engine.url in router.fleet.replicas)
        yield pair
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        pair.sender.close()
        if sidecar.process.returncode is None:
            await sidecar.stop(signal.SIGKILL)


async def test_a_step_is_in_the_table_within_a_tenth_of_a_second(pair: Pair) -> None:
    for running in (1, 5, 8, 0):
        await asyncio.sleep(0.05)
        sent_s = time.monotonic()
        pair.step(running)
        await eventually(lambda now=running: pair.running == now)
        assert time.monotonic() - sent_s < 0.1


async def test_a_drained_server_is_chosen_no_more_within_a_tenth_of_a_second(pair: Pair) -> None:
    pair.step(1)
    await eventually(lambda: pair.router.breathing(None) == 1)
    await asyncio.sleep(0.05)
    async with (
        aiohttp.UnixConnector(f"{pair.sidecar.socket}.control") as operator,
        aiohttp.ClientSession(connector=operator) as session,
    ):
        drained_s = time.monotonic()
        async with session.post("http://sidecar/drain") as answer:
            assert answer.status == 200
        await eventually(lambda: pair.router.breathing(None) == 0)
        assert time.monotonic() - drained_s < 0.1


@pytest.mark.parametrize("pair", [0.1], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_sidecar_that_restarts_is_watched_again(pair: Pair, number: int) -> None:
    pair.step(3)
    await eventually(lambda: pair.running == 3)
    await pair.sidecar.stop(number)
    await eventually(lambda: not pair.feed.watching)
    assert pair.running == 3
    await pair.start()
    pair.step(7)
    await eventually(lambda: pair.running == 7)
    assert pair.feed.watching
    assert pair.feed.polls[Poll.INVALID] == 0
