"""An aggregator in this process, between sidecar stand-ins and a real router."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from aggregators import aggregator
from data_plane import eventually
from raw_client import request
from scripted_backend import Backend, answering, response
from serving import serving
from sidecar_stand_in import SidecarStandIn
from snapshots import document, snapshot
from ullage_router.config import Config
from ullage_shared.aggregator.table import RENDER_EVERY_S
from ullage_shared.feed import Poll
from ullage_shared.snapshot import INTERVAL_HEADER, State
from watching import Watcher

A, B = "http://127.0.0.1:1", "http://127.0.0.1:2"
LONG_S = 60.0


@pytest.fixture
async def two() -> AsyncIterator[tuple[SidecarStandIn, SidecarStandIn]]:
    async with (
        SidecarStandIn(document(snapshot(A, id="gpu-01/vllm"), node="gpu-01")) as one,
        SidecarStandIn(document(snapshot(B, id="gpu-02/vllm"), node="gpu-02")) as other,
    ):
        yield one, other


async def test_its_document_is_there_when_routers_are_let_in(
    two: tuple[SidecarStandIn, SidecarStandIn],
) -> None:
    async with aggregator(two[0].url, two[1].url) as agg:
        page = await agg.get("/v1/snapshots")
        assert (page["node"], page["schema"]) == ("agg", 1)
        assert [replica["id"] for replica in page["replicas"]] == ["gpu-01/vllm", "gpu-02/vllm"]


async def test_a_router_cannot_tell_it_from_a_big_node() -> None:
    async with (
        Backend(answering(response(b"a"))) as a,
        Backend(answering(response(b"b"))) as b,
        SidecarStandIn(document(snapshot(a.url, id="gpu-01/vllm"))) as one,
        SidecarStandIn(document(snapshot(b.url, id="gpu-02/vllm"))) as other,
        aggregator(one.url, other.url) as agg,
        serving(Config(sidecars=(agg.url,))) as router,
    ):
        page = await router.page("/replicas")
        assert {row["id"] for row in page["replicas"]} == {"gpu-01/vllm", "gpu-02/vllm"}
        assert {row["standing"] for row in page["replicas"]} == {"eligible"}
        assert [(s["watched"], s["problem"]) for s in page["sidecars"]] == [(True, "")]
        client = await router.client()
        assert (await client.ask(request(body=b"{}"))).body in (b"a", b"b")


async def test_one_above_another_passes_on_what_that_one_says(
    two: tuple[SidecarStandIn, SidecarStandIn],
) -> None:
    async with aggregator(two[0].url) as below, aggregator(below.url, two[1].url) as above:
        page = await above.get("/v1/snapshots")
        assert [replica["id"] for replica in page["replicas"]] == ["gpu-01/vllm", "gpu-02/vllm"]


async def test_the_replicas_of_a_silent_sidecar_age_and_stay(
    two: tuple[SidecarStandIn, SidecarStandIn],
) -> None:
    silent, other = two
    async with aggregator(silent.url, other.url) as agg:
        await silent.stop()
        await eventually(lambda: agg.it.feeds[silent.url].failing)
        await asyncio.sleep(0.3)
        ages = [replica["age_s"] for replica in (await agg.get("/v1/snapshots"))["replicas"]]
        assert ages[0] >= 0.3
        assert ages[1] < 0.25
        health = await agg.get("/healthz")
        assert (health["sidecars"], health["silent"]) == (2, {silent.url: "Connection refused"})
        families = list(text_string_to_metric_families(await agg.get("/metrics")))
        values = {
            (s.name, s.labels.get("sidecar")): s.value
            for family in families
            for s in family.samples
        }
        assert values["ullage_aggregator_sidecar_failing", silent.url] == 1.0
        assert values["ullage_aggregator_sidecar_failing", other.url] == 0.0
        assert values["ullage_aggregator_replicas", None] == 2.0
        assert values["ullage_aggregator_oldest_snapshot_age_seconds", None] >= 0.3


async def test_who_comes_goes_or_changes_its_state_is_pushed_and_a_score_waits(
    two: tuple[SidecarStandIn, SidecarStandIn],
) -> None:
    one, _ = two
    async with (
        aggregator(one.url, report_interval_s=LONG_S) as agg,
        Watcher(agg.listen, 20) as watcher,
    ):
        assert watcher.answer.headers[INTERVAL_HEADER] == "60000"
        await watcher.line()
        one.published = document(snapshot(A, 0.1, seq=2))
        with pytest.raises(TimeoutError):
            await watcher.line(within_s=0.3)
        one.published = document(snapshot(A, 0.0, seq=3, state=State.DRAINING))
        line = await watcher.line(within_s=2.0)
        assert line is not None
        assert line.replica.state is State.DRAINING
        one.published = document(snapshot(A, seq=4), snapshot(B))
        line = await watcher.line(within_s=2.0)
        assert line is not None
        assert len(line.replicas) == 2


async def test_it_reports_at_its_own_interval(two: tuple[SidecarStandIn, SidecarStandIn]) -> None:
    async with (
        aggregator(two[0].url, report_interval_s=0.2) as agg,
        Watcher(agg.listen, 100) as watcher,
    ):
        lines = [await watcher.line() for _ in range(4)]
        gaps_s = [b.at_s - a.at_s for a, b in pairwise(lines) if a and b]
        assert min(gaps_s) > 0.15


async def test_what_has_not_changed_is_not_sent_again(
    two: tuple[SidecarStandIn, SidecarStandIn],
) -> None:
    async with aggregator(two[0].url) as agg, aiohttp.ClientSession() as session:
        url = f"{agg.url}/v1/snapshots"
        async with session.get(url) as first:
            etag = first.headers["ETag"]
        async with session.get(url, headers={"If-None-Match": etag}) as again:
            assert again.status == 304
        looks = agg.it.feeds[two[0].url].polls[Poll.NEW]
        two[0].published = document(snapshot(A, 0.1, seq=2))
        await eventually(lambda: agg.it.feeds[two[0].url].polls[Poll.NEW] > looks + 1)
        await asyncio.sleep(RENDER_EVERY_S)
        async with session.get(url, headers={"If-None-Match": etag}) as changed:
            assert changed.status == 200


async def test_a_sidecar_that_says_too_much_harms_only_itself(
    two: tuple[SidecarStandIn, SidecarStandIn],
) -> None:
    liar, other = two
    liar.published = b" " * (5 * 1024 * 1024)
    async with aggregator(liar.url, other.url) as agg:
        page = await agg.get("/v1/snapshots")
        assert [replica["id"] for replica in page["replicas"]] == ["gpu-02/vllm"]
        assert "larger than 4194304 bytes" in (await agg.get("/healthz"))["silent"][liar.url]


async def test_a_sidecar_that_claims_anothers_replica_harms_only_itself(
    two: tuple[SidecarStandIn, SidecarStandIn],
) -> None:
    liar, other = two
    async with aggregator(other.url, liar.url) as agg:
        liar.published = document(snapshot(f"{B}/", 1.0, id="gpu-01/mine", seq=10**12))
        looks = agg.it.feeds[liar.url].polls[Poll.NEW]
        await eventually(lambda: agg.it.feeds[liar.url].polls[Poll.NEW] > looks + 1)
        await asyncio.sleep(RENDER_EVERY_S)
        page = await agg.get("/v1/snapshots")
        assert [replica["id"] for replica in page["replicas"]] == ["gpu-02/vllm"]
        claim = f"gpu-01/mine of {liar.url}: {other.url} speaks for {B}"
        assert (await agg.get("/healthz"))["disputed"] == [claim]
