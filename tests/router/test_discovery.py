"""A router whose sidecars and replicas are listed in files that change while it serves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from data_plane import eventually
from raw_client import request
from router_process import router_process
from scripted_backend import LAST_CHUNK, Backend, Call, answering, chunk, chunked_head, response
from serving import serving
from sidecar_stand_in import SidecarStandIn
from snapshots import document, snapshot
from ullage_router.config import Config
from ullage_shared.discovery import listing

WELL = answering(response(b"ok"))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(listing, "LOOK_EVERY_S", 0.01)
    return tmp_path / "servers.yml"


def write(file: Path, *urls: str) -> None:
    new = file.with_suffix(".new")
    new.write_text("".join(f"- targets: ['{url}']\n" for url in urls) or "[]")
    new.replace(file)


def break_it(file: Path) -> None:
    file.write_text("- targets: [http")


async def until(good: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10.0):
        while True:
            if await good():
                return
            await asyncio.sleep(0.02)


@pytest.fixture
async def sidecar() -> AsyncIterator[SidecarStandIn]:
    async with Backend(WELL) as vllm, SidecarStandIn(document(snapshot(vllm.url))) as sidecar:
        yield sidecar


async def test_whom_listed_sidecars_publish_is_there_when_clients_are_let_in(
    file: Path, sidecar: SidecarStandIn
) -> None:
    write(file, sidecar.url)
    async with serving(Config(sidecars=(f"file:{file}",))) as running:
        client = await running.client()
        assert (await client.ask(request(body=b"{}"))).body == b"ok"


async def test_a_sidecar_that_is_listed_later_joins_and_one_that_is_not_leaves(
    file: Path, sidecar: SidecarStandIn
) -> None:
    write(file)
    async with serving(Config(sidecars=(f"file:{file}",))) as running:

        async def replicas() -> int:
            return len((await running.page("/replicas"))["replicas"])

        assert await replicas() == 0
        router = running.service._router
        write(file, sidecar.url)
        await eventually(lambda: router.fleet.replicas)
        assert await replicas() == 1
        write(file)
        await eventually(lambda: not router.fleet.replicas)


async def test_a_replica_that_leaves_the_list_finishes_what_it_has(file: Path) -> None:
    more = asyncio.Event()

    async def slow(call: Call) -> None:
        while (await call.read_request()).target == b"/v1/models":
            await call.send(response(b"no", 404))
        await call.send(chunked_head() + chunk(b"1"))
        await more.wait()
        await call.send(chunk(b"2") + LAST_CHUNK)

    async with Backend(slow) as leaves, Backend(WELL) as stays:
        write(file, leaves.url)
        async with serving(Config(replicas=(f"file:{file}",))) as running:
            client = await running.client()
            await client.send(request(body=b"{}"))
            await client.head()
            assert await client.piece() == b"1"
            write(file, stays.url)
            router = running.service._router
            await eventually(lambda: [*router.fleet.replicas] == [stays.url])
            other = await running.client()
            assert (await other.ask(request(body=b"{}"))).body == b"ok"
            more.set()
            assert await client.piece() == b"2"


async def test_a_list_that_breaks_cuts_nobody_off_and_everybody_can_see_it(
    file: Path, sidecar: SidecarStandIn
) -> None:
    write(file, sidecar.url)
    async with serving(Config(sidecars=(f"file:{file}",))) as running:
        break_it(file)
        url = f"http://{running.admin}/metrics"
        labels = {"list": "sidecars", "source": f"file:{file}"}

        async def metrics() -> dict[str, float]:
            async with aiohttp.ClientSession() as session, session.get(url) as page:
                families = text_string_to_metric_families(await page.text())
                return {s.name: s.value for f in families for s in f.samples if s.labels == labels}

        async def failing() -> bool:
            return (await metrics())["ullage_router_discovery_failing"] == 1.0

        await until(failing)
        assert (await metrics())["ullage_router_discovery_servers"] == 1.0
        for page in ("/replicas", "/status"):
            (source,) = (await running.page(page))["sources"]
            assert "not YAML" in source.pop("problem")
            assert source == {**labels, "servers": 1}
        client = await running.client()
        assert (await client.ask(request(body=b"{}"))).body == b"ok"


@pytest.mark.slow
async def test_each_worker_looks_for_itself_and_they_show_as_one(
    tmp_path: Path, sidecar: SidecarStandIn
) -> None:
    file = tmp_path / "servers.yaml"
    write(file, sidecar.url)
    words = ("--sidecar", f"file:{file}", "--workers", "2")
    async with router_process(*words) as router, aiohttp.ClientSession() as session:

        async def page() -> dict[str, list[dict[str, object]]]:
            async with session.get(f"http://{router.admin}/replicas") as answer:
                return await answer.json()

        shown = await page()
        assert [row["url"] for row in shown["sidecars"]] == [sidecar.url]
        assert shown["sources"] == [
            {"list": "sidecars", "source": f"file:{file}", "servers": 1, "problem": ""}
        ]
        write(file)

        async def empty() -> bool:
            return not (await page())["replicas"]

        await until(empty)
        assert sum("discovery_changed" in line for line in router.log) == 4
