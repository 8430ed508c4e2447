"""Data-parallel ranks of one real vLLM server: two engines, two replicas, one address.

Each engine step's stats reach only one of the API processes. The tests share servers and run in
this order: the first ones play the sidecar, the last ones kill the server and start it anew.
"""

import asyncio
import os
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import fields
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from demo.processes import running
from ranked_server import (
    READY_WITHIN_S,
    TWO_RANKS,
    Site,
    load_on_rank_1,
    seen_for,
    start_anew,
    with_experts,
)
from told_server import Ear, Told
from vllm_cpu.serve import CpuServer, Replica

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

MAX_SEQS = 8
WAITING = 12
BLOCKS = 256
HUNG_AFTER_S = 5.0
RANKS = ("n/x:0", "n/x:1")
SIDECAR_TOML = f"""
node = "n"
[health]
hung_after_s = {HUNG_AFTER_S}
[warm_up]
zero_until_s = 10.0
ramp_until_s = 11.0
"""


@pytest.fixture(scope="module")
def told(
    tmp_path_factory: pytest.TempPathFactory,
    vllm_venv: Path,
    tiny_model: Path,
    free_port: Callable[[], int],
) -> Iterator[Told]:
    """The server with two ranks, which nobody listens to yet."""
    folder = tmp_path_factory.mktemp("ranks")
    readings = folder / "readings.sock"
    replica = Replica(
        venv=vllm_venv,
        model=tiny_model,
        port=free_port(),
        kv_blocks=BLOCKS,
        max_seqs=MAX_SEQS,
        flags=TWO_RANKS,
        environment={"ULLAGE_SOCKET": str(readings), "ULLAGE_ENGINE": "x"},
    )
    with CpuServer(replica, folder / "vllm.log", ready_within_s=READY_WITHIN_S) as server:
        yield Told(server, readings)


@pytest.fixture
def ear(told: Told) -> Iterator[Ear]:
    ear = Ear(told.socket_path)
    yield ear
    ear.close()


@pytest.fixture(scope="module")
def places(told: Told, free_port: Callable[[], int]) -> Iterator[dict[str, Any]]:
    folder, server, replica = told.socket_path.parent, told.server, told.server.replica
    config = folder / "sidecar.toml"
    config.write_text(SIDECAR_TOML)
    sidecar, router, admin = (f"127.0.0.1:{free_port()}" for _ in range(3))
    urls = {"sidecar": sidecar, "router": router, "admin": admin}
    places: dict[str, Any] = {"server": server, "socket": told.socket_path, "numbers": count()}
    places |= {name: f"http://{address}" for name, address in urls.items()}
    places |= {"replica": replica, "experts": with_experts(replica, folder / "experts")}
    with ExitStack() as stack:
        stack.callback(lambda: places["server"].stop())  # Perhaps a later one.
        flags = ["--config", str(config), "--socket", str(told.socket_path), "--listen", sidecar]
        flags += ["--engine", f"x={server.url}"]
        ready = f"http://{sidecar}/healthz"
        stack.enter_context(running("ullage_sidecar", flags, ready, folder / "sidecar.log"))
        flags = ["--listen", router, "--admin", admin, "--sidecar", f"http://{sidecar}"]
        flags += ["--replica", server.url]
        ready = f"http://{admin}/healthz"
        stack.enter_context(running("ullage_router", flags, ready, folder / "router.log"))
        yield places


@pytest.fixture
async def site(places: dict[str, Any]) -> AsyncIterator[Site]:
    timeout = aiohttp.ClientTimeout(total=60.0)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # Any API process may get any.
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
        names = {field.name for field in fields(Site)}
        yield Site(**{name: places[name] for name in places.keys() & names}, http=http)


class TestToldByTheirPlugins:
    """Before there is a sidecar: the tests play it."""

    def test_each_engine_has_two_senders_all_of_one_boot(self, told: Told, ear: Ear) -> None:
        ear.wait_for(lambda: len({hello.sender for hello in ear.hellos()}) == 4, within_s=4.0)

        hellos = {hello.sender: hello for hello in ear.hellos()}.values()
        assert sorted(hello.engine_index for hello in hellos) == [0, 0, 1, 1]
        assert {hello.data_parallel_size for hello in hellos} == {2}
        assert len({hello.boot_id for hello in hellos}) == 1
        assert len({hello.pid for hello in hellos}) == 2
        assert {hello.name for hello in hellos} == {"x"}

    def test_blocks_are_of_one_engine_where_vllm_sums_both(self, told: Told, ear: Ear) -> None:
        hello = ear.wait_for(ear.hellos, within_s=2.0)[0]

        assert told.blocks_of_all_engines() == 2 * BLOCKS
        assert hello.total_blocks == BLOCKS

    def test_both_engines_are_heard_through_both_processes_and_nothing_is_lost_or_told_twice(
        self, told: Told, ear: Ear
    ) -> None:
        ear.wait_for(lambda: len({hello.sender for hello in ear.hellos()}) == 4, within_s=4.0)
        engine_of = {hello.sender: hello.engine_index for hello in ear.hellos()}
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda n: told.complete(50, rank=n % 2), range(40)))
        assert {answer.status for answer in answers} == {200}

        def tokens_heard() -> dict[int, int]:
            newest = {r.sender: r for r in ear.readings()}
            heard = {0: 0, 1: 0}
            for reading in newest.values():
                heard[engine_of[reading.sender]] += reading.generated_tokens or 0
            return heard

        assert {engine_of[reading.sender] for reading in ear.readings()} == {0, 1}
        assert len({reading.sender for reading in ear.readings()}) >= 3
        # A process that the stats of no step reach any more tells of its tokens with its heartbeat.
        spoke = Counter(engine_of[sender] for sender in {r.sender for r in ear.readings()})
        whole = [engine for engine, senders in spoke.items() if senders == 2]
        ear.wait_for(lambda: all(tokens_heard()[engine] == 1000 for engine in whole), within_s=3.0)
        assert all(tokens <= 1000 for tokens in tokens_heard().values())

        by_time = sorted(ear.readings(), key=lambda reading: reading.at_s)
        newest = {engine_of[reading.sender]: reading for reading in by_time}
        assert {engine: reading.running for engine, reading in newest.items()} == {0: 0, 1: 0}


async def test_each_rank_is_a_replica_with_blocks_of_its_own(site: Site):
    await site.until_idle(*RANKS)
    seen = await site.ranks()
    async with site.http.get(f"{site.server.url}/metrics") as answer:
        assert f'num_gpu_blocks="{2 * BLOCKS}"' in await answer.text()
    for rank, name in enumerate(RANKS):
        assert (seen[name]["dp_rank"], seen[name]["url"]) == (rank, site.server.url)
        assert (seen[name]["total_blocks"], seen[name]["free_blocks"]) == (BLOCKS, BLOCKS - 1)
        assert seen[name]["capacity_score"] > 0.9
    assert len({snapshot["boot_id"] for snapshot in seen.values()}) == 1

    async def known() -> bool:
        rows = (await site.json(f"{site.admin}/replicas"))["replicas"]
        return [(row["id"], row["dp_rank"]) for row in rows] == [(RANKS[0], 0), (RANKS[1], 1)]

    await site.until("the router knows two replicas at one address", known, within_s=5.0)


@pytest.mark.parametrize("wanted", [None, 1], ids=["any", "the client names one"])
async def test_requests_arrive_at_the_rank_that_the_router_chose(site: Site, wanted: int | None):
    await site.until_idle(*RANKS)
    counted = "vllm:request_success_total"
    before = await site.samples(site.server.url, counted)
    tokens_before = await site.samples(site.sidecar, "ullage_sidecar_generated_tokens_total")
    answers = [await site.ask(site.router, tokens=10, rank=wanted) for _ in range(40)]
    assert {status for status, _ in answers} == {200}
    chosen = Counter(replica for _, replica in answers)
    assert min(chosen[name] for name in RANKS) >= 8  # of 40 by a fair coin: 4 sigma
    after = await site.samples(site.server.url, counted)
    assert {rank: after[rank] - before[rank] for rank in after} == {
        "0": chosen[RANKS[0]],
        "1": chosen[RANKS[1]],
    }

    async def heard() -> bool:
        tokens = await site.samples(site.sidecar, "ullage_sidecar_generated_tokens_total")
        grown = {engine: tokens[engine] - tokens_before.get(engine, 0.0) for engine in tokens}
        return grown == {"x:0": 10.0 * chosen[RANKS[0]], "x:1": 10.0 * chosen[RANKS[1]]}

    await site.until("each rank's tokens are told once, by whichever process", heard, 5.0)


async def test_an_idle_rank_is_idle_and_not_hung_beside_a_full_one_which_is_avoided(site: Site):
    await site.until_idle(*RANKS)
    async with load_on_rank_1(site, MAX_SEQS + WAITING):

        async def full() -> bool:
            seen = (await site.ranks())[RANKS[1]]
            return (seen["running"], seen["waiting"]) == (MAX_SEQS, WAITING)

        await site.until("rank 1 is full", full, within_s=20.0)
        idle = (await site.ranks())[RANKS[0]]
        by_vllm = [
            await site.samples(site.server.url, f"vllm:num_requests_{kind}")
            for kind in ("running", "waiting")
        ]
        assert by_vllm == [{"0": 0.0, "1": MAX_SEQS}, {"0": 0.0, "1": WAITING}]
        assert (idle["state"], idle["running"], idle["waiting"]) == ("serving", 0, 0)

        async def told() -> bool:
            rows = (await site.json(f"{site.admin}/replicas"))["replicas"]
            scores = {row["id"]: row["capacity_score"] for row in rows}
            return bool(scores[RANKS[1]] < 0.15 < 0.9 < scores[RANKS[0]])

        await site.until("the router knows", told, within_s=20.0)
        answers = Counter([await site.ask(site.router) for _ in range(30)])
        assert answers.keys() <= {(200, name) for name in RANKS}
        assert answers[200, RANKS[0]] >= 24  # At weights of 0.9² and 0.15²: once in a million not.
        seen = await seen_for(site, HUNG_AFTER_S + 2.0)
    assert seen == {(name, "serving", "") for name in RANKS}
    await site.until_idle(*RANKS)


async def test_no_step_of_either_rank_is_lost(site: Site):
    """Over all that went before."""
    received, lost = [
        await site.samples(site.sidecar, f"ullage_sidecar_readings_{kind}_total")
        for kind in ("received", "lost")
    ]
    print(f"steps received {received}, lost {lost}")
    for engine in ("x:0", "x:1"):
        assert received[engine] > 100
        assert lost[engine] <= 0.01 * received[engine]


async def test_a_drain_takes_both_ranks_out_once_both_have_finished(site: Site):
    await site.until_idle(*RANKS)
    work = asyncio.create_task(site.ask(site.server.url, 1000, rank=1))

    async def busy() -> bool:
        return bool((await site.ranks())[RANKS[1]]["running"] == 1)

    await site.until("rank 1 works", busy, within_s=20.0)
    assert await site.operator("drain", "x", "--wait", "60") == 0
    assert work.done()
    for snapshot in (await site.ranks()).values():
        assert (snapshot["state"], snapshot["capacity_score"]) == ("draining", 0.0)
    assert (await site.ask(site.router))[0] == 503
    assert await site.operator("undrain", "x") == 0
    await site.until_idle(*RANKS)


@pytest.mark.long
async def test_both_ranks_go_down_with_their_server_and_come_back_warmed_up(
    site: Site, places: dict[str, Any]
):
    """It comes back with one API process, and with a model whose ranks must step together."""
    os.killpg(site.server.pid, signal.SIGKILL)

    async def down() -> bool:
        return {s["state"] for s in (await site.ranks()).values()} == {"down"}

    await site.until("both are down", down, within_s=5.0)
    assert (await site.ranks()).keys() == set(RANKS)
    await start_anew(site, places, **places["experts"])
    await site.until_idle(*RANKS)

    async def both_answer() -> bool:
        return {replica for _, replica in [await site.ask(site.router) for _ in range(10)]} == {
            *RANKS
        }

    await site.until("the router asks both", both_answer, within_s=10.0)


@pytest.mark.long
async def test_an_idle_rank_that_steps_along_is_idle_and_not_hung(site: Site):
    """Experts are spread over the ranks: who has no request of its own makes empty steps, and vLLM
    tells nobody of them."""
    await site.until_idle(*RANKS)
    counted = "ullage_sidecar_readings_received_total"
    before = await site.samples(site.sidecar, counted)
    async with load_on_rank_1(site, 4):
        seen = await seen_for(site, HUNG_AFTER_S + 2.0)
    assert seen == {(name, "serving", "") for name in RANKS}
    after = await site.samples(site.sidecar, counted)
    assert after["x:1"] > before["x:1"] + 100
    assert after["x:0"] == before["x:0"]
    log = site.server.log.read_text(errors="replace")
    assert re.search(r"EngineCore_DP0 .*starting idle loop for wave", log)
    await site.until_idle(*RANKS)


@pytest.mark.long
async def test_a_server_that_comes_back_with_one_rank_is_one_replica(
    site: Site, places: dict[str, Any]
):
    await start_anew(site, places, flags=())
    await site.until_idle("n/x")
    (snapshot,) = (await site.ranks()).values()
    assert (snapshot["dp_rank"], snapshot["total_blocks"]) == (None, BLOCKS)

    async def known() -> bool:
        rows = (await site.json(f"{site.admin}/replicas"))["replicas"]
        return [row["id"] for row in rows] == ["n/x"]

    await site.until("the router has forgotten the ranks", known, within_s=5.0)
    assert await site.ask(site.router) == (200, "n/x")
