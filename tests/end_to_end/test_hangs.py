"""One real vLLM server, stopped, killed and started anew: what sidecar and router make of it.

A film of the published snapshot, a picture every 20 ms, shows what routers could have seen in
between. The tests share the server, and run in this order: the last two kill it and start it anew.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from demo import load
from demo.processes import running
from ullage_sidecar.channel import Sender, encode_hello
from ullage_sidecar.core.reading import Hello
from vllm_cpu.serve import CpuServer, Replica, running_members

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

LIFE_S, HUNG_S = 1.5, 2.0
COLD_S = 15.0
"""Counted from when its plugin is made, which on a busy machine is seconds before it answers."""
SLACK_S = 3.0
"""For a busy machine: what has its own limit in the unit tests is only bounded here."""
SIDECAR_TOML = f"""
node = "n"
socket = "{{socket}}"
listen = "127.0.0.1:{{port}}"

[[engine]]
url = "{{url}}"

[health]
interval_s = 0.25
timeout_s = 0.5
signs_of_life_s = {LIFE_S}
hung_after_s = {HUNG_S}

[warm_up]
rounds = 0
zero_until_s = {COLD_S}
ramp_until_s = {COLD_S + 2.0}
"""


@dataclass(frozen=True, slots=True)
class Picture:
    at_s: float
    state: str
    reason: str
    boot_id: str
    scored: bool
    running: int | None


class Film:
    """What was published, picture by picture."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self._url = url
        self._http = http
        self.pictures: list[Picture] = []

    async def roll(self) -> None:
        while True:
            with suppress(aiohttp.ClientError, TimeoutError):
                async with self._http.get(self._url) as answer:
                    (row,) = (await answer.json())["replicas"]
                known = [row[key] for key in ("state", "reason", "boot_id")]
                scored = row["capacity_score"] is not None
                self.pictures.append(Picture(time.monotonic(), *known, scored, row["running"]))
            await asyncio.sleep(0.02)

    def states(self) -> list[str]:
        return [state for state, _ in groupby(picture.state for picture in self.pictures)]

    def reasons(self) -> set[str]:
        return {picture.reason for picture in self.pictures}

    async def until(self, state: str, within_s: float, reason: str | None = None) -> Picture:
        """Wait for a picture of this state (and reason), of now on."""
        first, begun_s = len(self.pictures), time.monotonic()
        while True:
            for picture in self.pictures[first:]:
                if picture.state == state and reason in (None, picture.reason):
                    return picture
            late = time.monotonic() - begun_s > within_s
            assert not late, f"not {state} within {within_s} s: {self.states()}, {self.reasons()}"
            await asyncio.sleep(0.01)


@dataclass(slots=True)
class Stage:
    """The server, and the ways to ask about it."""

    server: CpuServer
    sidecar: str
    sidecar_pid: int
    router: str
    admin: str
    socket: Path
    log: Path
    http: aiohttp.ClientSession

    @asynccontextmanager
    async def film(self) -> AsyncIterator[Film]:
        film = Film(f"{self.sidecar}/v1/snapshots", self.http)
        rolling = asyncio.create_task(film.roll())
        try:
            yield film
        finally:
            rolling.cancel()

    async def row(self) -> dict[str, Any]:
        async with self.http.get(f"{self.admin}/replicas") as answer:
            return dict((await answer.json())["replicas"][0])

    async def standing(self, wanted: str) -> None:
        """Wait until the router sees it so; it polls twice a second."""
        async with asyncio.timeout(SLACK_S):
            while (await self.row())["standing"] != wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def status_of_a_request(self) -> int:
        # On processors with AMX vLLM 0.32 dies of a first prompt of few tokens (SIGILL: no tiles).
        body = {"model": "tiny", "prompt": "one " * 40, "max_tokens": 1}
        async with self.http.post(f"{self.router}/v1/completions", json=body) as answer:
            return answer.status

    def core(self) -> int:
        """Process id of the engine core."""
        for pid in running_members(self.server.pid):
            if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        raise AssertionError("no engine core among the server's processes")

    def lines(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if " state engine=" in line]


@pytest.fixture(scope="module")
def processes(
    tmp_path_factory: pytest.TempPathFactory,
    vllm_venv: Path,
    tiny_model: Path,
    free_port: Callable[[], int],
) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("hangs")
    readings, log = folder / "readings.sock", folder / "sidecar.log"
    ports = {name: free_port() for name in ("vllm", "sidecar", "router", "admin")}
    replica = Replica(
        vllm_venv, tiny_model, port=ports["vllm"], environment={"ULLAGE_SOCKET": str(readings)}
    )
    server = CpuServer(replica, folder / "vllm.log")
    config = folder / "sidecar.toml"
    config.write_text(SIDECAR_TOML.format(socket=readings, port=ports["sidecar"], url=server.url))
    url = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    with ExitStack() as stack:
        stack.callback(server.stop)
        server.start()
        flags, ready = ["--config", str(config)], f"{url['sidecar']}/healthz"
        pid = stack.enter_context(running("ullage_sidecar", flags, ready, log))
        flags = ["--listen", url["router"][7:], "--admin", url["admin"][7:]]
        flags += ["--sidecar", url["sidecar"], "--replica", server.url]
        ready = f"{url['admin']}/healthz"
        stack.enter_context(running("ullage_router", flags, ready, folder / "router.log"))
        server.wait_ready()
        yield {
            "server": server,
            "sidecar": url["sidecar"],
            "sidecar_pid": pid,
            "router": url["router"],
            "admin": url["admin"],
            "socket": readings,
            "log": log,
        }


@pytest.fixture
async def stage(processes: dict[str, Any]) -> AsyncIterator[Stage]:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=60.0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        yield Stage(**processes, http=http)


async def test_a_fresh_server_is_warm_before_it_serves(stage: Stage):
    async with stage.film() as film:
        await film.until("serving", within_s=60.0, reason="")
    await stage.standing("eligible")


async def test_a_second_server_of_the_name_makes_the_first_unknown_as_long_as_it_speaks(
    stage: Stage,
):
    async with stage.film() as film:
        other = Sender(str(stage.socket))
        assert other.connect()
        elder = Hello(1, "vllm", "another-boot", 7, started_s=1.0)
        for _ in range(20):
            other.send(encode_hello(elder))
            await asyncio.sleep(0.1)
        other.close()
        both = f"two servers go by this name: pids {stage.server.pid} and 7"
        assert both in film.reasons()
        assert not film.pictures[-1].scored
        await stage.standing("silent")
        assert await stage.status_of_a_request() == 200
        await film.until("serving", LIFE_S + SLACK_S, reason="")
    assert film.states() == ["serving"]
    assert film.reasons() == {"", both}


async def test_an_engine_core_stopped_at_work_is_hung_until_it_goes_on(stage: Stage):
    body = {"model": "tiny", "stream": True, "max_tokens": 800, "ignore_eos": True}
    asks = [load.Ask("/v1/completions", {**body, "prompt": f"number {n}"}) for n in range(8)]
    work = asyncio.create_task(load.run(stage.server.url, asks, len(asks), lambda _: None))
    async with stage.film() as film:
        async with asyncio.timeout(20.0):
            while not (film.pictures and film.pictures[-1].running):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        core = stage.core()
        os.kill(core, signal.SIGSTOP)
        try:
            stopped_s = time.monotonic()
            hung = await film.until("hung", HUNG_S + SLACK_S)
            assert hung.at_s - stopped_s >= HUNG_S - 0.1
            assert stage.server.is_healthy()  # Its API server notices nothing.
            await stage.standing("hung")
            assert await stage.status_of_a_request() == 503
        finally:
            os.kill(core, signal.SIGCONT)
        await film.until("serving", SLACK_S, reason="")
    assert film.states() == ["serving", "hung", "serving"]
    why = "has work, made no step for more than"
    assert film.reasons() == {"", f"{why} {LIFE_S:g} s", f"{why} {HUNG_S:g} s"}
    assert {answer.problem for answer in await work} == {""}


async def test_a_server_stopped_whole_is_down_until_it_goes_on(stage: Stage):
    async with stage.film() as film:
        await film.until("serving", 20.0, reason="")
        os.killpg(stage.server.pid, signal.SIGSTOP)
        try:
            stopped_s = time.monotonic()
            down = await film.until("down", 0.75 + LIFE_S + SLACK_S)
            assert down.at_s - stopped_s >= LIFE_S
            await stage.standing("down")
        finally:
            os.killpg(stage.server.pid, signal.SIGCONT)
        await film.until("serving", SLACK_S, reason="")
    assert film.states() == ["serving", "down", "serving"]
    assert film.reasons() == {"", "its plugin is silent", "/health: no answer in time"}
    await stage.standing("eligible")
    assert await stage.status_of_a_request() == 200


async def test_a_sidecar_stopped_for_a_while_claims_nothing_until_it_has_heard_anew(stage: Stage):
    async with stage.film() as film:
        await film.until("serving", SLACK_S, reason="")
        os.kill(stage.sidecar_pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(LIFE_S + HUNG_S)
        finally:
            os.kill(stage.sidecar_pid, signal.SIGCONT)
        await asyncio.sleep(LIFE_S)
    assert film.states() == ["serving"]
    away = "this sidecar was away itself, and has not heard of it since"
    assert film.reasons() <= {"", away}
    assert film.pictures[-1].reason == ""
    assert 'was_away why="stopped, or starved" seconds=' in stage.log.read_text()


async def test_a_killed_engine_core_is_down_for_good(stage: Stage):
    said = len(stage.lines())
    async with stage.film() as film:
        await film.until("serving", SLACK_S, reason="")
        os.kill(stage.core(), signal.SIGKILL)
        await film.until("down", SLACK_S)
        await film.until("down", 20.0, reason="/health: Connection refused")
        await asyncio.sleep(1.0)
    assert film.states() == ["serving", "down"]
    causes = {"/health: status 503", "/health: connection lost", "/health: Connection refused"}
    assert {p.reason for p in film.pictures if p.state == "down"} <= causes
    assert 1 <= len(stage.lines()) - said <= 3
    await stage.standing("down")


async def test_a_server_started_anew_on_its_port_warms_up_before_it_serves(stage: Stage):
    before = stage.server.pid
    async with stage.film() as film:
        await film.until("down", SLACK_S)
        former = film.pictures[-1].boot_id
        await asyncio.to_thread(stage.server.stop)
        stage.server.start()
        await asyncio.to_thread(stage.server.wait_ready)
        await film.until("serving", 60.0, reason="")
    assert stage.server.pid != before
    assert film.states() == ["down", "starting", "warming", "ramping", "serving"]
    up = [picture for picture in film.pictures if picture.state in ("ramping", "serving")]
    assert former not in {picture.boot_id for picture in up}
    answers_s = next(picture.at_s for picture in film.pictures if picture.state == "warming")
    print(f"warming for {up[0].at_s - answers_s:.2f} s after its first answer")
    await stage.standing("eligible")
    assert await stage.status_of_a_request() == 200
