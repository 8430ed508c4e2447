"""`ullage-sidecar drain | undrain | status`, against a sidecar process."""

import asyncio
import json
import signal
import stat
import time

import msgspec
import pytest

from sidecar_process import Sidecar, hello, run, step
from ullage_shared.snapshot import State
from ullage_sidecar.channel import encode_step
from ullage_sidecar.command import SETTLED_S, _what_is_left, main
from ullage_sidecar.control import Row

pytestmark = pytest.mark.slow


async def patiently(sidecar: Sidecar, engine_url):
    """Start it so that a plugin which says nothing while a command starts is not silent."""
    config = sidecar.socket.with_name("sidecar.toml")
    config.write_text(f'[health]\nsigns_of_life_s = 60\n[[engine]]\nurl = "{engine_url}"\n')
    await sidecar.start("--config", str(config))


async def at_work(sidecar: Sidecar, engine_url, sender_to, running, waiting=0):
    """A sidecar that has heard of so many requests; the sender that said so."""
    await patiently(sidecar, engine_url)
    sender = sender_to(sidecar.socket)
    sender.send(hello())
    sender.send(step(1, running, waiting))
    await sidecar.replica(lambda replica: replica.running == running)
    return sender


async def test_drain_and_undrain_are_seen_by_who_polls(sidecar, engine_url, sender_to):
    await at_work(sidecar, engine_url, sender_to, running=2)
    status, out, err = await run(sidecar, "drain")
    assert (status, err) == (0, "")
    assert out.split() == [
        *("ENGINE", "STATE", "SCORE", "RUNNING", "WAITING", "SOURCE", "WHY"),
        *("vllm", "draining", "0", "2", "0", "plugin", "drained", "by", "its", "operator"),
    ]
    replica = await sidecar.replica()
    assert (replica.state, replica.capacity_score) == (State.DRAINING, 0.0)
    assert (await run(sidecar, "undrain", "vllm"))[0] == 0
    assert (await sidecar.replica()).state is State.SERVING
    assert "serving" in (await run(sidecar, "status"))[1]


async def test_it_waits_until_nothing_runs_and_routers_have_heard_of_it(
    sidecar, engine_url, sender_to
):
    sender = await at_work(sidecar, engine_url, sender_to, running=3)
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
    await at_work(sidecar, engine_url, sender_to, running=3, waiting=1)
    status, _, err = await run(sidecar, "drain", "--wait", "0.5")
    assert status == 1
    assert err == "ullage-sidecar drain: after 0.5 s: vllm: 3 requests run, 1 wait\n"


def test_of_what_still_runs_it_is_said_whether_that_is_hung():
    why = "drained by its operator; has work, made no step for more than 30 s"
    hung = Row("a", State.DRAINING, why, 0.0, 3, 0, drained=True, gone=False)
    runs = "a: 3 requests run, 0 wait"
    late = "; it has work, made no step for more than 30 s"
    assert _what_is_left([hung]) == runs + late
    unread = msgspec.structs.replace(hung, reason="drained by its operator; its plugin is silent")
    assert _what_is_left([unread]) == runs


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
    await patiently(sidecar, engine_url)
    sender_to(sidecar.socket).send(hello())
    await sidecar.replica(lambda replica: replica.boot_id == "boot-1")
    await run(sidecar, "drain", "vllm")
    await sidecar.stop(signal.SIGKILL)
    await patiently(sidecar, engine_url)
    assert (await sidecar.replica()).state is State.DRAINING
    sender = sender_to(sidecar.socket)
    sender.send(hello())
    sender.send(step(1))
    replica = await sidecar.replica(lambda replica: replica.boot_id == "boot-1")
    assert replica.state is State.DRAINING
    (row,) = json.loads(kept.read_bytes())
    assert (row["engine"], row["rank"], row["boot_id"]) == ("vllm", 0, "boot-1")

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


async def drains_in_vain(sidecar: Sidecar, during) -> tuple[int, str, str]:
    """What a drain says whose wait is spoiled."""
    waits = asyncio.create_task(run(sidecar, "drain", "--wait", "20"))
    await sidecar.replica(lambda replica: replica.state is State.DRAINING)
    await during()
    return await waits


@pytest.mark.parametrize("how", ["undrained", "started anew"])
async def test_a_drain_that_is_ended_meanwhile_is_no_success(sidecar, engine_url, sender_to, how):
    sender = await at_work(sidecar, engine_url, sender_to, running=3)

    async def ended():
        if how == "undrained":
            await run(sidecar, "undrain")
        else:
            sender.send(hello(boot_id="boot-2"))

    status, _, err = await drains_in_vain(sidecar, ended)
    assert status == 1
    assert err == "ullage-sidecar drain: vllm: undrained meanwhile, or started anew\n"


async def test_ranks_that_speak_after_the_drain_are_waited_for(sidecar, engine_url, sender_to):
    await patiently(sidecar, engine_url)
    waits = asyncio.create_task(run(sidecar, "drain", "--wait", "20"))
    await sidecar.replica(lambda replica: replica.state is State.DRAINING)
    sender = sender_to(sidecar.socket)
    for rank in (0, 1):
        sender.send(hello(sender=1 + rank, engine_index=rank, data_parallel_size=2))
    sender.send(step(1, running=0))
    sender.send(encode_step(2, 1, time.monotonic(), (5, 3, 0.5, 0, 0, 0, 0, 0)))
    await asyncio.sleep(SETTLED_S + 1.0)
    assert not waits.done()
    sender.send(encode_step(2, 2, time.monotonic(), (0, 0, 0.0, 0, 0, 0, 0, 0)))
    sender.send(step(2, running=0))
    status, out, err = await waits
    assert (status, err) == (0, "")
    assert "vllm:0" in out
    assert "vllm:1" in out


async def test_a_sidecar_that_is_started_anew_is_waited_for(sidecar, engine_url, sender_to):
    await at_work(sidecar, engine_url, sender_to, running=3)

    async def again():
        await sidecar.stop(signal.SIGKILL)
        await asyncio.sleep(0.5)
        await patiently(sidecar, engine_url)
        after = sender_to(sidecar.socket)
        after.send(hello())
        after.send(step(2, running=0))

    assert (await drains_in_vain(sidecar, again))[0] == 0


async def test_a_drain_that_cannot_be_kept_is_said_and_kept_once_it_can(sidecar, engine_url):
    kept = sidecar.socket.with_name("readings.sock.drained")
    in_the_way = sidecar.socket.with_name("readings.sock.drained.new")
    in_the_way.mkdir()
    await sidecar.start("--engine", engine_url)
    status, _, err = await run(sidecar, "drain")
    assert status == 0
    assert err == (
        "ullage-sidecar drain: a restart of the sidecar will forget it: Is a directory\n"
    )
    in_the_way.rmdir()
    async with asyncio.timeout(5.0):
        while not kept.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("what", ["file", "folder"])
async def test_what_is_not_the_sidecars_stays_where_it_is(sidecar, engine_url, what):
    control = sidecar.socket.with_name("readings.sock.control")
    control.mkdir() if what == "folder" else control.write_text("mine")
    await sidecar.start("--engine", engine_url)
    assert sidecar.said == [f"ullage-sidecar: socket {control}: Address already in use\n"]
    assert await sidecar.stop() == 1
    assert control.exists()


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
        f"ullage-sidecar drain: no sidecar answers at {sidecar.socket}.control "
        "(--socket PATH or --config FILE, as the sidecar has it): "
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


async def test_a_sidecar_whose_files_are_deleted_makes_them_anew(sidecar, engine_url, sender_to):
    """Somebody cleans up: plugins and operators find it again, and a drain is not forgotten."""
    await at_work(sidecar, engine_url, sender_to, running=2)
    assert (await run(sidecar, "drain"))[0] == 0
    for file in sidecar.socket.parent.glob(f"{sidecar.socket.name}*"):
        file.unlink()
    made = [
        sidecar.socket.with_name(sidecar.socket.name + end) for end in ("", ".control", ".drained")
    ]
    async with asyncio.timeout(10.0):
        while not all(file.exists() for file in made):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    sender = sender_to(sidecar.socket)
    sender.send(hello())
    sender.send(step(2, running=5))
    await sidecar.replica(lambda replica: replica.running == 5)
    assert "draining" in (await run(sidecar, "status"))[1]
    assert await sidecar.stop() == 0
    assert not any(file.exists() for file in made[:2])
    await patiently(sidecar, engine_url)
    assert (await sidecar.replica()).state is State.DRAINING


def test_an_engine_whose_name_looks_like_a_flag_is_told_its_place(capsys):
    with pytest.raises(SystemExit):
        main(["drain", "-x"])
    assert "an engine whose name begins with - goes last, behind --" in capsys.readouterr().err
