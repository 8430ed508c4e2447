"""The process as operators run it."""

import asyncio
import socket
from pathlib import Path

import aiohttp
import pytest

from data_plane import eventually
from raw_client import Client, request
from router_process import router_process, run_router
from scripted_backend import (
    LAST_CHUNK,
    Backend,
    Call,
    answering,
    chunk,
    chunked_head,
    response,
    silent,
)
from sidecar_stand_in import SidecarStandIn
from snapshots import document, snapshot
from ullage_router.config import Limits

pytestmark = pytest.mark.slow


async def test_it_routes_by_a_sidecars_word_and_shows_it() -> None:
    async with (
        Backend(answering(response(b"empty"))) as empty,
        Backend(answering(response(b"full"))) as full,
        SidecarStandIn(document(snapshot(empty.url, 0.9), snapshot(full.url, 0.1))) as sidecar,
        router_process("--sidecar", sidecar.url, "--replica", full.url) as router,
    ):
        admin = f"http://{router.admin}"
        async with aiohttp.ClientSession() as session:

            async def scored() -> bool:
                async with session.get(f"{admin}/replicas") as page:
                    rows = (await page.json())["replicas"]
                return [row["standing"] for row in rows].count("eligible") == 1

            async with asyncio.timeout(5.0):
                while not await scored():  # noqa: ASYNC110 -- another process
                    await asyncio.sleep(0.01)
            client = await Client.connect(router.address)
            completions = [await client.ask(request(b"/v1/completions", b"{}")) for _ in range(20)]
            assert {a.body for a in completions} == {b"empty"}
            client.close()
            async with session.get(f"{admin}/metrics") as page:
                assert 'ullage_router_decisions_total{why="wait"} 20.0' in await page.text()
            async with session.get(f"{admin}/healthz") as page:
                assert page.status == 200


@pytest.mark.parametrize("signal", ["terminate", pytest.param("interrupt", marks=pytest.mark.slow)])
async def test_a_signal_lets_a_running_stream_finish_and_exits_0(signal: str) -> None:
    more = asyncio.Event()

    async def script(call: Call) -> None:
        if (await call.read_request()).target == b"/v1/models":
            return
        await call.send(chunked_head() + chunk(b"1"))
        await more.wait()
        await call.send(chunk(b"2") + LAST_CHUNK)
        await call.gone()

    async with Backend(script) as backend, router_process("--replica", backend.url) as router:
        client = await Client.connect(router.address)
        await client.send(request(body=b"{}"))
        await client.head()
        assert await client.piece() == b"1"
        if signal == "terminate":
            router.process.terminate()
        else:
            router.process.send_signal(2)
        await eventually(lambda: "stopping requests=1" in router.log[-1])
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{router.admin}/healthz") as page,
        ):
            assert (page.status, (await page.json())["stopping"]) == (503, True)
        with pytest.raises(ConnectionRefusedError):
            await Client.connect(router.address)
        more.set()
        assert [await client.piece(), await client.piece()] == [b"2", b""]
        assert await router.ended(5.0) == 0
        client.close()
        await eventually(lambda: "stopped" in router.log[-1])


async def test_a_stream_that_outlasts_the_grace_is_cut_and_the_exit_status_is_0(
    tmp_path: Path,
) -> None:
    config = tmp_path / "router.toml"
    config.write_text("[limits]\nstop_grace_s = 0.1\n")
    async with (
        Backend(silent) as backend,
        router_process("--config", str(config), "--replica", backend.url) as router,
    ):
        client = await Client.connect(router.address)
        await client.send(request(body=b"{}"))
        await eventually(lambda: backend.open)
        await asyncio.sleep(0.05)
        router.process.terminate()
        assert await router.ended(5.0) == 0
        assert (await client.answer()).error["code"] == "router_stopping"
        client.close()
        await eventually(lambda: "stopped" in router.log[-1])
        assert any("cut_by_stop connections=1" in line for line in router.log)


async def test_a_second_signal_ends_at_once_what_still_runs() -> None:
    async def deaf(call: Call) -> None:
        while True:
            await call.read_request()

    async with Backend(deaf) as backend, router_process("--replica", backend.url) as router:
        client = await Client.connect(router.address)
        await client.send(request(body=b"{}"))
        # The router has questions of its own.
        await eventually(lambda: any(asked.method == b"POST" for asked in backend.requests))
        router.process.terminate()
        await eventually(lambda: any("stopping requests=1" in line for line in router.log))
        router.process.send_signal(2)
        assert await router.ended(5.0) == 0
        assert (await client.answer()).error["code"] == "router_stopping"
        client.close()
        assert any("cut_by_stop connections=1" in line for line in router.log)


@pytest.mark.parametrize("flag", ["--listen", pytest.param("--admin", marks=pytest.mark.slow)])
async def test_a_port_in_use_is_exit_status_1_and_one_clear_line(flag: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = {"--listen": "127.0.0.1:0", "--admin": "127.0.0.1:0", flag: address}
        arguments = [part for pair in flags.items() for part in pair]
        status, said = await run_router(*arguments, "--replica", "http://127.0.0.1:1")
    assert status == 1
    (line,) = said.splitlines()
    assert "cannot_listen" in line
    assert "Address already in use" in line
    assert address.rpartition(":")[2] in line


async def test_an_address_of_another_host_is_exit_status_1_and_named() -> None:
    status, said = await run_router(
        *("--listen", "192.0.2.1:80", "--admin", "127.0.0.1:0"),
        *("--replica", "http://127.0.0.1:1"),
    )
    assert status == 1
    assert "listen=192.0.2.1:80" in said
    assert len(said.splitlines()) == 1


async def test_a_wrong_configuration_is_exit_status_2_and_one_clear_line() -> None:
    status, said = await run_router("--listen", "nonsense", "--replica", "http://127.0.0.1:1")
    assert status == 2
    assert said.startswith("ullage-router: listen = 'nonsense': wanted host:port")
    assert len(said.splitlines()) == 1


async def test_the_default_limit_lets_20_megabytes_pass() -> None:
    assert Limits().max_body_bytes > 20_000_000
