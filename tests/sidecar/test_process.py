"""The whole process, over real sockets, between a fake engine and somebody who polls."""

import asyncio
import json
import signal
import socket
import time

import pytest

from sidecar_process import Sidecar, hello, step
from ullage_shared import log
from ullage_shared.snapshot import State, decode
from ullage_sidecar.__main__ import main
from ullage_sidecar.channel import encode_step

pytestmark = pytest.mark.slow

HEARTBEAT_S = 1.0


async def test_readings_become_snapshots_and_unchanged_ones_cost_304(
    sidecar, engine_url, sender_to
):
    await sidecar.start("--engine", engine_url)
    sender_to(sidecar.socket).send(b"garbage!")
    sender = sender_to(sidecar.socket)
    sender.send(hello())
    sender.send(step(1))
    replica = await sidecar.replica(lambda replica: replica.running == 2)
    assert replica.id == "n/vllm"
    assert replica.url == engine_url
    assert replica.state is State.SERVING
    assert replica.free_blocks == 50
    assert replica.capacity_score == pytest.approx(0.5 * 0.5 + 0.3 * 0.75 + 0.2)

    _, headers, _ = await sidecar.get()
    status, again, body = await sidecar.get(**{"If-None-Match": headers["ETag"]})
    assert (status, body) == (304, b"")
    assert again["ETag"] == headers["ETag"]
    sender.send(step(2, running=6))
    await sidecar.replica(lambda replica: replica.running == 6)
    status, _, _ = await sidecar.get(**{"If-None-Match": headers["ETag"]})
    assert status == 200

    status, _, body = await sidecar.get("/healthz")
    assert status == 200
    assert json.loads(body)["heard"] == 1
    status, _, body = await sidecar.get("/metrics")
    assert b'ullage_sidecar_readings_received_total{engine="vllm"} 2.0' in body
    assert b'ullage_sidecar_datagrams_ignored_total{why="malformed"} 1.0' in body
    for path, status in (("/v1/orca", 200), ("/v1/orca/vllm", 200), ("/v1/orca/b", 404)):
        assert (await sidecar.get(path))[0] == status
    assert json.loads((await sidecar.get("/v1/orca"))[2])["named_metrics"] == {
        "kv_cache_usage_perc": 0.5,
        "num_requests_running": 6,
        "num_requests_waiting": 0,
    }


async def test_sigterm_and_sigint_end_it_cleanly(sidecar, engine_url):
    for number in (signal.SIGTERM, signal.SIGINT):
        await sidecar.start("--engine", engine_url)
        assert sidecar.socket.is_socket()
        sidecar.process.send_signal(signal.SIGHUP)  # no reload yet, but no end either
        assert (await sidecar.get("/healthz"))[0] == 200
        assert await sidecar.stop(number) == 0
        assert not sidecar.socket.exists()
        assert sidecar.said[-1].endswith(" level=INFO stopped\n")


async def test_a_killed_sidecar_is_whole_again_within_a_heartbeat(sidecar, engine_url, sender_to):
    """The engine is idle: it makes no step, only its heartbeats tell the new sidecar of it."""
    idle = encode_step(1, 900, time.monotonic(), (0, 0, 0.0, 0, 0, 0, 0, 0))

    async def heartbeats():
        sender = sender_to(sidecar.socket)
        while True:
            if sender.connect():
                sender.send(hello(started_s=1.0))
                sender.send(idle)
            await asyncio.sleep(HEARTBEAT_S)

    await sidecar.start("--engine", engine_url)
    heart = asyncio.create_task(heartbeats())
    before = await sidecar.replica(lambda replica: replica.capacity_score is not None)
    await sidecar.stop(signal.SIGKILL)
    assert sidecar.socket.exists()

    await sidecar.start("--engine", engine_url)
    served_s = time.monotonic()
    first = await sidecar.replica()
    assert first.state is State.SERVING
    after = await sidecar.replica(lambda replica: replica.capacity_score is not None)
    heart.cancel()
    assert time.monotonic() - served_s < 3 * HEARTBEAT_S  # the machine may be busy
    assert (after.state, after.capacity_score) == (State.SERVING, 1.0)
    assert after.boot_id == before.boot_id
    assert after.seq > before.seq


async def test_a_server_that_dies_is_down_and_one_that_never_was_is_starting(
    sidecar, fake_engine, engine_url, unused_tcp_port_factory
):
    never = f"http://127.0.0.1:{unused_tcp_port_factory()}"
    await sidecar.start("--engine", f"a={engine_url}", "--engine", f"b={never}")
    document, _ = decode((await sidecar.get())[2])
    assert [replica.state for replica in document.replicas] == [State.SERVING, State.STARTING]
    assert [replica.capacity_score for replica in document.replicas] == [None, 0.0]
    await fake_engine.cleanup()
    dead = await sidecar.replica(lambda replica: replica.state is State.DOWN)
    assert dead.capacity_score == 0.0


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ((), "engine = []: wanted at least one [[engine]], or --engine [NAME=]URL (defaults)"),
        (
            ("--engine", "gpu"),
            "engine[0].url = 'gpu': wanted http://host:port or https://host:port (--engine)",
        ),
        (("--config", "/nowhere"), "/nowhere: cannot be read: No such file or directory"),
    ],
)
def test_a_fault_of_the_configuration_is_one_line_and_status_2(
    flags, complaint, capsys, monkeypatch
):
    monkeypatch.setattr(log, "configure", lambda _: None)
    assert main(flags) == 2
    assert capsys.readouterr().err == f"ullage-sidecar: {complaint}\n"


async def test_a_port_in_use_is_one_line_and_status_1(sidecar, engine_url):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        sidecar.listen = f"127.0.0.1:{taken.getsockname()[1]}"
        await sidecar.start("--engine", engine_url)
    assert sidecar.said == [f"ullage-sidecar: listen {sidecar.listen}: Address already in use\n"]
    assert await sidecar.stop() == 1
    assert not sidecar.socket.exists()


async def test_a_second_sidecar_on_the_same_socket_is_one_line_and_status_1(
    sidecar, engine_url, tmp_path
):
    await sidecar.start("--engine", engine_url)
    second = Sidecar(tmp_path, 0)
    await second.start("--engine", engine_url)
    assert second.said == [
        f"ullage-sidecar: socket {second.socket}: another sidecar listens there\n"
    ]
    assert await second.stop() == 1
    assert sidecar.socket.exists()
