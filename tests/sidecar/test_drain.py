"""`ullage-sidecar drain | undrain | status`, against a sidecar process."""

import asyncio
import json
import os
import signal
import stat
import sys
import time

import pytest

from sidecar_process import Sidecar, hello, step
from ullage_shared.snapshot import State
from ullage_sidecar.command import SETTLED_S

pytestmark = pytest.mark.slow


async def run(sidecar: Sidecar, *arguments: str) -> tuple[int, str, str]:
    """Exit status, and what was said."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ullage_sidecar", *arguments, "--socket", os.fspath(sidecar.socket),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(30.0):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_drain_and_undrain_are_seen_by_who_polls(sidecar, engine_url, sender_to):
    await sidecar.start("--engine", engine_url)
    sender = sender_to(sidecar.socket)
    sender.send(hello())
    sender.send(step(1))
    await sidecar.replica(lambda replica: replica.running == 2)
    status, out, err = await run(sidecar, "drain")
    assert (status, err) == (0, "")
    assert out.split() == [
        *("ENGINE", "STATE", "SCORE", "RUNNING", "WAITING", "WHY"),
        *("vllm", "draining", "0", "2", "0", "drained", "by", "its", "operator"),
    ]
    replica = await sidecar.replica()
    assert (replica.state, replica.capacity_score) == (State.DRAINING, 0.0)
    assert (await run(sidecar, "undrain", "vllm"))[0] == 0
    assert (await sidecar.replica()).state is State.SERVING
    assert "serving" in (await run(sidecar, "status"))[1]


async def test_it_waits_until_nothing_runs_and_routers_have_heard_of_it(
    sidecar, engine_url, sender_to
):
    await sidecar.start("--engine", engine_url)
    sender = sender_to(sidecar.socket)
    sender.send(hello())
    sender.send(step(1, running=3))
    await sidecar.replica(lambda replica: replica.running == 3)
    waits = asyncio.create_task(run(sidecar, "drain", "--wait", "20"))
    await sidecar.replica(lambda replica: replica.state is State.DRAINING)
    await asyncio.sleep(0.5)
    sender.send(step(2, running=1, waiting=1))
    await asyncio.sleep(0.5)
    assert not waits.done()
    sender.send(step(3, running=0))
    idle_s = time.monotonic()
    status, out, _ = await waits
    assert status == 0
    assert "draining" in out
    assert time.monotonic() - idle_s >= SETTLED_S


async def test_when_the_time_is_up_it_says_what_still_runs(sidecar, engine_url, sender_to):
    await sidecar.start("--engine", engine_url)
    sender = sender_to(sidecar.socket)
    sender.send(hello())
    sender.send(step(1, running=3, waiting=1))
    await sidecar.replica(lambda replica: replica.running == 3)
    status, _, err = await run(sidecar, "drain", "--wait", "0.5")
    assert status == 1
    assert err == "ullage-sidecar drain: after 0.5 s: vllm: 3 requests run, 1 wait\n"


async def test_where_the_plugin_is_silent_nobody_knows(sidecar, engine_url):
    await sidecar.start("--engine", engine_url)
    status, _, err = await run(sidecar, "drain", "--wait", "0.3")
    assert status == 1
    assert "vllm: its plugin is silent, so nobody knows what runs" in err


async def test_for_a_server_that_is_gone_nobody_waits(sidecar, fake_engine, engine_url):
    await sidecar.start("--engine", engine_url)
    await fake_engine.cleanup()
    await sidecar.replica(lambda replica: replica.state is State.DOWN)
    status, out, _ = await run(sidecar, "drain", "--wait", "20")
    assert status == 0
    assert "down" in out


async def test_a_drain_survives_the_sidecar_and_ends_with_the_server(
    sidecar, engine_url, sender_to
):
    kept = sidecar.socket.with_name("readings.sock.drained")
    await sidecar.start("--engine", engine_url)
    sender_to(sidecar.socket).send(hello())
    await sidecar.replica(lambda replica: replica.boot_id == "boot-1")
    await run(sidecar, "drain", "vllm")
    await sidecar.stop(signal.SIGKILL)
    await sidecar.start("--engine", engine_url)
    assert (await sidecar.replica()).state is State.DRAINING
    sender = sender_to(sidecar.socket)
    sender.send(hello())
    sender.send(step(1))
    replica = await sidecar.replica(lambda replica: replica.boot_id == "boot-1")
    assert replica.state is State.DRAINING
    assert json.loads(kept.read_bytes()) == [{"engine": "vllm", "rank": 0, "boot_id": "boot-1"}]

    sender.send(hello(boot_id="boot-2"))
    replica = await sidecar.replica(lambda replica: replica.boot_id == "boot-2")
    await sidecar.replica(lambda replica: replica.state is State.SERVING)
    async with asyncio.timeout(5.0):
        while kept.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("rubbish", [b"", b"{}", b"\xff", b'[{"engine":1}]', b"[" * 9999])
async def test_a_file_that_cannot_be_read_is_said_and_the_sidecar_serves(
    sidecar, engine_url, rubbish
):
    sidecar.socket.with_name("readings.sock.drained").write_bytes(rubbish)
    await sidecar.start("--engine", engine_url)
    assert (await sidecar.replica()).state is State.SERVING
    assert any("drains_lost" in said for said in sidecar.said)


async def test_an_unknown_engine_is_named_with_those_there_are(sidecar, engine_url):
    await sidecar.start("--engine", f"a={engine_url}")
    for command in ("drain", "undrain"):
        status, _, err = await run(sidecar, command, "b")
        assert status == 2
        assert err == f"ullage-sidecar {command}: no engine 'b'; wanted one of: a\n"
    assert (await sidecar.replica()).state is State.SERVING


async def test_without_a_sidecar_it_says_so(sidecar):
    status, _, err = await run(sidecar, "drain", "--wait", "5")
    assert status == 1
    assert err == (
        f"ullage-sidecar drain: no sidecar answers at {sidecar.socket}.control: "
        "No such file or directory\n"
    )


@pytest.mark.parametrize(
    "arguments", [("drain", "--wait", "-1"), ("drain", "--wait", "x"), ("drain", "a", "b")]
)
async def test_wrong_usage_is_status_2(sidecar, arguments):
    assert (await run(sidecar, *arguments))[0] == 2


async def test_only_the_sidecars_group_may_drain(sidecar, engine_url):
    await sidecar.start("--engine", engine_url)
    control = sidecar.socket.with_name("readings.sock.control")
    assert stat.S_IMODE(control.stat().st_mode) == 0o660
    await sidecar.stop()
    assert not control.exists()


async def test_drains_reach_nobody_over_the_network(sidecar, engine_url):
    await sidecar.start("--engine", engine_url)
    for path in ("/drain", "/undrain", "/status"):
        assert (await sidecar.get(path))[0] == 404
