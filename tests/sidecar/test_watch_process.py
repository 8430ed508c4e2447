"""Watching a sidecar process: what depends on its event loop, its sockets and its signals."""

import asyncio
import signal
import sys
import time

import pytest

from sidecar_process import hello, step
from ullage_shared.snapshot import State, decode
from watching import LARGE, Watcher, stalled

pytestmark = pytest.mark.slow

LONG_MS = 60_000


def documents_in(taken):
    """The whole lines of a chunked answer, as documents."""
    _, _, body = taken.partition(b"\r\n\r\n")
    lines = b"".join(body.split(b"\r\n")[1::2]).split(b"\n")[:-1]
    return [decode(line)[0] for line in lines]


async def test_a_step_is_pushed_and_a_drain_too(sidecar, engine_url, sender_to):
    await sidecar.start("--engine", engine_url)
    sender = sender_to(sidecar.socket)
    sender.send(hello())
    async with Watcher(sidecar.listen, LONG_MS) as watcher:
        await watcher.line()
        for seq, running in enumerate((2, 5, 8), start=1):
            await asyncio.sleep(0.05)
            sender.send(step(seq, running=running))
            sent_s = time.monotonic()
            line = await watcher.until(lambda replica, now=running: replica.running == now)
            assert line.at_s - sent_s < 0.1
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ullage_sidecar", "drain", "--socket", str(sidecar.socket),
            stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        drained = await watcher.until(lambda replica: replica.state is State.DRAINING)
        assert drained.replica.capacity_score == 0.0
        assert await process.wait() == 0


async def test_a_slow_watcher_gets_the_newest_and_no_backlog(sidecar, engine_url, sender_to):
    await sidecar.start("--engine", engine_url)
    sender = sender_to(sidecar.socket)
    sender.send(hello(models=LARGE))
    sender.send(step(1))
    reader, writer = await stalled(sidecar.listen)
    async with Watcher(sidecar.listen, LONG_MS) as quick:
        for seq in range(2, 100):
            sender.send(step(seq, running=seq % 8))
            await asyncio.sleep(0.01)
        sender.send(step(100, running=8))
        await quick.until(lambda replica: replica.running == 8)
    assert len(quick.lines) > 20
    writer.transport.resume_reading()
    taken = bytearray()
    async with asyncio.timeout(5.0):
        while not (taken.endswith(b"\n\r\n") and documents_in(taken)[-1].replicas[0].running == 8):
            taken += await reader.read(65536)
    assert len(documents_in(taken)) <= 4
    writer.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_those_who_watch_do_not_hold_up_the_end(sidecar, engine_url, sender_to, number):
    await sidecar.start("--engine", engine_url)
    sender = sender_to(sidecar.socket)
    sender.send(hello(models=LARGE))
    _, stuck = await stalled(sidecar.listen)
    async with Watcher(sidecar.listen, LONG_MS) as watcher:
        for seq in range(1, 30):
            sender.send(step(seq, running=seq % 8))
            await asyncio.sleep(0.01)
        stopped_s = time.monotonic()
        assert await sidecar.stop(number) == 0
        assert time.monotonic() - stopped_s < 2.0  # Most of it is Python's own end.
        while await watcher.line() is not None:
            pass
    stuck.transport.abort()
    assert [said for said in sidecar.said if "level=INFO" not in said] == []
    assert sidecar.said[-1].endswith(" level=INFO stopped\n")
