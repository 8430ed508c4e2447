"""Plugin, sidecar and router on two real vLLM servers: what one does, the next ones see.

The tests share one pair of servers, and run in this order: the last one kills a server.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from demo import load
from demo.processes import running
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
"""


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@dataclass(slots=True)
class Pair:
    """Two servers, and the ways to ask about them."""

    servers: dict[str, CpuServer]
    router: str
    admin: str
    sidecar: str
    socket: Path
    start_sidecar: Callable[[], int]
    http: aiohttp.ClientSession

    async def json(self, url: str) -> Any:
        async with self.http.get(url) as answer:
            return await answer.json()

    async def snapshot(self, name: str) -> dict[str, Any]:
        document = await self.json(f"{self.sidecar}/v1/snapshots")
        return next(r for r in document["replicas"] if r["id"] == f"n/{name}")

    async def row(self, name: str) -> dict[str, Any]:
        page = await self.json(f"{self.admin}/replicas")
        return next(r for r in page["replicas"] if r["id"] == f"n/{name}")

    async def metrics(self, url: str) -> dict[str, float]:
        """Samples by name, those of one name added up."""
        async with self.http.get(f"{url}/metrics") as answer:
            text = await answer.text()
        found: Counter[str] = Counter()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name] += sample.value
        return dict(found)

    async def until(self, what: str, true: Callable[[], Any], within_s: float) -> None:
        deadline_s = perf_counter() + within_s
        while not await true():
            assert perf_counter() < deadline_s, f"{what}: not within {within_s} s"
            await asyncio.sleep(0.1)

    async def until_idle(self) -> None:
        async def idle() -> bool:
            seen = [await self.snapshot(name) for name in self.servers]
            return all(s["running"] == s["waiting"] == 0 and s["state"] == "serving" for s in seen)

        await self.until("both servers idle and serving", idle, within_s=60.0)


@pytest.fixture(scope="module")
def processes(
    tmp_path_factory: pytest.TempPathFactory, vllm_venv: Path, tiny_model: Path
) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("pair")
    a, b, sidecar, router, admin = free_ports(5)
    readings = folder / "readings.sock"
    servers = {
        name: CpuServer(
            Replica(
                venv=vllm_venv,
                model=tiny_model,
                port=port,
                kv_blocks=BLOCKS,
                max_seqs=MAX_SEQS,
                environment={"ULLAGE_SOCKET": str(readings), "ULLAGE_ENGINE": name},
            ),
            folder / f"vllm-{name}.log",
        )
        for name, port in (("a", a), ("b", b))
    }
    config = folder / "sidecar.toml"
    config.write_text(
        SIDECAR_TOML.format(socket=readings, port=sidecar)
        + "".join(f'[[engine]]\nname = "{n}"\nurl = "{s.url}"\n' for n, s in servers.items())
    )
    sidecar_url, admin_url = f"http://127.0.0.1:{sidecar}", f"http://127.0.0.1:{admin}"
    with ExitStack() as stack:
        for server in servers.values():
            stack.callback(server.stop)
            server.start()

        def start_sidecar() -> int:
            flags = ["--config", str(config)]
            ready = f"{sidecar_url}/healthz"
            log = folder / "sidecar.log"
            return stack.enter_context(running("ullage_sidecar", flags, ready, log))

        flags = ["--listen", f"127.0.0.1:{router}", "--admin", f"127.0.0.1:{admin}"]
        flags += ["--sidecar", sidecar_url]
        for server in servers.values():
            flags += ["--replica", server.url]
        log = folder / "router.log"
        stack.enter_context(running("ullage_router", flags, f"{admin_url}/healthz", log))
        for server in servers.values():
            server.wait_ready()
        yield {
            "servers": servers,
            "router": f"http://127.0.0.1:{router}",
            "admin": admin_url,
            "sidecar": sidecar_url,
            "socket": readings,
            "start_sidecar": start_sidecar,
        }


@pytest.fixture(scope="module")
def sidecar_pids(processes: dict[str, Any]) -> list[int]:
    """The sidecars started so far, the living one last."""
    return [processes["start_sidecar"]()]


@pytest.fixture
async def pair(processes: dict[str, Any], sidecar_pids: list[int]) -> AsyncIterator[Pair]:
    timeout = aiohttp.ClientTimeout(total=120.0)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
        yield Pair(**processes, http=http)


def long_streams(count: int, tokens: int) -> list[load.Ask]:
    body = {"model": "tiny", "stream": True, "max_tokens": tokens, "ignore_eos": True}
    return [load.Ask("/v1/completions", {**body, "prompt": f"number {i}"}) for i in range(count)]


async def test_at_rest_the_snapshot_says_what_vllm_says(pair: Pair):
    await pair.until_idle()
    for name, server in pair.servers.items():
        metrics, seen = await pair.metrics(server.url), await pair.snapshot(name)
        assert seen["running"] == metrics["vllm:num_requests_running"] == 0
        assert seen["waiting"] == metrics["vllm:num_requests_waiting"] == 0
        free = round((1 - metrics["vllm:kv_cache_usage_perc"]) * (BLOCKS - 1))
        assert seen["free_blocks"] == free
        assert (seen["total_blocks"], seen["block_size"]) == (BLOCKS, 32)
        assert seen["max_num_seqs"] == MAX_SEQS
        assert seen["models"] == ["tiny"]
        assert seen["capacity_score"] > 0.9


async def test_under_load_the_snapshot_is_within_a_step_of_what_vllm_says(pair: Pair):
    await pair.until_idle()
    asks = long_streams(12, tokens=500)
    server = pair.servers["a"]
    work = asyncio.create_task(load.run(server.url, asks, len(asks), lambda _: None))

    async def settled() -> bool:
        seen = await pair.snapshot("a")
        return bool((seen["running"], seen["waiting"]) == (MAX_SEQS, 4))

    await pair.until("eight run and four wait", settled, within_s=20.0)
    compared = 0
    for _ in range(5):
        before = await pair.snapshot("a")
        metrics = await pair.metrics(server.url)
        after = await pair.snapshot("a")
        if (after["running"], after["waiting"]) != (MAX_SEQS, 4):
            break  # The first eight are done; what follows changes with every step.
        assert metrics["vllm:num_requests_running"] == MAX_SEQS
        assert metrics["vllm:num_requests_waiting"] == 4
        free = round((1 - metrics["vllm:kv_cache_usage_perc"]) * (BLOCKS - 1))
        # A step may begin a block for each of the running sequences.
        assert after["free_blocks"] - MAX_SEQS <= free <= before["free_blocks"] + MAX_SEQS
        compared += 1
    assert compared >= 2
    assert [answer.problem for answer in await work] == [""] * 12


async def test_a_flood_around_the_router_drives_its_share_away(pair: Pair):
    await pair.until_idle()
    flood = asyncio.create_task(
        load.run(pair.servers["a"].url, load.flood(seed=1), 20, lambda _: None)
    )
    try:

        async def full() -> bool:
            return (await pair.row("a"))["standing"] == "full"

        await pair.until("the flooded replica counts as full", full, within_s=30.0)
        answers = await load.run(pair.router, load.mixed(40, seed=2), 4, lambda _: None)
    finally:
        flood.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await flood
    assert [answer.problem for answer in answers] == [""] * 40
    assert Counter(answer.replica for answer in answers)["n/b"] >= 36

    async def recovered() -> bool:
        return bool(((await pair.row("a"))["capacity_score"] or 0.0) > 0.8)

    await pair.until("the flooded replica's score recovers", recovered, within_s=30.0)
    answers = await load.run(pair.router, load.mixed(60, seed=3), 2, lambda _: None)
    shares = Counter(answer.replica for answer in answers)
    assert min(shares["n/a"], shares["n/b"]) >= 12, shares


async def test_a_client_that_leaves_frees_its_replica_within_100_ms(pair: Pair):
    """Not streaming: vLLM has not sent a byte, and would go on for long."""
    times_s = []
    for _ in range(3):
        await pair.until_idle()
        ask = long_streams(1, tokens=3000)[0]
        body = {**ask.body, "stream": False}
        request = asyncio.create_task(
            pair.http.post(pair.router + ask.path, json=body).__aenter__()
        )

        async def runs() -> int:
            return sum([(await pair.snapshot(name))["running"] or 0 for name in pair.servers])

        await pair.until("the request runs", runs, within_s=20.0)
        request.cancel()
        left_s = perf_counter()
        with contextlib.suppress(asyncio.CancelledError):
            await request
        while await runs():
            assert perf_counter() - left_s < 10.0
            await asyncio.sleep(0.005)
        times_s.append(perf_counter() - left_s)
    rows = (await pair.json(f"{pair.admin}/replicas"))["replicas"]
    assert [row["in_flight"] for row in rows] == [0, 0]
    assert min(times_s) < 0.1, times_s


async def test_every_engine_step_of_half_a_minute_is_received(pair: Pair):
    await pair.until_idle()
    before = await pair.metrics(pair.sidecar)
    until_s = perf_counter() + 30.0
    endless = (ask for ask in itertools.chain.from_iterable(load.mixed(50, s) for s in range(99)))
    asks = itertools.takewhile(lambda _: perf_counter() < until_s, endless)
    answers = await load.run(pair.router, asks, 8, lambda _: None)
    after = await pair.metrics(pair.sidecar)
    received, lost = (
        after[f"ullage_sidecar_readings_{kind}_total"]
        - before[f"ullage_sidecar_readings_{kind}_total"]
        for kind in ("received", "lost")
    )
    print(f"steps {received + lost:.0f}, received {received / (received + lost):.4%}, "
          f"requests {len(answers)}")  # fmt: skip
    assert received > 500
    assert received / (received + lost) >= 0.99
    assert {answer.problem for answer in answers} == {""}


async def operator(pair: Pair, *command: str) -> tuple[int, str]:
    """Exit status of a command to the sidecar, and what it said."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ullage_sidecar", *command, "--socket", str(pair.socket)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


async def test_a_drained_replica_finishes_what_it_has_and_gets_nothing_new(pair: Pair):
    await pair.until_idle()
    drained = asyncio.Event()
    endless = (ask for ask in itertools.chain.from_iterable(load.mixed(50, s) for s in range(99)))
    asks = itertools.takewhile(lambda _: not drained.is_set(), endless)
    work = asyncio.create_task(load.run(pair.router, asks, 8, lambda _: None))

    async def busy() -> bool:
        return ((await pair.snapshot("a"))["running"] or 0) >= 2

    await pair.until("the replica is busy", busy, within_s=30.0)
    status, said = await operator(pair, "drain", "a", "--wait", "90")
    assert status == 0, said
    before, seen = await pair.row("a"), await pair.snapshot("a")
    assert (seen["state"], seen["running"], seen["waiting"]) == ("draining", 0, 0)
    assert (before["standing"], before["in_flight"]) == ("draining", 0)
    others = (await pair.row("b"))["dispatched"]

    async def goes_on() -> bool:
        return (await pair.row("b"))["dispatched"] >= others + 10

    await pair.until("the other one serves", goes_on, within_s=60.0)
    drained.set()
    assert {answer.problem for answer in await work} == {""}
    assert (await pair.row("a"))["dispatched"] == before["dispatched"]
    assert (await operator(pair, "undrain", "a"))[0] == 0
    await pair.until_idle()
    answers = await load.run(pair.router, load.mixed(20, seed=6), 2, lambda _: None)
    assert {answer.replica for answer in answers} == {"n/a", "n/b"}


async def test_without_its_sidecar_the_router_goes_on_by_its_own_counts(
    pair: Pair, sidecar_pids: list[int]
):
    await pair.until_idle()
    os.kill(sidecar_pids[-1], signal.SIGKILL)

    async def by_own_counts() -> bool:
        return bool((await pair.json(f"{pair.admin}/replicas"))["routing_by"] == "own_counts")

    await pair.until("routing by own counts", by_own_counts, within_s=10.0)
    answers = await load.run(pair.router, load.mixed(30, seed=4), 4, lambda _: None)
    assert [answer.problem for answer in answers] == [""] * 30
    assert len({answer.replica for answer in answers}) == 2

    sidecar_pids.append(pair.start_sidecar())

    async def scored() -> bool:
        seen = [await pair.snapshot(name) for name in pair.servers]
        return all(s["state"] == "serving" and s["capacity_score"] is not None for s in seen)

    # The engines are old: no warm-up again. Their heartbeats come within a second.
    await pair.until("both scored by the new sidecar", scored, within_s=4.0)


async def test_killing_a_replica_loses_no_request_that_had_not_begun_to_be_answered(pair: Pair):
    await pair.until_idle()
    asks = [ask for ask in load.mixed(200, seed=5) if ask.body["max_tokens"] < 100]
    began: set[int] = set()
    answers: list[tuple[int, load.Answer]] = []
    killed_s = 0.0

    async def send(number: int, ask: load.Ask) -> None:
        began_s = perf_counter()
        answer = await load.send(pair.http, pair.router, ask)
        if answer.ttft_s and began_s + answer.ttft_s < (killed_s or float("inf")):
            began.add(number)
        answers.append((number, answer))

    left = iter(enumerate(asks))

    async def client() -> None:
        for number, ask in left:
            await send(number, ask)

    clients = [asyncio.create_task(client()) for _ in range(6)]

    async def a_third_is_done() -> bool:
        return len(answers) >= len(asks) // 3

    await pair.until("a third is done", a_third_is_done, within_s=60.0)
    assert (await pair.row("b"))["dispatched"] > 0
    os.killpg(pair.servers["b"].pid, signal.SIGKILL)
    killed_s = perf_counter()
    await asyncio.gather(*clients)

    assert len(answers) == len(asks)
    lost = [(n, answer) for n, answer in answers if answer.problem]
    # Cut in the middle of a stream: it cannot be taken for a whole one, and nothing else is lost.
    assert all(answer.ask.streamed and number in began for number, answer in lost), lost
    assert len(lost) <= 6
    assert answers[-1][1].replica == "n/a"
    assert (await pair.snapshot("b"))["state"] == "down"
    assert (await pair.snapshot("b"))["capacity_score"] == 0.0
    await asyncio.sleep(5.0)  # The plugin's last word is stale by now; the sidecar's is not.
    row = await pair.row("b")
    assert (row["standing"], row["eligible"]) == ("down", False)
    assert row["age_s"] < 3.0
