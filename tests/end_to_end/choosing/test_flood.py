"""A flood over two real vLLM servers is queued or refused in time."""

import asyncio
import contextlib
import os
import random
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import aiohttp
import pytest

from routed_pair import CHAT, Pair, Reply, Router, chat, post, words
from vllm_cpu.serve import CpuServer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


def give_way(server: CpuServer) -> None:
    """Where vLLM computes on GPUs it takes no CPU from the router. Here it has to be told.

    Once, for good: nobody may raise his priority again. Where the kernel shares the CPU by session
    (autogroup), a priority counts within one only.
    """
    os.setpriority(os.PRIO_PGRP, server.pid, 5)
    with contextlib.suppress(OSError):
        Path(f"/proc/{server.pid}/autogroup").write_text("5")


class Watch:
    """What was seen while it lasted."""

    def __init__(self, pair: Pair, router: Router) -> None:
        self.peak_mb = 0.0
        """Of the router."""
        self.deepest = 0
        """Most requests that waited in one server."""
        self.own_lag_s = 0.0
        """How late this process was, at worst."""
        self._pair = pair
        self._router = router

    async def _look(self) -> None:
        while True:
            self.peak_mb = max(self.peak_mb, self._router.rss_mb())
            for name in self._pair.servers:
                self.deepest = max(self.deepest, (await self._pair.snapshot(name))["waiting"] or 0)
            await asyncio.sleep(0.1)

    async def _tick(self) -> None:
        while True:
            slept_s = perf_counter()
            await asyncio.sleep(0.01)
            self.own_lag_s = max(self.own_lag_s, perf_counter() - slept_s - 0.01)

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(each) for each in (self._look(), self._tick())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def flood(router: Router, bodies: Sequence[dict[str, Any]]) -> list[Reply]:
    """200 requests a second, each on a connection of its own."""
    timeout = aiohttp.ClientTimeout(total=120.0)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:

        async def send(number: int, body: dict[str, Any]) -> Reply:
            await asyncio.sleep(number * 0.005)
            return await post(http, router.url + CHAT, body)

        return await asyncio.gather(*(send(n, body) for n, body in enumerate(bodies)))


TOKENS = 60
"""Of each answer of the flood: so that some end, and make room, within the 2 s of the queue."""


async def test_a_flood_is_queued_or_refused_in_time_and_nothing_is_lost(pair: Pair):
    rng = random.Random(7)
    bodies = [chat(words(rng, 30), max_tokens=TOKENS) for _ in range(200)]
    for server in pair.servers.values():
        give_way(server)
    async with pair.router("[queue]\nmax_requests = 100\n") as router:
        for _ in range(20):
            assert (await router.chat(chat(words(rng, 30)))).status == 200
        before, rss_mb = await router.metrics(), router.rss_mb()
        async with Watch(pair, router) as watch:
            replies = await flood(router, bodies)

        served = [reply for reply in replies if reply.status == 200]
        refused = [reply for reply in replies if reply.status == 503]
        assert len(served) + len(refused) == 200
        assert {r.content["usage"]["completion_tokens"] for r in served} == {TOKENS}
        assert {r.content["error"]["code"] for r in refused} == {"no_capacity"}

        async def calm() -> bool:
            return (await router.metrics()).sum("ullage_router_overload", state="open") == 1.0

        await pair.until("the overload is over", calm, within_s=15.0)
        after = await router.metrics()

        def more(name: str, **labels: str) -> float:
            name = f"ullage_router_{name}"
            return after.sum(name, **labels) - before.sum(name, **labels)

        at_once, waited = (more("no_capacity_total", how=h) for h in ("full_queue", "waited"))
        queued = more("queued_total")
        longest_s = max(reply.took_s for reply in refused)
        told_s = sorted(int(reply.retry_after) for reply in refused)
        print(f"200 within 1 s: {len(served)} served, the last after "
              f"{max(r.took_s for r in served):.1f} s; {queued:.0f} queued, {queued - waited:.0f} "
              f"of them then served; {at_once:.0f} refused at once, {waited:.0f} after a wait, the "
              f"last after {longest_s:.2f} s (this client was late by up to {watch.own_lag_s:.2f} "
              f"s itself); Retry-After {told_s[0]} to {told_s[-1]} s; at most {watch.deepest} "
              f"waiting in one server; router's memory {rss_mb:.1f} MB before, "
              f"{watch.peak_mb:.1f} at most, {router.rss_mb():.1f} after")  # fmt: skip
        assert at_once > 0
        assert 0 < waited < queued
        assert at_once + waited == more("no_capacity_total") == len(refused)
        assert more("refusals_total", code="no_capacity") == len(refused)
        assert more("responses_total", code="200") == more("dispatched_total") == len(served)
        # The router is as late as the machine is: the servers compute on the CPUs it needs.
        rang = "event_loop_lateness_seconds"
        in_time = more(f"{rang}_bucket", le="0.025") == more(f"{rang}_count")
        if in_time:
            assert more("queue_wait_seconds_bucket", le="2.1") == queued
        bar_s = 2.1 if in_time else 2.5
        assert longest_s <= bar_s + 2 * watch.own_lag_s  # Late to send, and late to read.
        assert 1 <= told_s[0] <= told_s[-1] <= 30
        for gauge in ("queue_length", "queue_bytes", "in_flight"):
            assert after.sum(f"ullage_router_{gauge}") == 0
        assert more("overloads_total") == 1
        assert len(router.said("overload_began")) == len(router.said("overload_ended")) == 1
        assert router.rss_mb() < rss_mb + 6.0
        assert watch.peak_mb < rss_mb + 12.0
