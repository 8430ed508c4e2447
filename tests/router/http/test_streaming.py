"""Answers that come piece by piece, and clients that take them slowly."""

import asyncio
import itertools
import resource

import pytest

from data_plane import data_plane, eventually
from raw_client import Client, request
from scripted_backend import LAST_CHUNK, Backend, Call, chunk, chunked_head, head

STREAM = request(body=b'{"stream": true}')


async def test_a_piece_reaches_the_client_before_the_next_is_sent() -> None:
    """Report 24: buffered streaming."""
    more = asyncio.Semaphore(0)

    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(chunked_head())
        for number in range(20):
            await call.send(chunk(b"data: %d\n\n" % number))
            await more.acquire()
        await call.send(LAST_CHUNK)

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        await client.send(STREAM)
        assert (await client.head()).status == 200
        for number in range(20):
            assert await client.piece() == b"data: %d\n\n" % number
            more.release()
        assert await client.piece() == b""


async def test_the_head_reaches_the_client_before_the_first_piece_unless_events_come() -> None:
    more = asyncio.Event()

    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(chunked_head([(b"Content-Type", b"application/x-ndjson")]))
        await more.wait()
        await call.send(LAST_CHUNK)

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        await client.send(STREAM)
        assert (await client.head()).status == 200
        more.set()
        assert await client.piece() == b""


async def test_a_huge_event_and_split_characters_arrive_byte_for_byte() -> None:
    """Report 18: 1.5 MB SSE line, UTF-8 split across chunks."""
    event = b"data: " + ("😀ä" * 250_000).encode() + b"\n\n"
    cuts = [0, 7, 8, 9, 65_537, 65_539, 1_000_001, len(event)]
    pieces = [event[a:b] for a, b in itertools.pairwise(cuts)]

    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(chunked_head())
        for piece in pieces:
            framed = chunk(piece)
            await call.send(framed[:3])  # The framing itself is cut, too.
            await asyncio.sleep(0)
            await call.send(framed[3:])
        await call.send(LAST_CHUNK)

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        await client.send(STREAM)
        await client.head()
        arrived = [piece async for piece in client.pieces()]
        assert arrived == pieces


async def test_500_streams_run_at_once() -> None:
    count, lines = 500, 10
    all_here = asyncio.Event()

    async def script(call: Call) -> None:
        received = await call.read_request()
        if len(backend.requests) == count:
            all_here.set()
        await call.send(chunked_head())
        await all_here.wait()
        for number in range(lines):
            await call.send(chunk(received.body + b":%d\n" % number))
            await asyncio.sleep(0)
        await call.send(LAST_CHUNK)

    async def stream(name: bytes) -> bytes:
        client = await plane.client()
        return (await client.ask(request(body=name))).body

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        names = [b"stream-%d" % number for number in range(count)]
        running = asyncio.gather(*(stream(name) for name in names))
        await asyncio.wait_for(all_here.wait(), 30.0)
        assert plane.in_flight == count
        bodies = await running
        expected = [b"".join(b"%s:%d\n" % (name, n) for n in range(lines)) for name in names]
        assert bodies == expected


async def test_a_slow_reader_stalls_only_its_own_stream_and_fills_no_memory() -> None:
    """Back-pressure: what the slow one does not read stays in the replica, not in the router."""
    sent: list[int] = []

    async def script(call: Call) -> None:
        received = await call.read_request()
        mine = len(sent)
        sent.append(0)
        await call.send(chunked_head())
        for _ in range(1600 if received.body == b"slow" else 100):
            await call.send(chunk(b"x" * 65_536))
            sent[mine] += 65_536
        await call.send(LAST_CHUNK)

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        slow = await plane.client()
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await slow.send(request(body=b"slow"))
        await eventually(lambda: sent and sent[0] > 0)
        before = -1
        while sent[0] != before:
            before = sent[0]
            await asyncio.sleep(0.05)
        # Of 100 MB, it took what two pairs of kernel buffers and the router's own 64 KiB hold.
        assert sent[0] < 30_000_000
        (downstream,) = plane.proxy.clients
        assert downstream._transport.get_write_buffer_size() < 1_000_000

        fast = await (await plane.client()).ask(request(body=b"fast"))
        assert len(fast.body) == 100 * 65_536
        assert sent[0] == before

        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len((await slow.answer()).body) == 1600 * 65_536


@pytest.mark.slow
async def test_many_slow_readers_fill_no_memory() -> None:
    """100 clients that read nothing of 100 × 50 MB."""
    started = 0

    async def script(call: Call) -> None:
        nonlocal started
        await call.read_request()
        started += 1
        await call.send(head(200, b"OK", [(b"Content-Length", b"50000000")]))
        for _ in range(50):
            await call.send(b"x" * 1_000_000)

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(100):
            client = await plane.client()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(STREAM)
        await eventually(lambda: started == 100)
        await asyncio.sleep(1.0)
        buffered = sum(c._transport.get_write_buffer_size() for c in plane.proxy.clients)
        assert buffered < 100 * 700_000
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown_kib < 400_000  # The stand-in's own buffers, 1 MB each, included.
        for client in plane.clients:
            client.reset()


async def test_a_client_that_reads_nothing_of_many_answers_is_not_answered_without_end() -> None:
    """Pipelined requests whose answers the router makes itself must wait for the reader, too."""
    async with data_plane(models=lambda: b"m" * 10_000) as plane:
        client = await plane.client()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        total = 4_000
        client.writer.write(request(b"/v1/models") * total)
        await eventually(lambda: plane.proxy.clients)
        (downstream,) = plane.proxy.clients
        most = 0
        for _ in range(20):
            most = max(most, downstream._transport.get_write_buffer_size())
            await asyncio.sleep(0.01)
        assert most < 1_000_000  # Of 40 MB.

        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(total):
            answer = await client.answer()
            assert (answer.status, len(answer.body)) == (200, 10_000)


async def test_a_stream_that_ends_with_the_connection_is_passed_on_so() -> None:
    more = asyncio.Event()

    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(
            head(200, b"OK", [(b"Content-Type", b"text/event-stream")]) + b"data: 1\n\n"
        )
        await more.wait()
        await call.send(b"data: 2\n\n")
        call.close()

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        client: Client = await plane.client()
        await client.send(STREAM)
        answer = await client.head()
        assert answer.one(b"connection") == b"close"
        assert await client.piece() == b"data: 1\n\n"
        more.set()
        assert await client.piece() == b"data: 2\n\n"
        assert await client.piece() == b""
