import asyncio
import math
from random import Random

import aiohttp

from data_plane import Plane, data_plane, eventually
from raw_client import request
from router_metrics import scrape, value
from scripted_backend import LAST_CHUNK, Backend, Call, chunk, chunked_head, response
from snapshots import document, fleet_with, snapshot
from ullage_router.config import Limits
from ullage_router.core.decision import Why
from ullage_router.core.fleet import fleet_of, hear
from ullage_router.core.lineup import Standing
from ullage_router.core.rules import Rules
from ullage_router.families import HELP
from ullage_router.feed import SidecarFeed
from ullage_router.pace import Pace
from ullage_router.router import Router
from ullage_shared.feed import Poll

SIDECAR = "http://node:9400"


async def test_every_metric_of_the_list_is_there_with_its_help() -> None:
    async with aiohttp.ClientSession() as session, data_plane("http://127.0.0.1:1") as plane:
        feed = SidecarFeed(plane.router, session, SIDECAR, Pace())
        feed.polls[Poll.NEW] += 1
        metrics = scrape(plane.router, plane.proxy, {SIDECAR: feed})
    assert metrics.keys() == HELP.keys()
    assert {name: family.documentation for name, family in metrics.items()} == HELP
    assert value(metrics, "sidecar_polls_total", sidecar=SIDECAR, result="new") == 1.0


async def script(call: Call) -> None:
    while True:
        received = await call.read_request()
        match received.target:
            case b"/ok":
                await call.send(response(b"hello"))
            case b"/404":
                await call.send(response(b"no", 404, b"Not Found"))
            case b"/stream":
                await call.send(chunked_head())
                for _ in range(3):
                    await call.send(chunk(b"x" * 10))
                    await asyncio.sleep(0.01)
                await call.send(LAST_CHUNK)
            case b"/cut":
                return await call.send(response(b"hello")[:-1])
            case b"/hang":
                await call.gone()
                return None
            case _:
                return None


async def test_what_happened_is_counted_by_replica_and_kind() -> None:
    async with Backend(script) as backend:
        fleet = fleet_with({backend.url: 0.75}, now_s=1e9)
        async with data_plane(fleet=fleet, seed=3) as plane:
            await happen(plane)
            metrics = scrape(plane.router, plane.proxy)
    name = backend.url.removeprefix("http://")
    counted = {
        "dispatched_total": 8.0,  # The one that died on a reused connection went there twice.
        "in_flight": 0.0,
        "responses_cut_total": 1.0,
        "clients_gone_total": 1.0,
        "time_to_first_byte_seconds_count": 5.0,
        "duration_seconds_count": 4.0,
        "score_at_decision_count": 7.0,
        "replica_score": 0.75,
    }
    assert {k: value(metrics, k, replica=name) for k in counted} == counted
    assert value(metrics, "responses_total", replica=name, code="200") == 3.0
    assert value(metrics, "responses_total", replica=name, code="404") == 1.0
    assert value(metrics, "failures_total", replica=name, kind="closed") == 1.0
    assert value(metrics, "refusals_total", code="replica_failed") == 1.0
    assert value(metrics, "decisions_total", why="score") == 7.0
    assert value(metrics, "decisions_total", why="no_replica") == 0.0  # Nothing was refused.
    assert (value(metrics, "response_chunks_total", replica=name) or 0) >= 7.0
    body_bytes = 2 * 5 + 2 + 3 * len(chunk(b"x" * 10)) + len(LAST_CHUNK) + 4
    assert value(metrics, "response_bytes_total", replica=name) == body_bytes
    bucket = {"replica": name, "le": "0.8"}
    assert value(metrics, "score_at_decision_bucket", **bucket) == 7.0
    assert value(metrics, "score_at_decision_bucket", **(bucket | {"le": "0.7"})) == 0.0


async def happen(plane: Plane) -> None:
    """Three 200, one 404, one cut, one client gone, one replica that dies before its answer."""
    client = await plane.client()
    for target in (b"/ok", b"/404", b"/stream", b"/ok", b"/die"):
        await client.ask(request(target))
    await client.send(request(b"/cut"))
    await client.head()
    await client.closed()
    leaves = await plane.client()
    await leaves.send(request(b"/hang"))
    await eventually(lambda: plane.in_flight)
    leaves.close()
    await eventually(lambda: not plane.in_flight)


async def test_histograms_are_cumulative_and_end_at_infinity() -> None:
    async with Backend(script) as backend, data_plane(backend.url) as plane:
        await (await plane.client()).ask(request(b"/ok"))
        metrics = scrape(plane.router, plane.proxy)
    for name in ("time_to_first_byte_seconds", "duration_seconds", "score_at_decision"):
        samples = metrics[name].samples
        buckets = [(float(s.labels["le"]), s.value) for s in samples if "le" in s.labels]
        assert buckets == sorted(buckets)
        assert math.isinf(buckets[-1][0])
        assert buckets[-1][1] == next(s.value for s in samples if s.name.endswith("_count"))


async def test_the_series_of_a_replica_that_leaves_vanish_and_made_up_models_add_none() -> None:
    """Report 20: cardinality from made-up model names; removed replicas' series stay."""
    async with Backend(script) as stays, Backend(script) as leaves:
        both = document(snapshot(stays.url), snapshot(leaves.url, models=("other",)))
        fleet, _ = hear(fleet_of([]), SIDECAR, both, 1e9)
        async with data_plane(fleet=fleet) as plane:
            client = await plane.client()
            await client.ask(request(b"/ok", b'{"model": "tiny"}'))
            await client.ask(request(b"/ok", b'{"model": "other"}'))

            def replicas() -> set[str]:
                families = scrape(plane.router, plane.proxy).values()
                labels = (s.labels.get("replica") for f in families for s in f.samples)
                return {label for label in labels if label}

            def size() -> int:
                families = scrape(plane.router, plane.proxy).values()
                return sum(len(family.samples) for family in families)

            assert replicas() == {u.removeprefix("http://") for u in (stays.url, leaves.url)}
            before = size()
            for number in range(30):
                await client.ask(request(b"/ok?%d" % number, b'{"model": "made-up-%d"}' % number))
            assert size() <= before + 4  # At most a kind of failure or code that was not yet there.

            only = document(snapshot(stays.url, seq=2))
            plane.router.fleet = hear(plane.router.fleet, SIDECAR, only, 1e9)[0]
            assert replicas() == {stays.url.removeprefix("http://")}
            assert plane.router.tallies.keys() <= {stays.url}


async def test_a_request_that_outlives_its_replica_leaves_nothing_behind() -> None:
    """Report 6: a flap must not lose or double the count of live streams."""
    async with Backend(script) as backend:
        fleet = fleet_with({backend.url: 0.9}, now_s=1e9)
        async with data_plane(fleet=fleet) as plane:
            client = await plane.client()
            await client.send(request(b"/hang"))
            await eventually(lambda: backend.requests)
            router = plane.router
            router.fleet = hear(router.fleet, "http://sidecar:9400", document(), 1e9)[0]
            assert not router.fleet.replicas
            assert plane.in_flight == 1
            router.fleet = fleet
            assert router.in_flight.by_replica[backend.url] == 1
            client.close()
            await eventually(lambda: not plane.in_flight)
            assert router.tallies.keys() <= {backend.url}


async def test_standing_is_one_for_what_the_replica_is_and_zero_for_the_rest() -> None:
    async with data_plane(fleet=fleet_with({"http://127.0.0.1:1": 0.1}, now_s=1e9)) as plane:
        metrics = scrape(plane.router, plane.proxy)
    standing = {s.labels["standing"]: s.value for s in metrics["replica_standing"].samples}
    assert standing == {s.value: float(s is Standing.FULL) for s in Standing}


async def test_every_reason_for_a_decision_has_a_series_from_the_start() -> None:
    async with data_plane() as plane:
        metrics = scrape(plane.router, plane.proxy)
    assert {s.labels["why"] for s in metrics["decisions"].samples} == set(Why)


async def test_open_and_idle_connections_are_counted() -> None:
    limits = Limits(idle_upstream_s=5.0)
    async with Backend(script) as backend, data_plane(backend.url, limits=limits) as plane:
        clients = [await plane.client() for _ in range(3)]
        await clients[0].ask(request(b"/ok"))
        await eventually(lambda: len(plane.proxy.clients) == 3)
        metrics = scrape(plane.router, plane.proxy)
    assert value(metrics, "client_connections") == 3.0
    assert value(metrics, "idle_upstream_connections") == 1.0


async def test_odd_names_cannot_break_the_exposition() -> None:
    odd = 'node "1"\\n\n{}'
    fleet, _ = hear(fleet_of([]), SIDECAR, document(snapshot("http://[::1]:1", id=odd)), 1e9)
    async with data_plane(fleet=fleet) as plane:
        metrics = scrape(plane.router, plane.proxy)
    assert value(metrics, "replica_score", replica=odd) == 0.5


def test_a_tally_of_a_replica_that_has_left_is_not_kept() -> None:
    fleet = fleet_with({"http://a:8000": 0.9})
    router = Router(fleet, Rules(), Random(1), lambda: 0.0)
    replica = fleet.replicas["http://a:8000"]
    router.fleet = hear(fleet, "http://sidecar:9400", document(), 0.0)[0]
    hold, _ = router.dispatch(replica)
    router.failed(replica, "connect", "refused")
    hold.release()
    assert not router.tallies
