"""Watching the document over real sockets: in this process where that will do."""

import asyncio
import itertools
import json
import time
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from aiohttp import web
from prometheus_client import generate_latest

from sidecar_process import hello, step
from ullage_router.config import Config as RouterConfig
from ullage_shared import watch
from ullage_shared.snapshot import State
from ullage_sidecar import publisher
from ullage_sidecar.config import Config, EngineEntry
from ullage_sidecar.core.health import Probe
from ullage_sidecar.endpoints import Served, application
from ullage_sidecar.metrics import registry
from ullage_sidecar.node import Node
from ullage_sidecar.publisher import RENDER_EVERY_S
from ullage_sidecar.recorder import Recorder
from watching import LARGE, Watcher, stalled

LONG_MS = 60_000
"""An interval that no test waits for: what comes is pushed."""
SOON_S = 0.1


class InProcess:
    """A sidecar's endpoints in this process."""

    def __init__(self):
        config = Config(node="n", engine=(EngineEntry(name="vllm", url="http://e:1"),))
        self.node = Node(config, time.monotonic())
        self.node.probed("vllm", Probe(None), time.monotonic())
        self.counts = Served()
        self.registry = registry(self.node, self.counts, "9.9", time.monotonic)
        self.seq = 0

    def hear(self, datagram):
        self.node.hear(datagram, time.monotonic())

    def step(self, **values):
        self.seq += 1
        self.hear(step(self.seq, **values))

    @property
    def watched(self):
        return self.counts.watched

    def metric(self, name):
        lines = generate_latest(self.registry).decode().splitlines()
        return float(next(line for line in lines if line.startswith(name)).rsplit(" ", 1)[1])


@asynccontextmanager
async def served(**first):
    """Serve one engine, which has made one step."""
    it = InProcess()
    it.hear(hello())
    it.step(**first)
    app = application(
        it.node, it.registry, it.counts, Recorder(it.counts.recorded), "9.9", time.monotonic,
        time.time,
    )  # fmt: skip
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    it.listen = f"127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield it
    finally:
        await runner.cleanup()


async def get(listen, query, method="GET"):
    async with (
        aiohttp.ClientSession() as client,
        client.request(method, f"http://{listen}/v1/snapshots{query}") as answer,
    ):
        return answer.status, answer.content_type, await answer.read()


async def test_the_first_line_comes_at_once_and_is_the_document():
    async with served() as it, Watcher(it.listen, LONG_MS) as watcher:
        line = await watcher.line(within_s=1.0)
        assert line.replica.running == 2
        _, _, body = await get(it.listen, "")
        told, asked = json.loads(line.text), json.loads(body)
        for replica in (*told["replicas"], *asked["replicas"]):
            del replica["ts"]
        assert told.keys() == asked.keys()
        assert told["replicas"][0].keys() == asked["replicas"][0].keys()


async def test_a_change_is_pushed_though_the_interval_is_long():
    async with served() as it, Watcher(it.listen, LONG_MS) as watcher:
        await watcher.line()
        for running in (3, 8, 1):
            await asyncio.sleep(0.03)
            sent_s = time.monotonic()
            it.step(running=running)
            line = await watcher.until(lambda replica, now=running: replica.running == now)
            assert line.at_s - sent_s < SOON_S


async def test_a_drain_is_pushed_and_so_is_a_server_that_dies():
    async with served() as it, Watcher(it.listen, LONG_MS) as watcher:
        await watcher.line()
        it.node.drain("vllm", time.monotonic())
        line = await watcher.line(within_s=1.0)
        assert (line.replica.state, line.replica.capacity_score) == (State.DRAINING, 0.0)
        it.node.probed("vllm", Probe("Connection refused", gone=True), time.monotonic())
        assert (await watcher.line(within_s=1.0)).replica.state is State.DOWN


async def test_what_is_no_change_worth_telling_waits_for_the_interval():
    async with served() as it, Watcher(it.listen, LONG_MS) as watcher:
        await watcher.line()
        for _ in range(10):
            it.step(kv_usage=0.505)
            await asyncio.sleep(0.005)
        with pytest.raises(TimeoutError):
            await watcher.line(within_s=0.05)


async def test_lines_are_never_closer_than_20_ms_and_the_last_is_the_latest():
    async with served() as it, Watcher(it.listen, LONG_MS) as watcher:
        began_s = time.monotonic()
        for _ in range(100):
            it.step(running=it.seq % 7)
            await asyncio.sleep(0.002)
        it.step(running=8)
        await watcher.until(lambda replica: replica.running == 8)
        assert 3 < it.watched.documents <= 1 + (time.monotonic() - began_s) / RENDER_EVERY_S


async def test_an_operator_who_cannot_decide_hurries_no_line():
    async with served() as it, Watcher(it.listen, LONG_MS) as watcher:
        await watcher.line()
        began_s = time.monotonic()
        for turn in range(30):
            (it.node.undrain if turn % 2 else it.node.drain)("vllm", time.monotonic())
            await asyncio.sleep(0.011)
        assert 3 < it.watched.documents <= 1 + (time.monotonic() - began_s) / RENDER_EVERY_S


async def test_a_change_that_comes_just_after_a_rendering_is_not_lost():
    async with served() as it, Watcher(it.listen, LONG_MS) as watcher:
        await watcher.line()
        await asyncio.sleep(0.03)
        await get(it.listen, "")  # Somebody polls: it is rendered for him.
        it.step(running=7)
        assert (await watcher.line(within_s=1.0)).replica.running == 7


async def test_the_first_to_watch_is_told_what_came_since_the_document_that_he_got(monkeypatch):
    for module in (publisher, watch):
        monkeypatch.setattr(module, "RENDER_EVERY_S", 0.3)
    async with served() as it:
        await get(it.listen, "")
        it.step(running=7)  # Nobody watches: nobody is told.
        async with Watcher(it.listen, LONG_MS) as watcher:
            assert (await watcher.line()).replica.running == 2
            assert (await watcher.line(within_s=1.0)).replica.running == 7


async def test_one_who_polls_does_not_take_a_change_away_from_those_who_watch():
    async with served() as it, Watcher(it.listen, LONG_MS) as watcher:
        await watcher.line()
        await asyncio.sleep(0.03)
        it.step()  # It is looked at, and so the next one is not for a moment.
        await asyncio.sleep(0.002)
        it.step(running=7)
        it.node.published(time.monotonic(), time.time())
        assert (await watcher.line(within_s=1.0)).replica.running == 7


async def test_an_idle_engine_costs_an_empty_line_per_interval():
    async with served(running=0, kv_usage=0.0) as it, Watcher(it.listen, 50) as watcher:
        assert (await watcher.line()).text
        lines = [await watcher.line() for _ in range(3)]
        assert [line.text for line in lines] == [b""] * 3
        assert lines[2].at_s - lines[0].at_s == pytest.approx(0.1, abs=0.08)
        assert it.metric('ullage_sidecar_snapshot_lines_total{kind="unchanged"}') >= 2
        assert it.metric('ullage_sidecar_snapshot_lines_total{kind="document"}') == 1


async def test_all_watchers_are_told_of_one_rendering():
    async with served() as it:
        watchers = [Watcher(it.listen, LONG_MS) for _ in range(8)]
        for watcher in watchers:
            await watcher.__aenter__()
            await watcher.line()
        assert it.metric("ullage_sidecar_snapshot_watchers ") == 8.0
        await asyncio.sleep(0.03)
        renders = it.node.publisher.renders
        it.step(running=7)
        for watcher in watchers:
            assert (await watcher.line(within_s=1.0)).replica.running == 7
        assert it.node.publisher.renders == renders + 1
        for watcher in watchers:
            await watcher.__aexit__()


async def test_one_who_goes_is_forgotten_at_once_and_then_nothing_is_looked_at(until):
    async with served() as it:
        async with Watcher(it.listen, LONG_MS) as watcher:
            await watcher.line()
            assert it.watched.now == 1
        await until(lambda: it.watched.now == 0)
        assert it.node.tell is None
        assert it.watched.stalled == 0


async def test_one_who_takes_nothing_is_cut_off(monkeypatch, until, caplog):
    monkeypatch.setattr(watch, "STALLED_S", 0.1)
    async with served() as it:
        it.hear(hello(models=LARGE))
        _, writer = await stalled(it.listen)
        await until(lambda: it.watched.now == 1)
        running = itertools.cycle((1, 8))

        def cut_off():
            it.step(running=next(running))
            return it.watched.stalled

        await until(cut_off)
        await until(lambda: it.watched.now == 0)
        writer.transport.abort()
        assert it.metric('ullage_sidecar_snapshot_watchers_dropped_total{why="stalled"}') == 1.0
    assert [m for m in caplog.messages if "watcher_cut_off" in m]


async def test_the_end_waits_for_nobody_who_takes_nothing(until):
    async with served() as it:
        it.hear(hello(models=LARGE))
        stuck = [await stalled(it.listen) for _ in range(3)]
        await until(lambda: it.watched.now == 3)
        for running in (1, 8) * 10:  # Some have a line on its way, some have none.
            it.step(running=running)
            await asyncio.sleep(0.02)
        ended_s = time.monotonic()
    assert time.monotonic() - ended_s < 0.9
    assert it.watched.now == 0
    for _, writer in stuck:
        writer.transport.abort()


async def test_one_too_many_is_refused_with_words(monkeypatch):
    monkeypatch.setattr(watch, "MOST", 1)
    async with served() as it, Watcher(it.listen) as watcher:
        await watcher.line()
        status, _, body = await get(it.listen, "?watch")
        assert (status, body) == (503, b"wanted no more than 1 watchers: poll\n")
        assert (await get(it.listen, ""))[0] == 200
        assert it.metric('ullage_sidecar_snapshot_watchers_dropped_total{why="refused"}') == 1.0


@pytest.mark.parametrize("value", ["19", "60001", "0", "-1", "x", "", "1e3", "٣٣٣", "9" * 5000])
async def test_an_interval_out_of_range_is_refused_by_name(value):
    async with served() as it:
        status, _, body = await get(it.listen, f"?watch&interval_ms={value}")
        assert status == 400
        assert f"interval_ms = {value!r}: wanted a whole number from 20 to 60000" in body.decode()


@pytest.mark.parametrize("query", ["?watch=no", "?foo&watch", "?watch&interval_ms=20"])
async def test_watch_is_what_counts_and_what_is_unknown_is_ignored(query):
    async with (
        served() as it,
        aiohttp.ClientSession() as client,
        client.get(f"http://{it.listen}/v1/snapshots{query}") as answer,
    ):
        assert answer.content_type == "application/x-ndjson"
        assert await answer.content.readline()


async def test_the_head_of_a_watch_is_all_that_head_gets():
    async with served() as it:
        assert await get(it.listen, "?watch", "HEAD") == (200, "application/x-ndjson", b"")
        assert it.watched.now == 0


async def test_without_watch_nothing_has_changed():
    async with served() as it:
        status, kind, body = await get(it.listen, "?interval_ms=nonsense")
        assert (status, kind) == (200, "application/json")
        assert b"\n" not in body


def test_every_interval_that_a_router_may_be_given_can_be_asked_for():
    fields = {field.name: field.type for field in msgspec.inspect.type_info(RouterConfig).fields}
    asked = fields["poll_interval_s"].type
    for interval_s in (asked.ge, asked.le):
        assert watch.wish({"interval_ms": f"{interval_s * 1000:.0f}"}).interval_s == interval_s
    assert watch.LEAST_MS / 1000.0 == RENDER_EVERY_S


async def test_one_who_wants_lines_far_apart_gets_the_latest_then():
    async with served() as it, Watcher(it.listen, LONG_MS, spacing_ms=200) as watcher:
        first = await watcher.line()
        for running in (3, 5, 8):
            it.step(running=running)
            await asyncio.sleep(0.03)
        line = await watcher.line()
        assert line.replica.running == 8
        assert line.at_s - first.at_s >= 0.19


async def test_a_spacing_that_is_none_is_refused_and_one_beyond_the_interval_is_the_interval():
    async with served() as it:
        status, _, body = await get(it.listen, "?watch&spacing_ms=1")
        assert (status, body[:14]) == (400, b"spacing_ms = '")
    assert watch.wish({"interval_ms": "100", "spacing_ms": "900"}) == (0.1, 0.1)
    assert watch.wish({}) == (0.5, 0.02)
