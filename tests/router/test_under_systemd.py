"""The router as systemd sees it: what it tells, whom it ends, and a socket that outlives it."""

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_plane import eventually
from manager import Manager, listening
from raw_client import Client, request
from router_process import RouterProcess, router_process, run_router
from scripted_backend import Backend, answering, response
from ullage_shared.address import Address

pytestmark = pytest.mark.slow

HELLO = answering(response(b"hello"))


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify"))
    yield made
    made.close()


def watched(manager: Manager, watchdog_s: float = 60.0) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": str(round(watchdog_s * 1e6))}


@pytest.mark.parametrize("workers", [1, 2])
async def test_systemd_hears_of_start_reload_refusal_and_stop(
    workers: int, manager: Manager, tmp_path: Path
) -> None:
    config = tmp_path / "router.toml"
    config.write_text('replicas = ["http://127.0.0.1:1"]\n[limits]\nstop_grace_s = 7.0\n')
    flags = ("--config", str(config), "--workers", str(workers))
    async with router_process(*flags, environment=watched(manager)) as router:
        ready = await manager.hears("READY=1")
        assert ready.startswith(f"READY=1\nSTATUS=clients at {router.address}, operators at ")

        router.process.send_signal(signal.SIGHUP)
        assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+", await manager.hears("RELOADING=1"))
        assert await manager.hears("READY=1") == ready

        config.write_text("poll_interval_s = 0.0\n")
        router.process.send_signal(signal.SIGHUP)
        refused = await manager.hears("READY=1")
        assert "\nSTATUS=reload refused: poll_interval_s = 0.0: wanted" in refused

        router.process.terminate()
        assert "\nEXTEND_TIMEOUT_USEC=17000000\n" in await manager.hears("STOPPING=1")
        assert await router.ended(5.0) == 0


async def test_a_router_whose_loop_stands_still_gives_no_sign_of_life(manager: Manager) -> None:
    environment = watched(manager, watchdog_s=0.2)
    flags = ("--replica", "http://127.0.0.1:1")
    async with router_process(*flags, environment=environment) as router:
        for _ in range(3):
            await manager.hears("WATCHDOG=1")
        router.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.05)
        manager.heard()
        await asyncio.sleep(0.25)
        assert manager.heard() == []
        router.process.send_signal(signal.SIGCONT)
        await manager.hears("WATCHDOG=1")


async def test_a_hung_worker_says_where_and_is_started_anew(manager: Manager) -> None:
    environment = watched(manager, watchdog_s=1.0) | {"PYTHONFAULTHANDLER": "1"}
    async with Backend(HELLO) as backend:
        flags = ("--workers", "2", "--replica", backend.url)
        async with router_process(*flags, environment=environment) as router:
            pid = _pid_of_worker_1(router)
            os.kill(pid, signal.SIGSTOP)
            await eventually(lambda: _pid_of_worker_1(router) != pid, within_s=20.0)
            said = "\n".join(router.log)
            assert "level=ERROR worker_hung worker=1 silent_s=1" in said
            assert "worker_died worker=1 how=SIGABRT" in said
            assert "Fatal Python error: Aborted" in said
            assert "worker_hung worker=2" not in said


def _pid_of_worker_1(router: RouterProcess) -> int:
    return int(re.findall(r"worker_ready worker=1 pid=(\d+)", "\n".join(router.log))[-1])


async def test_who_connects_while_no_router_runs_is_served_by_the_next_one() -> None:
    async with Backend(HELLO) as backend:
        flags = ("--replica", backend.url)
        with listening() as sock:
            address = Address(*sock.getsockname())
            async with router_process(*flags, sockets=[sock.fileno()]) as router:
                assert router.address == address
                assert await _ask_once(address) == b"hello"
                router.process.terminate()
                assert await router.ended(10.0) == 0
            waiting = asyncio.ensure_future(_ask_once(address))
            async with router_process(*flags, sockets=[sock.fileno()]):
                assert await waiting == b"hello"


@pytest.mark.parametrize("workers", [1, 2])
async def test_one_router_takes_over_from_another_and_no_request_is_lost(workers: int) -> None:
    """Neither of those that connect for each request, nor on connections that are kept."""
    async with Backend(HELLO) as backend:
        flags = ("--workers", str(workers), "--replica", backend.url)
        with listening(backlog=4096) as sock:
            address, fds = Address(*sock.getsockname()), [sock.fileno()]
            async with router_process(*flags, sockets=fds) as old:
                over = asyncio.Event()
                asking = [_ask_anew(over, address) for _ in range(4)]
                asking += [_ask_on(over, address) for _ in range(4)]
                clients = [asyncio.ensure_future(each) for each in asking]
                async with router_process(*flags, sockets=fds):
                    old.process.terminate()
                    assert await old.ended(10.0) == 0
                    await asyncio.sleep(0.1)
                    over.set()
                    answers = await asyncio.gather(*clients)
    assert all(answers)
    assert {answer for of_one in answers for answer in of_one} == {b"hello"}


async def test_what_is_given_and_no_place_for_clients_is_exit_status_2() -> None:
    reading, writing = os.pipe()
    status, said = await run_router("--replica", "http://127.0.0.1:1", sockets=[reading])
    os.close(reading)
    os.close(writing)
    assert status == 2
    assert said == (
        "ullage-router: LISTEN_FDS: descriptor 3: wanted TCP sockets that listen "
        "(ListenStream=port, Accept=no) (environment)\n"
    )


async def _ask_once(address: Address) -> bytes:
    client = await Client.connect(address)
    try:
        return (await client.ask(request(b"/v1/completions", b"{}"))).body
    finally:
        client.close()


async def _ask_anew(over: asyncio.Event, address: Address) -> list[bytes]:
    answers = []
    while not over.is_set():
        answers.append(await _ask_once(address))
    return answers


async def _ask_on(over: asyncio.Event, address: Address) -> list[bytes]:
    """On one connection, until an answer says that it will be closed."""
    answers = []
    client = await Client.connect(address)
    while not over.is_set():
        answer = await client.ask(request(b"/v1/completions", b"{}"))
        answers.append(answer.body)
        if b"close" in answer.all(b"connection"):
            client.close()
            client = await Client.connect(address)
        await asyncio.sleep(0.001)
    client.close()
    return answers
