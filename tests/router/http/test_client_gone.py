"""Clients that leave: the replica must know at once, or vLLM goes on generating for nobody."""

import asyncio
from collections.abc import Callable
from time import perf_counter

import pytest

from data_plane import Plane, data_plane, eventually
from raw_client import Client, request
from scripted_backend import Backend, Call, black_hole, chunk, chunked_head, head, response, silent
from ullage_router.core.breaker import CLOSED

ASK = request(body=b'{"prompt": "x"}')
SEEN_WITHIN_S = 0.1
TRIES = 5

MOMENTS = {
    "not streaming, before the answer": b"",
    "within the head": b"HTTP/1.1 200 OK\r\nContent-Ty",
    "before the first piece": chunked_head(),
    "mid-stream": chunked_head() + chunk(b"data: 1\n\n"),
    "within a sized body": response(b"x" * 100)[:-50],
    "within a body until close": head(200, b"OK", []) + b"hello",
}


def half_close(client: Client) -> None:
    client.writer.write_eof()


async def assert_nothing_left(plane: Plane, tasks: set["asyncio.Task[object]"]) -> None:
    await eventually(lambda: not plane.proxy.clients)
    assert plane.in_flight == 0
    assert plane.proxy.pool.idle == 0
    assert not {t for t in asyncio.all_tasks() - tasks if "Exchange" in repr(t)}


@pytest.mark.parametrize("leave", [Client.close, Client.reset, half_close])
@pytest.mark.parametrize("part", MOMENTS.values(), ids=MOMENTS.keys())
async def test_the_replica_sees_it_at_once(part: bytes, leave: Callable[[Client], None]) -> None:
    """Reports 1 and 2. The others take a second, or never tell it. Best of a few tries."""
    seen_s = asyncio.Queue[float]()
    sent = asyncio.Queue[None]()

    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(part)
        sent.put_nowait(None)
        seen_s.put_nowait(await call.gone())

    tasks = asyncio.all_tasks()
    took_s = []
    async with Backend(script) as backend, data_plane(backend.url) as plane:
        for _ in range(TRIES):
            client = await plane.client()
            await client.send(ASK)
            await sent.get()
            await asyncio.sleep(0.005)
            assert plane.in_flight == 1
            left_s = perf_counter()
            leave(client)
            took_s.append(await asyncio.wait_for(seen_s.get(), 5.0) - left_s)
        await assert_nothing_left(plane, tasks)
        assert plane.router.tallies[backend.url].client_gone == TRIES
        assert not plane.router.tallies[backend.url].failures
    assert min(took_s) < SEEN_WITHIN_S, took_s


async def test_leaving_while_the_replica_is_being_connected_ends_the_attempt() -> None:
    tasks = asyncio.all_tasks()
    async with black_hole() as hole, data_plane(hole) as plane:
        client = await plane.client()
        await client.send(ASK)
        await eventually(lambda: plane.in_flight == 1)
        client.close()
        await eventually(lambda: plane.in_flight == 0, 0.5)
        await assert_nothing_left(plane, tasks)
        assert plane.router.tallies[hole].client_gone == 1
        assert plane.router.fleet.replicas[hole].breaker is CLOSED


async def test_leaving_with_requests_in_line_ends_them_all() -> None:
    async def script(call: Call) -> None:
        await call.read_request()
        await call.gone()

    tasks = asyncio.all_tasks()
    async with Backend(script) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        await client.send(ASK * 5)
        await eventually(lambda: backend.requests)
        client.close()
        await eventually(lambda: backend.open == 0, 0.5)
        await assert_nothing_left(plane, tasks)
        assert len(backend.requests) == 1


async def test_leaving_within_a_request_leaves_nothing() -> None:
    async with (
        Backend(silent) as backend,
        data_plane(backend.url) as plane,
    ):
        for size in range(0, len(ASK), 7):
            client = await plane.client()
            await client.send(ASK[:size])
            client.close()
        await eventually(lambda: not plane.proxy.clients)
        assert backend.connections == 0


async def test_a_client_that_reads_nothing_and_leaves_is_noticed() -> None:
    """Its stream is paused, so that only the client's own connection can tell."""
    left = asyncio.Event()

    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(chunked_head())
        try:
            while True:
                await call.send(chunk(b"x" * 65_536))
        except ConnectionError:
            left.set()

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(ASK)
        await eventually(lambda: [c for c in plane.proxy.clients if c.slow])
        client.reset()
        await asyncio.wait_for(left.wait(), 1.0)
        assert plane.in_flight == 0


async def test_one_client_leaving_does_not_disturb_another_on_the_same_replica() -> None:
    more = asyncio.Event()

    async def script(call: Call) -> None:
        received = await call.read_request()
        await call.send(chunked_head() + chunk(b"1"))
        if received.target == b"/stays":
            await more.wait()
            await call.send(chunk(b"2") + b"0\r\n\r\n")
        else:
            await call.gone()
            more.set()

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        stays, leaves = await plane.client(), await plane.client()
        await stays.send(request(b"/stays"))
        await leaves.send(request(b"/leaves"))
        await stays.head()
        await leaves.head()
        leaves.close()
        assert [piece async for piece in stays.pieces()] == [b"1", b"2"]
        assert backend.connections == 2
