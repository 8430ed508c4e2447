"""Two aggregators over the same sidecars, for safety: one dies, or hangs, and nothing is missing.

The aggregators are processes; sidecars and router are in this one.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from aggregators import Process, aggregator_process
from data_plane import eventually
from serving import Serving, serving
from sidecar_stand_in import SidecarStandIn
from snapshots import document, snapshot
from ullage_router.config import Config
from ullage_router.core.lineup import Standing, stand

pytestmark = pytest.mark.slow

URLS = [f"http://127.0.0.1:{port}" for port in (1, 2, 3)]
LOOK_S = 4.0
"""Longer than a snapshot takes to become stale, and a watch to be given up."""


@dataclass
class Site:
    router: Serving
    aggregators: list[Process]

    @property
    def fleet(self):
        return self.router.service._router.fleet

    @property
    def sources(self) -> Counter[str | None]:
        return Counter(replica.source for replica in self.fleet.replicas.values())

    async def stays_whole(self) -> None:
        """For a while, at every look: each replica is there, once, and fresh."""
        router = self.router.service._router
        loop = asyncio.get_running_loop()
        end_s = loop.time() + LOOK_S
        while loop.time() < end_s:
            now_s = router.now_s()
            standings = {
                replica.url: stand(replica, now_s, router.rules.choose)
                for replica in router.fleet.replicas.values()
            }
            assert standings == dict.fromkeys(URLS, Standing.ELIGIBLE)
            await asyncio.sleep(0.02)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        words: list[str] = []
        for number, url in enumerate(URLS):
            published = document(snapshot(url, id=f"gpu-{number}/vllm"))
            sidecar = await stack.enter_async_context(SidecarStandIn(published))
            words += ["--sidecar", sidecar.url]
        aggregators = [
            await stack.enter_async_context(aggregator_process(*words, "--node", name))
            for name in ("agg-1", "agg-2")
        ]
        config = Config(sidecars=tuple(each.url for each in aggregators))
        yield Site(await stack.enter_async_context(serving(config)), aggregators)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_one_is_gone_and_the_other_goes_on_without_a_gap(site: Site, number: int) -> None:
    """One that hangs holds its connections, and says nothing."""
    ((speaks, count),) = site.sources.items()
    assert count == len(URLS)
    (dies,) = (each for each in site.aggregators if each.url == speaks)
    (lives,) = (each for each in site.aggregators if each.url != speaks)
    dies.process.send_signal(number)
    await site.stays_whole()
    assert site.sources == {lives.url: len(URLS)}
    page = await site.router.page("/replicas")
    assert [row["url"] for row in page["sidecars"] if row["problem"]] == [dies.url]
    if number == signal.SIGSTOP:
        dies.process.send_signal(signal.SIGCONT)
        feeds = site.router.service._feeds
        await eventually(lambda: not feeds[dies.url].failing)
        await asyncio.sleep(0.5)
        assert site.sources == {lives.url: len(URLS)}, "it does not take them back"
