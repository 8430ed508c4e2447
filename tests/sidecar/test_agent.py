"""HAProxy's agent-check against a sidecar process: one line for each check, however it asks."""

import asyncio
import socket
import time

import pytest

from sidecar_process import hello, step
from ullage_sidecar.agent import LINE_WITHIN_S, MAX_LINE, MAX_OPEN
from ullage_sidecar.channel import encode_step

pytestmark = pytest.mark.slow

PROMPT_S = 1.0
"""What a busy machine may add."""


@pytest.fixture
def agent_port(unused_tcp_port_factory):
    return unused_tcp_port_factory()


@pytest.fixture
def start(sidecar, agent_port, tmp_path, engine_url):
    """Start the sidecar with an agent, for one server or several by name."""

    async def started(*names):
        config = tmp_path / "sidecar.toml"
        config.write_text(f'agent_listen = "127.0.0.1:{agent_port}"\n')
        alias = engine_url.replace("127.0.0.1", "localhost")
        urls = [engine_url, alias, f"{alias}0".replace("localhost", "127.0.0.2")]
        flags = [f"--engine={name}={url}" for name, url in zip(names, urls, strict=False)]
        await sidecar.start("--config", str(config), *(flags or ["--engine", engine_url]))
        return sidecar

    return started


@pytest.fixture
def ask(agent_port):
    """Say something, and what is answered until the connection is closed."""

    async def asked(said=b""):
        reader, writer = await asyncio.open_connection("127.0.0.1", agent_port)
        try:
            writer.write(said)
            async with asyncio.timeout(10.0):
                return await reader.read()
        finally:
            writer.close()

    return asked


@pytest.fixture
def until_said(ask):
    """Ask until the answer begins as awaited, 10 s at most."""

    async def wait(said, beginning):
        until_s = time.monotonic() + 10.0
        last = await ask(said)
        while not last.startswith(beginning) and time.monotonic() < until_s:
            last = await ask(said)
        assert last.startswith(beginning)

    return wait


async def test_the_line_follows_the_load(start, ask, until_said, sender_to):
    sidecar = await start()
    assert await ask(b"vllm\n") == b"up 50% #its plugin was never heard of\n"
    sender = sender_to(sidecar.socket)
    sender.send(hello())
    sender.send(step(1, running=2, kv_usage=0.5))
    await until_said(b"vllm\n", b"up 68%\n")  # 0.5 · 0.5 + 0.3 · 0.75 + 0.2, and a bit less than ½
    sender.send(step(2, running=8, waiting=9, kv_usage=1.0))
    await sidecar.replica(lambda replica: replica.capacity_score < 0.1)
    assert int((await ask(b"vllm\n")).split()[1].rstrip(b"%")) < 10


async def test_the_only_engine_is_meant_with_its_name_or_without(start, ask):
    await start()
    for said in (b"", b"\n", b"vllm\n", b"vllm\r\n", b"vllm:0\n", b"vllm"):
        began_s = time.monotonic()
        assert await ask(said) == b"up 50% #its plugin was never heard of\n"
        waited_s = time.monotonic() - began_s
        assert waited_s < LINE_WITHIN_S + PROMPT_S
        if b"\n" not in said:
            assert waited_s >= 0.9 * LINE_WITHIN_S


async def test_who_ends_its_line_by_closing_is_answered(start, agent_port):
    await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", agent_port)
    writer.write(b"vllm")
    writer.write_eof()
    assert await reader.read() == b"up 50% #its plugin was never heard of\n"
    writer.close()


async def test_of_several_engines_each_has_its_own_answer(start, ask, until_said, sender_to):
    sidecar = await start("a", "b")
    sender = sender_to(sidecar.socket)
    sender.send(hello(name="a"))
    sender.send(hello(sender=2, name="b", boot_id="boot-2"))
    sender.send(step(1, running=0, kv_usage=0.0))
    sender.send(encode_step(2, 1, time.monotonic(), (8, 0, 1.0, 0, 0, 0, 0, 0)))
    await until_said(b"a\n", b"up 100%\n")
    await until_said(b"b\n", b"up 20%\n")


async def test_each_rank_has_its_own_answer_and_the_server_their_mean(start, until_said, sender_to):
    sidecar = await start()
    sender = sender_to(sidecar.socket)
    for rank in (0, 1):
        sender.send(hello(sender=1 + rank, engine_index=rank, data_parallel_size=2))
    sender.send(step(1, running=0, kv_usage=0.0))
    sender.send(encode_step(2, 1, time.monotonic(), (8, 0, 1.0, 0, 0, 0, 0, 0)))
    await until_said(b"vllm:0\n", b"up 100%\n")
    await until_said(b"vllm:1\n", b"up 20%\n")
    await until_said(b"vllm\n", b"up 60%\n")


async def test_a_name_that_nobody_has_fails_safe_and_is_logged_once(start, ask):
    sidecar = await start("a", "b")
    assert await ask(b"c\n") == b"up 50% #no engine c; wanted one of: a, b\n"
    assert await ask() == b"up 50% #no engine named; wanted one of: a, b\n"
    assert await ask(b"\xff\x00\n") == b"up 50% #no engine ??; wanted one of: a, b\n"
    _, _, page = await sidecar.get("/metrics")
    assert b'ullage_sidecar_agent_checks_total{named="no"} 3.0' in page
    await sidecar.stop()
    complaints = [line for line in sidecar.said if "agent_check_misnamed" in line]
    assert len(complaints) == 1
    assert "asked=c engines=a,b" in complaints[0]


async def test_a_server_that_dies_is_down(start, ask, until_said, fake_engine, sidecar):
    await start()
    await fake_engine.cleanup()
    await until_said(b"vllm\n", b"down #down: /health: Connection refused")


async def test_a_drain_is_told_at_once(start, ask):
    sidecar = await start()
    assert (await ask()).startswith(b"up 50%")
    reader, writer = await asyncio.open_unix_connection(f"{sidecar.socket}.control")
    writer.write(b"POST /drain HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    await reader.read()
    writer.close()
    assert (await ask()).startswith(b"up 0% #draining: drained by its operator")


async def test_a_thousand_silent_ones_keep_nobody_waiting(start, ask, agent_port):
    """Each holds its connection open and says nothing; some more come while others wait."""
    sidecar = await start()

    async def silent():
        connected = asyncio.open_connection("127.0.0.1", agent_port)
        reader, writer = await asyncio.wait_for(connected, 10.0)
        answer = await asyncio.wait_for(reader.read(), 10.0)
        writer.close()
        return answer

    crowd = [asyncio.create_task(silent()) for _ in range(1000)]
    began_s = time.monotonic()
    assert await ask(b"vllm\n") == b"up 50% #its plugin was never heard of\n"
    assert (await sidecar.get("/healthz"))[0] == 200
    answers = await asyncio.gather(*crowd)
    assert time.monotonic() - began_s < 5.0
    assert set(answers) == {b"up 50% #its plugin was never heard of\n"}
    await sidecar.stop()
    assert [line for line in sidecar.said if "level=INFO" not in line] == []
    assert MAX_OPEN < 1000  # so the crowd was one


async def test_a_flood_of_bytes_costs_no_more_than_a_line(start, ask, agent_port):
    sidecar = await start()

    def flood():
        with socket.create_connection(("127.0.0.1", agent_port)) as peer:
            peer.settimeout(10.0)
            try:
                while True:
                    peer.sendall(b"x" * 65536)
            except OSError:
                return

    floods = [asyncio.to_thread(flood) for _ in range(4)]
    await asyncio.wait_for(asyncio.gather(*floods), 10.0)
    assert (await ask(b"x" * (MAX_LINE + 1))).startswith(b"up 50% #no engine xxx")
    assert await ask(b"vllm\n") == b"up 50% #its plugin was never heard of\n"
    assert (await sidecar.get("/healthz"))[0] == 200


async def test_a_slow_sender_is_not_waited_for(start, agent_port):
    await start("a", "b")
    reader, writer = await asyncio.open_connection("127.0.0.1", agent_port)
    began_s = time.monotonic()

    async def dribble():
        while True:
            writer.write(b"z")
            await asyncio.sleep(LINE_WITHIN_S / 5)

    slow = asyncio.create_task(dribble())
    answer = await reader.readline()
    slow.cancel()
    writer.close()
    assert time.monotonic() - began_s < LINE_WITHIN_S + PROMPT_S
    assert answer.startswith(b"up 50% #no engine z")


async def test_who_leaves_before_the_answer_harms_nobody(start, ask, agent_port):
    sidecar = await start()
    for said in (b"", b"vllm\n", b"vll"):
        peer = socket.create_connection(("127.0.0.1", agent_port))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset
        peer.sendall(said)
        peer.close()
    assert await ask(b"vllm\n") == b"up 50% #its plugin was never heard of\n"
    await sidecar.stop()
    assert [line for line in sidecar.said if "level=INFO" not in line] == []


async def test_a_port_in_use_is_one_line_and_status_1(start, sidecar, agent_port):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", agent_port))
        taken.listen()
        await start()
    assert sidecar.said == [
        f"ullage-sidecar: listen 127.0.0.1:{agent_port}: Address already in use\n"
    ]
    assert await sidecar.stop() == 1


async def test_without_the_key_nobody_listens(sidecar, engine_url):
    await sidecar.start("--engine", engine_url)
    assert not any("agent_check" in line for line in sidecar.said)
