"""Clients that keep the router waiting, and more of them than it has room for."""

import asyncio
import contextlib
import socket

import pytest

from data_plane import Plane, data_plane, eventually
from raw_client import Client, request
from scripted_backend import LAST_CHUNK, Backend, Call, answering, chunk, chunked_head, response
from ullage_router.config import Limits
from ullage_shared.address import Address

pytestmark = pytest.mark.slow

ASK = request(body=b"hello")
WELL = answering(response(b"well"))
SHORT = Limits(head_timeout_s=0.1, body_timeout_s=0.1, idle_client_s=0.1)


async def trickle(client: Client, data: bytes, every_s: float = 0.02) -> None:
    try:
        for byte in data:
            await client.send(bytes([byte]))
            await asyncio.sleep(every_s)
    except ConnectionError:
        pass


@pytest.mark.parametrize("sent", [b"G", ASK[:30]])
async def test_a_head_that_does_not_come_in_time_is_a_408(sent: bytes) -> None:
    async with Backend(WELL) as backend, data_plane(backend.url, limits=SHORT) as plane:
        client = await plane.client()
        answer = await client.ask(sent)
        assert (answer.status, answer.error["code"]) == (408, "head_timeout")
        assert answer.one(b"connection") == b"close"
        assert await client.closed() == b""
        assert plane.router.refusals == {"head_timeout": 1}
        assert backend.connections == 0


async def test_a_trickle_does_not_make_a_head_come_in_time() -> None:
    """Slowloris."""
    async with Backend(WELL) as backend, data_plane(backend.url, limits=SHORT) as plane:
        client = await plane.client()
        sending = asyncio.ensure_future(trickle(client, ASK))
        assert (await client.answer()).error["code"] == "head_timeout"
        sending.cancel()


async def test_a_body_that_stops_coming_is_a_408() -> None:
    async with Backend(WELL) as backend, data_plane(backend.url, limits=SHORT) as plane:
        answer = await (await plane.client()).ask(ASK[:-1])
        assert (answer.status, answer.error["code"]) == (408, "body_timeout")
        assert backend.connections == 0


async def test_a_body_that_comes_slowly_is_taken() -> None:
    async with Backend(WELL) as backend, data_plane(backend.url, limits=SHORT) as plane:
        client = await plane.client()
        body = b"x" * 20
        whole = request(body=body)
        await client.send(whole[: -len(body)])
        await trickle(client, body)
        assert (await client.answer()).body == b"well"
        assert backend.requests[0].body == body


@pytest.mark.parametrize("empty_lines", [False, True])
async def test_a_connection_without_a_request_is_closed_in_silence(empty_lines: bool) -> None:
    async with Backend(WELL) as backend, data_plane(backend.url, limits=SHORT) as plane:
        new, used = await plane.client(), await plane.client()
        assert (await used.ask(ASK)).body == b"well"
        trickling = [asyncio.ensure_future(trickle(c, b"\r\n" * 50)) for c in (new, used)]
        if not empty_lines:
            for task in trickling:
                task.cancel()
        for client in (new, used):
            with contextlib.suppress(ConnectionResetError):  # What it still sends finds nobody.
                assert await client.closed() == b""
        for task in trickling:
            task.cancel()
        assert not plane.router.refusals


async def test_waiting_for_an_answer_is_no_idling() -> None:
    async def script(call: Call) -> None:
        await call.read_request()
        await asyncio.sleep(0.4)
        await call.send(chunked_head() + chunk(b"data: 1\n\n"))
        await asyncio.sleep(0.4)
        await call.send(LAST_CHUNK)

    async with Backend(script) as backend, data_plane(backend.url, limits=SHORT) as plane:
        assert (await (await plane.client()).ask(ASK)).body == b"data: 1\n\n"


async def test_pipelined_requests_do_not_run_out_of_time_in_line() -> None:
    async def script(call: Call) -> None:
        while True:
            await call.read_request()
            await asyncio.sleep(0.15)
            await call.send(response(b"ok"))

    async with Backend(script) as backend, data_plane(backend.url, limits=SHORT) as plane:
        client = await plane.client()
        await client.send(ASK * 3 + ASK[:10])
        assert [(await client.answer()).body for _ in range(3)] == [b"ok"] * 3
        assert (await client.answer()).error["code"] == "head_timeout"


async def endless(call: Call) -> None:
    await call.read_request()
    await call.send(chunked_head([]))
    while True:
        await call.send(chunk(b"x" * 65_536))


def reader_of_little(plane: Plane) -> socket.socket:
    """A client whose kernel takes little."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((plane.address.host, plane.address.port))
    sock.sendall(ASK)
    sock.setblocking(False)
    return sock


async def test_a_client_that_takes_nothing_is_cut_off() -> None:
    limits = Limits(stalled_client_s=0.2)
    async with Backend(endless) as backend, data_plane(backend.url, limits=limits) as plane:
        with reader_of_little(plane):
            await eventually(lambda: plane.proxy.clients)
            await eventually(lambda: not plane.proxy.clients)
            assert plane.router.clients_stalled == 1
            await eventually(lambda: backend.open == 0)


async def test_a_client_that_takes_little_is_not() -> None:
    loop = asyncio.get_running_loop()
    limits = Limits(stalled_client_s=0.2)
    async with Backend(endless) as backend, data_plane(backend.url, limits=limits) as plane:
        with reader_of_little(plane) as sock:
            end_s = loop.time() + 1.0
            while loop.time() < end_s:
                await loop.sock_recv(sock, 2048)
                await asyncio.sleep(0.01)
            assert plane.proxy.clients
            assert plane.router.clients_stalled == 0


async def test_a_client_too_many_is_told_so_at_once() -> None:
    async with (
        Backend(WELL) as backend,
        data_plane(backend.url, limits=Limits(max_connections=2)) as plane,
    ):
        inside = [await plane.client() for _ in range(2)]
        for client in inside:
            assert (await client.ask(ASK)).status == 200
        outside = await plane.client()
        answer = await outside.answer()  # It has not even asked.
        assert (answer.status, answer.error["code"]) == (503, "router_overloaded")
        assert answer.one(b"retry-after") == b"1"
        assert await outside.closed() == b""
        for client in inside:
            assert (await client.ask(ASK)).status == 200
        inside.pop().close()
        await eventually(lambda: len(plane.proxy.clients) == 1)
        assert (await (await plane.client()).ask(ASK)).status == 200
        assert plane.router.refusals == {"router_overloaded": 1}


async def test_a_request_half_sent_when_the_router_stops_is_still_answered() -> None:
    async with Backend(WELL) as backend, data_plane(backend.url) as plane:
        half, idle = await plane.client(), await plane.client()
        await half.send(ASK[:-2])
        await eventually(lambda: len(plane.proxy.clients) == 2)
        await asyncio.sleep(0.02)
        stopping = asyncio.ensure_future(plane.proxy.stop(5.0))
        assert await idle.closed() == b""
        with pytest.raises(ConnectionRefusedError):
            await Client.connect(Address("127.0.0.1", plane.address.port))
        answer = await half.ask(ASK[-2:])
        assert (answer.body, answer.one(b"connection")) == (b"well", b"close")
        await stopping


async def test_whoever_stops_the_router_may_hurry() -> None:
    async def script(call: Call) -> None:
        await call.read_request()
        await call.gone()

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        await client.send(ASK)
        await eventually(lambda: plane.in_flight)
        stopping = asyncio.ensure_future(plane.proxy.stop(60.0))
        await asyncio.sleep(0.02)
        assert not stopping.done()
        plane.proxy.cut_now()
        await asyncio.wait_for(stopping, 1.0)
