"""Metrics are written in pieces, and read as if they had been written in one go."""

import asyncio
import time
from itertools import pairwise
from random import Random

import pytest
from prometheus_client.exposition import generate_latest

from snapshots import fleet_with
from ullage_router.config import Limits
from ullage_router.core.rules import Rules
from ullage_router.exposition import exposition
from ullage_router.http.proxy import Proxy
from ullage_router.metrics import RouterCollector
from ullage_router.router import Router


@pytest.fixture
async def collector():
    """A router of 32 replicas that has counted something."""
    fleet = fleet_with({f"http://10.0.0.{n}:8000": 0.5 for n in range(32)})
    router = Router(fleet, Rules(), Random(1), lambda: 1.0)
    for replica in fleet.replicas.values():
        router.tally(replica).responses[200] += 1
    proxy = Proxy(router, Limits(), asyncio.get_running_loop(), Random(1), lambda: None)
    yield RouterCollector(router, proxy, {})
    proxy.close()


async def test_the_text_is_the_same(collector: RouterCollector) -> None:
    assert await exposition(collector.collect()) == generate_latest(collector)


async def test_the_loop_turns_to_others_meanwhile(collector: RouterCollector) -> None:
    """The longest block is a part of the whole, whatever the machine."""
    began_s = time.perf_counter()
    generate_latest(collector)
    whole_s = time.perf_counter() - began_s

    writing = asyncio.ensure_future(exposition(collector.collect()))
    turns_s = [time.perf_counter()]
    while not writing.done():
        await asyncio.sleep(0.0)
        turns_s.append(time.perf_counter())
    longest_s = max(b - a for a, b in pairwise(turns_s))
    assert len(turns_s) > 30
    assert longest_s < whole_s / 2
