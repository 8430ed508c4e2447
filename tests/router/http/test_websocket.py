"""A WebSocket is a tunnel: what follows its handshake passes both ways, unread."""

import asyncio

import pytest

from data_plane import data_plane, eventually
from raw_client import Client, request
from scripted_backend import Backend, Call, answering, response

WISH = request(
    b"/v1/realtime?model=tiny",
    headers=[
        (b"Connection", b"keep-alive, Upgrade"),
        (b"Upgrade", b"websocket"),
        (b"Sec-WebSocket-Key", b"dGhlIHNhbXBsZSBub25jZQ=="),
        (b"Sec-WebSocket-Version", b"13"),
    ],
)
ACCEPTS = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)
ALL_BYTES = bytes(range(256)) * 1000


async def echoes(call: Call) -> None:
    await call.read_request()
    await call.send(ACCEPTS + b"hello\r\n\r\n")
    while data := await call.reader.read(65_536):
        await call.send(data)


async def switched(client: Client) -> bytes:
    await client.send(WISH)
    head = await client.reader.readuntil(b"\r\n\r\n")
    assert await client.reader.readexactly(9) == b"hello\r\n\r\n"
    return head


async def test_bytes_pass_both_ways_as_they_are() -> None:
    async with Backend(echoes) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        head = await switched(client)
        assert head.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
        for line in (b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Accept: s3p"):
            assert head.count(line) == 1
        asked = backend.requests[0]
        assert asked.target == b"/v1/realtime?model=tiny"
        assert asked.all(b"connection") == [b"Upgrade"]
        assert asked.all(b"upgrade") == [b"websocket"]
        assert asked.all(b"sec-websocket-version") == [b"13"]
        assert asked.all(b"content-length") == []
        writing = asyncio.ensure_future(client.send(ALL_BYTES * 8))
        assert await client.reader.readexactly(len(ALL_BYTES) * 8) == ALL_BYTES * 8
        await writing
        assert plane.in_flight == 1
        client.close()
        await eventually(lambda: not plane.in_flight and not backend.open)
        tally = plane.router.tallies[backend.url]
        assert (tally.responses, tally.client_gone, tally.cut) == ({101: 1}, 0, 0)


async def test_what_the_client_sent_before_it_closed_arrives() -> None:
    got = bytearray()

    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(ACCEPTS + b"hello\r\n\r\n")
        while data := await call.reader.read(65_536):
            got.extend(data)

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        await switched(client)
        client.writer.write(ALL_BYTES)
        client.close()
        await eventually(lambda: not backend.open)
        assert got == ALL_BYTES


async def test_what_the_replica_sent_before_it_closed_arrives() -> None:
    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(ACCEPTS + b"hello\r\n\r\n" + ALL_BYTES)

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        await switched(client)
        assert await client.closed() == ALL_BYTES
        await eventually(lambda: not plane.in_flight)
        assert plane.router.tallies[backend.url].cut == 0


async def test_frames_sent_before_the_handshake_is_done_are_kept() -> None:
    async with Backend(echoes) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        await client.send(WISH + b"early")
        await client.send(b" bird")
        await client.reader.readuntil(b"\r\n\r\n")
        assert await client.reader.readexactly(19) == b"hello\r\n\r\nearly bird"


async def test_a_refused_handshake_is_an_answer_and_the_connection_goes_on() -> None:
    async with (
        Backend(answering(response(b"no", 403, b"Forbidden"))) as backend,
        data_plane(backend.url) as plane,
    ):
        client = await plane.client()
        await client.send(WISH + request(b"/next"))
        answers = [await client.answer(), await client.answer()]
        assert [a.status for a in answers] == [403, 403]
        assert [r.target for r in backend.requests] == [b"/v1/realtime?model=tiny", b"/next"]


async def test_requests_before_the_handshake_are_answered_first() -> None:
    async def script(call: Call) -> None:
        while (await call.read_request()).target != b"/v1/realtime?model=tiny":
            await call.send(response(b"ok"))
        await call.send(ACCEPTS)
        await call.gone()

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        await client.send(request(b"/first") + WISH)
        assert (await client.answer()).body == b"ok"
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        client.close()


async def test_a_change_of_protocol_that_nobody_asked_for_is_no_answer() -> None:
    async with Backend(answering(ACCEPTS)) as backend, data_plane(backend.url) as plane:
        answer = await (await plane.client()).ask(request(b"/plain"))
        assert (answer.status, answer.error["code"]) == (502, "replica_failed")


@pytest.mark.parametrize("side", ["client", "replica"])
async def test_whoever_reads_slowly_in_a_tunnel_slows_the_other(side: str) -> None:
    sent = 0
    release = asyncio.Event()

    async def script(call: Call) -> None:
        nonlocal sent
        await call.read_request()
        await call.send(ACCEPTS + b"hello\r\n\r\n")
        if side == "replica":
            await release.wait()
            await call.gone()
            return
        while not release.is_set():
            await call.send(ALL_BYTES)
            sent += len(ALL_BYTES)

    async def send_all(client: Client) -> None:
        nonlocal sent
        while not release.is_set():
            await client.send(ALL_BYTES)
            sent += len(ALL_BYTES)

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        client.reader._limit = 1000  # type: ignore[attr-defined] -- it reads no more by itself
        await switched(client)
        sending = asyncio.ensure_future(send_all(client)) if side == "replica" else None
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 40_000_000  # What the kernels and two buffers take.
        release.set()
        if sending is not None:
            sending.cancel()
        client.reset()
        await eventually(lambda: not plane.in_flight)
