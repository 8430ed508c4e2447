"""What tests of the sidecar share.

Hypothesis here is repeatable and patient: the same examples each run, no limit on a slow machine.
"""

import asyncio
import signal

import pytest
from aiohttp import web
from hypothesis import settings

from sidecar_process import Sidecar
from ullage_sidecar.channel import Sender

settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("repeatable")


@pytest.fixture
def until():
    """Wait until a condition holds, 10 s at most."""

    async def wait(condition):
        async with asyncio.timeout(10.0):
            while not condition():  # noqa: ASYNC110 (what is waited for lies in another process)
                await asyncio.sleep(0.005)

    return wait


@pytest.fixture
def sender_to():
    """A connected sender to a path; closed at the end."""
    opened = []

    def connect(path):
        sender = Sender(str(path))
        opened.append(sender)
        assert sender.connect()
        return sender

    yield connect
    for sender in opened:
        sender.close()


@pytest.fixture
async def fake_engine():
    """A server whose /health is good, until its runner's `cleanup`."""

    async def health(_):
        return web.Response()

    app = web.Application()
    app.router.add_get("/health", health)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner
    await runner.cleanup()


@pytest.fixture
def engine_url(fake_engine):
    return f"http://127.0.0.1:{fake_engine.addresses[0][1]}"


@pytest.fixture
async def sidecar(tmp_path, unused_tcp_port):
    sidecar = Sidecar(tmp_path, unused_tcp_port)
    yield sidecar
    if sidecar.process and sidecar.process.returncode is None:
        await sidecar.stop(signal.SIGKILL)
