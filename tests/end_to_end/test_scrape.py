"""A real vLLM server without the plugin: the sidecar reads its `/metrics`, the router the sidecar.

The tests share one server, and run in this order: the last one kills its engine.
"""

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp
import pytest

from demo import load
from demo.processes import running
from router_process import router_process
from ullage_sidecar.channel import Sender, encode_hello, encode_step
from ullage_sidecar.core.reading import Hello
from ullage_sidecar.sources.exposition import Page, read
from vllm_cpu.serve import CpuServer, Replica

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

MAX_SEQS = 8
BLOCKS = 256
SIDECAR_TOML = """
node = "n"
socket = "{socket}"
listen = "127.0.0.1:{port}"

[warm_up]
ramp_s = 1.0

[health]
hung_after_s = 3.0

[scrape]
interval_s = 0.5

[[engine]]
name = "a"
url = "{url}"
"""


@dataclass(slots=True)
class Scene:
    """A server and its sidecar."""

    server: CpuServer
    sidecar: str
    readings: Path
    log: Path
    http: aiohttp.ClientSession

    async def snapshot(self) -> dict[str, Any]:
        async with self.http.get(f"{self.sidecar}/v1/snapshots") as answer:
            (replica,) = (await answer.json())["replicas"]
            return replica

    async def page(self) -> Page:
        """What the server itself says."""
        async with self.http.get(f"{self.server.url}/metrics") as answer:
            return read(await answer.read())

    async def own(self, name: str) -> float:
        """One sample of the sidecar's metrics."""
        async with self.http.get(f"{self.sidecar}/metrics") as answer:
            text = await answer.text()
        return float(re.findall(rf"^{re.escape('ullage_sidecar_' + name)} (\S+)$", text, re.M)[0])

    async def until(self, within_s: float, **wanted: Any) -> dict[str, Any]:
        """The first snapshot with these values."""
        deadline_s = perf_counter() + within_s
        while not wanted.items() <= (seen := await self.snapshot()).items():
            assert perf_counter() < deadline_s, f"no {wanted} within {within_s} s: {seen}"
            await asyncio.sleep(0.05)
        return seen

    async def until_free(self) -> dict[str, Any]:
        """The first snapshot of an empty server whose load before is forgotten."""
        seen = await self.until(30.0, running=0, waiting=0, state="serving")
        deadline_s = perf_counter() + 15.0
        while (seen["capacity_score"] or 0.0) < 0.95:
            assert perf_counter() < deadline_s, seen
            await asyncio.sleep(0.1)
            seen = await self.snapshot()
        return seen

    def engine_core(self) -> int:
        """The process in which the model runs."""
        for status in Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError):
                text = status.read_text()
                if f"\nPPid:\t{self.server.pid}\n" in text and "EngineCor" in text.split("\n")[0]:
                    return int(status.parent.name)
        raise AssertionError("the server has no engine core")

    @asynccontextmanager
    async def busy(self, requests: int) -> AsyncIterator[None]:
        """So many requests at once, until the block ends."""
        body = {"model": "tiny", "stream": True, "max_tokens": 900, "ignore_eos": True}
        asks = [
            load.Ask("/v1/completions", body | {"prompt": f"number {i}"}) for i in range(requests)
        ]
        task = asyncio.create_task(self._repeat(asks))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _repeat(self, asks: list[load.Ask]) -> None:
        while True:
            await load.run(self.server.url, asks, len(asks), lambda _: None)


@pytest.fixture(scope="module")
def processes(
    tmp_path_factory: pytest.TempPathFactory,
    vllm_venv: Path,
    tiny_model: Path,
    free_port: Callable[[], int],
) -> Iterator[Mapping[str, Any]]:
    folder = tmp_path_factory.mktemp("scrape")
    readings, port, log = folder / "readings.sock", free_port(), folder / "sidecar.log"
    server = CpuServer(
        Replica(
            venv=vllm_venv,
            model=tiny_model,
            port=free_port(),
            kv_blocks=BLOCKS,
            max_seqs=MAX_SEQS,
            environment={"ULLAGE_SOCKET": ""},
        ),
        folder / "vllm.log",
    )
    config = folder / "sidecar.toml"
    config.write_text(SIDECAR_TOML.format(socket=readings, port=port, url=server.url))
    sidecar = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        stack.callback(server.stop)
        server.start()
        flags = ["--config", str(config)]
        stack.enter_context(running("ullage_sidecar", flags, f"{sidecar}/healthz", log))
        server.wait_ready()
        yield {"server": server, "sidecar": sidecar, "readings": readings, "log": log}


@pytest.fixture
async def scene(processes: Mapping[str, Any]) -> AsyncIterator[Scene]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http:
        yield Scene(**processes, http=http)


async def test_a_fresh_server_is_known_at_once_and_warms_up_though_its_start_took_long(
    scene: Scene,
):
    first = await scene.until(10.0, running=0, waiting=0)
    assert "-scrape-" in first["boot_id"]
    idle = await scene.until(60.0, state="serving", running=0)
    assert (idle["total_blocks"], idle["free_blocks"], idle["block_size"]) == (BLOCKS, 255, 32)
    assert idle["models"] == ["tiny"]
    assert idle["capacity_score"] is None
    assert "or it is learned as requests wait" in idle["reason"]
    states: list[str] = []
    until_s = perf_counter() + 10.0
    while states[-1:] != ["serving"] and perf_counter() < until_s:  # A line comes a moment later.
        states = re.findall(r" state engine=a was=\S+ now=(\S+)", scene.log.read_text())
        await asyncio.sleep(0.05)
    assert states[0] == "starting"
    assert states[-3:] == ["warming", "ramping", "serving"]


async def test_under_a_flood_the_limit_is_learned_and_the_figures_agree_with_the_servers(
    scene: Scene,
):
    async with scene.busy(2 * MAX_SEQS):
        await scene.until(30.0, max_num_seqs=MAX_SEQS)
        compared = 0
        deadline_s = perf_counter() + 30.0
        while compared < 5:
            assert perf_counter() < deadline_s, "the server's own figures never stood still"
            before = await scene.page()
            await asyncio.sleep(1.2)  # Two scrapes.
            seen, after = await scene.snapshot(), await scene.page()
            ends = [page.engines[0] for page in (before, after)]
            if (ends[0].running, ends[0].waiting) != (ends[1].running, ends[1].waiting):
                continue  # A wave of requests has ended.
            assert (seen["running"], seen["waiting"]) == (ends[0].running, ends[0].waiting)
            usages = sorted(end.kv_usage or 0.0 for end in ends)
            usage = 1.0 - seen["free_blocks"] / (BLOCKS - 1)
            if ends[0].generated_tokens is not None and usages[1] - usages[0] > 0.0:
                assert usages[0] - 0.03 <= usage <= usages[1] + 0.03
            compared += 1
    idle = await scene.until(30.0, running=0, waiting=0)
    assert idle["max_num_seqs"] == MAX_SEQS
    assert await scene.own('max_running_requests_estimated{engine="a"}') == 1.0
    assert (await scene.page()).engines[0].running == 0


async def test_the_router_chooses_by_what_was_scraped(scene: Scene):
    await scene.until_free()
    async with router_process("--sidecar", scene.sidecar) as router:
        admin = f"http://127.0.0.1:{router.admin.port}"
        url = f"http://127.0.0.1:{router.address.port}/v1/completions"
        async with scene.http.get(f"{admin}/replicas") as answer:
            (row,) = (await answer.json())["replicas"]
        assert row["eligible"]
        assert row["capacity_score"] > 0.9
        body = {"model": "tiny", "prompt": "def", "max_tokens": 4}
        async with scene.http.post(url, json=body) as answer:
            assert answer.status == 200
            assert answer.headers["x-ullage-replica"] == "n/a"
        async with scene.http.get(f"{admin}/decisions") as answer:
            (decision,) = await answer.json()
        assert decision["score"] == pytest.approx(row["capacity_score"], abs=0.1)


async def test_while_the_plugin_speaks_nothing_is_scraped_and_no_handover_is_seen_by_a_router(
    scene: Scene,
):
    """The plugin is a stand-in here; the server and its page are real."""
    before = await scene.until_free()
    hello = Hello(
        77, "a", "boot-1", scene.server.pid, time.monotonic() - 60.0, models=("tiny",),
        total_blocks=BLOCKS, block_size=32, max_num_seqs=MAX_SEQS,
    )  # fmt: skip
    seen = []

    async def look(for_s: float) -> None:
        end_s = perf_counter() + for_s
        while perf_counter() < end_s:
            seen.append(await scene.snapshot())
            await asyncio.sleep(0.05)

    sender = Sender(str(scene.readings))
    assert sender.connect()
    with contextlib.closing(sender):
        asked = []
        for seq in range(1, 5):
            said_s = time.monotonic()
            sender.send(encode_hello(hello))
            sender.send(encode_step(77, seq, said_s, (seq, 0, 0.1, 0, 0, 0, 0, 0)))
            await look(0.6)
            asked.append(await scene.own('scrapes_total{server="a"}'))
    assert asked[1:] == asked[1:2] * 3
    assert seen[-1]["running"] == 4
    await look(4.0)
    assert (await scene.own('scrapes_total{server="a"}')) > asked[-1]
    assert seen[-1]["running"] == 0
    assert {(s["state"], s["boot_id"]) for s in seen} == {("serving", before["boot_id"])}
    scores = [s["capacity_score"] for s in seen]
    assert all(score is None or score > 0.3 for score in scores)
    assert scores.count(None) < len(scores) / 5  # From the silence to the next scrape.


async def test_an_engine_that_stands_still_with_work_is_hung_and_comes_back(scene: Scene):
    core = scene.engine_core()
    async with scene.busy(4):
        await scene.until(30.0, running=4)
        os.kill(core, signal.SIGSTOP)
        try:
            hung = await scene.until(15.0, state="hung")
            assert hung["capacity_score"] == 0.0
        finally:
            os.kill(core, signal.SIGCONT)
        again = await scene.until(15.0, state="serving")
        assert again["boot_id"] == hung["boot_id"]


async def test_a_dead_engine_is_down(scene: Scene):
    os.kill(scene.engine_core(), signal.SIGKILL)
    down = await scene.until(15.0, state="down")
    assert down["capacity_score"] == 0.0
    assert down["reason"].startswith("/health: ")
    made = await scene.own('scrapes_total{server="a"}')
    await asyncio.sleep(1.5)
    assert await scene.own('scrapes_total{server="a"}') == made


def test_the_log_has_a_line_for_each_change_and_none_for_each_scrape(scene: Scene):
    said = scene.log.read_text()
    sources = re.findall(r" source engine=a was=(\S+) now=(\S+)", said)
    assert sources == [("-", "scrape"), ("scrape", "plugin"), ("plugin", "scrape")]
    assert len(re.findall(" scrape_", said)) <= 2, said
