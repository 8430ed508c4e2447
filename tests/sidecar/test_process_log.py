"""What the process says on standard error: no key, and nothing of what strangers sent."""

import asyncio
import time

import pytest

from fake_vllm import FakeVllm
from sidecar_process import hello, step

pytestmark = pytest.mark.slow
KEY = "sk-a-key-of-24-characters"


@pytest.fixture
async def server():
    server = FakeVllm()
    await server.start()
    yield server
    await server.stop()


async def sent(port, data):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
    writer.write(data)
    writer.write_eof()
    await reader.read()
    writer.close()


async def test_no_line_holds_a_key_or_what_strangers_sent(
    sidecar, server, sender_to, tmp_path, unused_tcp_port_factory
):
    """The server refuses all dummies, and repeats the key that it was sent."""
    server.api_key, server.offers, server.words = KEY, set(), f"not for {KEY}"
    key_file, file = tmp_path / "key", tmp_path / "sidecar.toml"
    key_file.write_text(KEY)
    agent = unused_tcp_port_factory()
    file.write_text(
        f"agent_listen = '127.0.0.1:{agent}'\n"
        f"[[engine]]\nurl = '{server.url}'\napi_key_file = '{key_file}'\n"
        "[warm_up]\nlimit_s = 1\n"
    )
    await sidecar.start("--config", str(file), "--log-level", "debug")
    sender_to(sidecar.socket).send(KEY.encode())
    sender_to(sidecar.socket).send(hello(sender=2, name="stranger"))
    engine = sender_to(sidecar.socket)
    engine.send(hello(started_s=time.monotonic()))
    engine.send(step(1, running=0))
    port = sidecar.listen.rpartition(":")[2]
    for data in (KEY.encode(), b"GET / HTTP/1.1\r\nHost: x\r\nBad " + KEY.encode()):
        await sent(port, data + b"\r\n\r\n")
    await sidecar.get(f"/v1/snapshots?{KEY}", Authorization=f"Bearer {KEY}")
    await sent(agent, b"nobody\n")
    await sidecar.replica(lambda replica: "not for" in replica.reason)
    await asyncio.sleep(0.05)
    assert await sidecar.stop() == 0
    said = "".join(sidecar.said)
    assert KEY not in said
    events = {line.split()[2] for line in sidecar.said}
    assert {"warm_up", "not_http", "malformed", "unmatched", "agent_check_misnamed"} <= events
    assert "not for ***" in said
