"""Recording what plugins say: in this process, and from a sidecar process over real sockets."""

import asyncio
import socket
import time
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from sidecar_process import hello, step
from ullage_sidecar import recorder
from ullage_sidecar.channel import decode_all
from ullage_sidecar.recorder import PATH, Recorded, Recorder, seconds


class Served:
    """A recorder behind a real socket."""

    def __init__(self):
        self.counts = Recorded()
        self.recorder = Recorder(self.counts)

    def hear(self, datagrams):
        self.recorder.hear(datagrams)


@asynccontextmanager
async def served():
    it, app = Served(), web.Application()
    app.router.add_get(PATH, it.recorder.answer)

    async def close(_):
        it.recorder.close()

    app.on_shutdown.append(close)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    it.port = runner.addresses[0][1]
    it.url = f"http://127.0.0.1:{it.port}{PATH}"
    try:
        yield it
    finally:
        await runner.cleanup()


@asynccontextmanager
async def asked(url, **query):
    timeout = aiohttp.ClientTimeout(total=20.0)
    async with (
        aiohttp.ClientSession(timeout=timeout) as client,
        client.get(url, params=query) as it,
    ):
        yield it


async def stalled(port):
    """Ask, and take nothing: as little as can be waits here."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    await asyncio.get_running_loop().sock_sendall(
        sock, f"GET {PATH}?seconds=60 HTTP/1.1\r\nHost: sidecar\r\n\r\n".encode()
    )
    return sock


async def test_what_is_heard_comes_out_byte_for_byte_until_the_time_is_up(until):
    said = [hello(), step(1), step(2) + step(3)]

    async def say(it):
        await until(lambda: it.counts.now == 1)
        for datagrams in said:
            it.hear(datagrams)

    async with served() as it, asyncio.TaskGroup() as group:
        group.create_task(say(it))
        began_s = time.monotonic()
        async with asked(it.url, seconds=1) as answer:
            assert (answer.status, answer.content_type) == (200, "application/octet-stream")
            assert await answer.read() == b"".join(said)
        assert 0.9 < time.monotonic() - began_s < 3.0
        await until(lambda: it.counts.now == 0)
        assert it.counts.lost_bytes == 0


async def test_what_is_no_datagram_is_not_handed_on(until):
    async with served() as it, asyncio.TaskGroup() as group:

        async def say():
            await until(lambda: it.counts.now == 1)
            for datagrams in (step(1), b"nonsense", step(2) + b"nonsense", step(3)[:-1], step(4)):
                it.hear(datagrams)

        group.create_task(say())
        async with asked(it.url, seconds=1) as answer:
            assert [said.seq for said in decode_all(await answer.read())] == [1, 4]


async def test_one_who_stops_reading_loses_records_and_others_lose_none(until):
    many = b"".join(step(seq) for seq in range(1, 301))
    async with served() as it:
        stuck = await stalled(it.port)
        await until(lambda: it.counts.now == 1)
        async with asyncio.TaskGroup() as group:

            async def flood():
                await until(lambda: it.counts.now == 2)
                for _ in range(400):
                    it.hear(many)
                    await asyncio.sleep(0)

            group.create_task(flood())
            async with asked(it.url, seconds=2) as answer:
                assert len(await answer.read()) == 400 * len(many)
        lost = it.counts.lost_bytes
        assert 0 < lost < 400 * len(many)
        assert lost % len(many) == 0  # What is lost is lost whole.
        stuck.close()
        await until(lambda: it.counts.now == 0)


async def test_the_end_waits_for_nobody_who_takes_nothing(until):
    many = b"".join(step(seq) for seq in range(1, 301))
    async with served() as it:
        stuck = await stalled(it.port)
        await until(lambda: it.counts.now == 1)
        while not it.counts.lost_bytes:
            it.hear(many)
            await asyncio.sleep(0)
        ended_s = time.monotonic()
    assert time.monotonic() - ended_s < 0.9
    stuck.close()


async def test_one_too_many_is_refused_with_words(monkeypatch, until):
    monkeypatch.setattr(recorder, "MOST", 1)
    async with served() as it:
        stuck = await stalled(it.port)
        await until(lambda: it.counts.now == 1)
        async with asked(it.url) as answer:
            assert answer.status == 503
            assert await answer.text() == "wanted no more than 1 at a time\n"
        assert it.counts.refused == 1
        stuck.close()


@pytest.mark.parametrize("text", ["0", "3601", "-1", "1.5", "", "x", "١", "9" * 30])
def test_seconds_that_make_no_sense_are_refused_by_name(text):
    with pytest.raises(ValueError, match=r"seconds = .* wanted a whole number from 1 to 3600"):
        seconds({"seconds": text})


def test_seconds_may_be_left_to_us():
    assert seconds({}) == 60
    assert seconds({"seconds": "3600"}) == 3600


async def test_while_nobody_records_nothing_is_kept():
    it = Recorder(Recorded())
    it.hear(step(1))
    it.hear(b"nonsense")


@pytest.mark.slow
async def test_a_sidecar_goes_on_while_one_records_and_another_has_stopped_reading(
    sidecar, engine_url, sender_to, until
):
    await sidecar.start("--engine", engine_url)
    port = int(sidecar.listen.rpartition(":")[2])
    stuck = await stalled(port)
    sender = sender_to(sidecar.socket)
    sender.send(hello())
    async with asyncio.TaskGroup() as group:

        async def read():
            async with asked(f"http://{sidecar.listen}{PATH}", seconds=2) as answer:
                return await answer.read()

        reading = group.create_task(read())
        await asyncio.sleep(0.05)
        for seq in range(1, 101):
            sender.send(step(seq, running=seq % 8))
            await asyncio.sleep(0.005)
        sender.send(step(101, running=8))
        assert (await sidecar.replica(lambda replica: replica.running == 8)).running == 8
        sender.send(hello())
    said = list(decode_all(reading.result()))
    numbers = [one.seq for one in said if hasattr(one, "seq")]
    assert numbers[-1] == 101
    assert numbers == list(range(numbers[0], 102))
    assert len(numbers) >= 50  # The first were said before it was asked.
    assert "ullage_sidecar_recordings 1.0" in (await sidecar.get("/metrics"))[2].decode()
    stuck.close()
