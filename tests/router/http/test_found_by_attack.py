"""What attackers of a running router have found, at its smallest; each stays found."""

import asyncio
import socket
import struct
import time
import tracemalloc

import orjson
import pytest

from data_plane import data_plane, eventually
from raw_client import request
from scripted_backend import (
    Backend,
    Call,
    answering,
    black_hole,
    chunk,
    chunked_head,
    refusing_url,
    response,
    silent,
)
from snapshots import document, snapshot
from ullage_router.config import Config, Limits
from ullage_router.core.fleet import fleet_of, hear, relist
from ullage_router.core.policy import Policy, Way
from ullage_router.core.rules import Rules
from ullage_router.http import pool
from ullage_router.http.pool import Pool
from ullage_router.http.response import ResponseReader
from ullage_shared.address import parse_base_url

ASK = request(body=b"{}")
WISH = request(headers=[(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")])
ACCEPTS = b"HTTP/1.1 101 OK\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_connection_that_has_served_http_1_0_keeps_no_later_body() -> None:
    reader = ResponseReader()
    reader.begin(bodiless=False, dechunk=True)
    assert reader.feed(CHUNKED + chunk(b"x") + b"0\r\n\r\n") == b"x"
    tracemalloc.start()
    try:
        for _ in range(20):
            reader.begin(bodiless=False, dechunk=False)
            reader.feed(CHUNKED + chunk(b"x" * 1_000_000) + b"0\r\n\r\n")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 3_000_000


async def test_a_tunnels_client_that_resets_is_missed_though_its_replica_reads_nothing() -> None:
    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(ACCEPTS)
        await asyncio.Event().wait()

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        await client.send(WISH)
        await client.reader.readuntil(b"\r\n\r\n")
        sending = asyncio.ensure_future(client.send(b"x" * 40_000_000))
        await asyncio.sleep(0.3)
        client.reset()
        sending.cancel()
        await eventually(lambda: not plane.in_flight, 2.0)


async def test_another_replica_is_tried_though_the_fleet_was_replaced() -> None:
    async def dies_late(call: Call) -> None:
        await call.read_request()
        await arrived.wait()

    arrived = asyncio.Event()
    async with (
        Backend(dies_late) as old,
        Backend(answering(response(b"new"))) as new,
        data_plane(old.url) as plane,
    ):
        client = await plane.client()
        await client.send(ASK)
        await eventually(lambda: old.requests)
        plane.router.fleet = relist(plane.router.fleet, [new.url])
        arrived.set()
        assert (await client.answer()).body == b"new"


async def test_a_refused_request_leaves_no_deadline_behind() -> None:
    async def dies(call: Call) -> None:
        await call.read_request()

    limits = Limits(first_byte_timeout_s=0.1)
    async with Backend(dies) as bad, data_plane(bad.url, limits=limits) as plane:
        client = await plane.client()
        assert (await client.ask(ASK)).status == 502
        await asyncio.sleep(0.3)
        assert (await client.ask(ASK)).status == 502


async def test_four_sends_of_a_request_are_too_many() -> None:
    """Both replicas close a kept connection at its next request, and any new one at its first."""

    async def script(call: Call) -> None:
        await call.read_request()
        if call.number == 1:
            await call.send(response(b"ok"))
            await call.read_request()

    async with Backend(script) as a, Backend(script) as b, data_plane(a.url) as plane:
        client = await plane.client()
        assert (await client.ask(ASK)).body == b"ok"
        plane.router.fleet = fleet_of([b.url])
        assert (await client.ask(ASK)).body == b"ok"
        plane.router.fleet = fleet_of([a.url, b.url])
        assert (await client.ask(ASK)).status == 502
        assert len(a.requests) + len(b.requests) == 2 + 3


def test_a_replica_that_is_named_like_another_ones_address_has_a_name_of_its_own() -> None:
    listed = fleet_of(["http://a:9"])
    said = document(snapshot("http://b:8", id="a:9"), snapshot("http://c:7", id="c:7"))
    fleet, _ = hear(listed, "http://sidecar:9400", said, 1.0)
    assert sorted(replica.id for replica in fleet.replicas.values()) == ["a:9", "b:8", "c:7"]


@pytest.mark.parametrize("named", [True, False])
async def test_errors_name_the_replica_only_where_answers_do(named: bool) -> None:
    dead = refusing_url()
    async with data_plane(dead) as plane:
        plane.proxy.configure(Config(name_replica=named))
        answer = await (await plane.client()).ask(ASK)
        assert (dead.removeprefix("http://") in answer.error["message"]) is named


async def test_a_stream_that_the_routers_stop_cuts_says_so() -> None:
    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(chunked_head() + chunk(b"data: 1\n\n"))
        await call.gone()

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        await client.send(ASK)
        await client.head()
        assert await client.piece() == b"data: 1\n\n"
        stopping = asyncio.ensure_future(plane.proxy.stop(0.05))
        error = orjson.loads((await client.piece()).removeprefix(b"data: "))["error"]
        assert error["code"] == "router_stopping"
        await stopping


async def test_a_replica_that_left_is_shown_until_it_has_finished() -> None:
    more = asyncio.Event()

    async def script(call: Call) -> None:
        await call.read_request()
        await more.wait()
        await call.send(response(b"late"))

    async with Backend(script) as old, Backend(silent) as new, data_plane(old.url) as plane:
        client = await plane.client()
        await client.send(ASK)
        await eventually(lambda: old.requests)
        plane.router.fleet = relist(plane.router.fleet, [new.url])
        assert list(plane.router.leaving) == [old.url]
        more.set()
        assert (await client.answer()).body == b"late"
        assert plane.router.tallies[old.url].responses == {200: 1}
        plane.router.see_off()
        assert not plane.router.leaving
        assert old.url not in plane.router.tallies


@pytest.mark.parametrize("busy_s", [0.02, 0.5])
async def test_a_router_that_is_busy_without_end_still_gives_up_on_a_replica(
    monkeypatch: pytest.MonkeyPatch, busy_s: float
) -> None:
    """It never did while its timers were late, and after a pause waited as long as that again."""
    monkeypatch.setattr(pool, "_MOST_ADDED_S", 0.05)

    async def be_busy() -> None:
        while True:
            time.sleep(busy_s)  # noqa: ASYNC251
            await asyncio.sleep(0)

    connections = Pool(asyncio.get_running_loop(), Limits(connect_timeout_s=0.05))
    async with black_hole() as hole:
        busy = asyncio.ensure_future(be_busy())
        try:
            async with asyncio.timeout(3.0) as patience:
                with pytest.raises(TimeoutError):
                    await connections.connect(parse_base_url(hole)[1])
            assert not patience.expired()
        finally:
            busy.cancel()
            connections.close()


async def test_clients_that_leave_at_any_moment_leave_no_backlog_behind() -> None:
    """Streamed or not, begun or not, by the way that counts it, and by one that does not."""

    async def begins(call: Call) -> None:
        await call.read_request()
        await call.send(chunked_head() + chunk(b"data: 1\n\n"))
        await call.gone()

    bodies = [
        orjson.dumps({"prompt": f"{number} " * 500, "stream": number % 2 == 0})
        for number in range(200)
    ]
    async with (
        Backend(silent) as hung,
        Backend(begins) as slow,
        data_plane(hung.url, slow.url, rules=Rules()) as plane,
    ):

        async def leave(number: int, body: bytes) -> None:
            client = await plane.client()
            await client.send(request(body=body))
            if number == 100:
                plane.router.rules = Rules(choose=Policy(way=Way.WEIGHTED))
            await asyncio.sleep(0.01 * (number % 4))
            client.reset()

        await asyncio.gather(*(leave(number, body) for number, body in enumerate(bodies)))
        await eventually(lambda: not plane.in_flight)
        assert (plane.router.in_flight.pending, plane.router.in_flight.unbegun) == ({}, {})
        assert sum(plane.router.decisions.values()) > 100
        await eventually(lambda: not hung.open and not slow.open)


@pytest.mark.parametrize("turns", range(6))
async def test_those_that_come_as_the_router_stops_do_not_keep_it(turns: int) -> None:
    """One was let in by the event loop a turn after its letting in was cancelled: then it was
    closed, nobody was told, and the router waited for it until its time was up, and failed."""
    async with Backend(silent) as hung, data_plane(hung.url) as plane:
        for _ in range(100):
            with socket.socket() as sock:
                sock.connect((plane.address.host, plane.address.port))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for _ in range(turns):
            await asyncio.sleep(0)
        began_s = time.monotonic()
        await plane.proxy.stop(1.0)
        assert time.monotonic() - began_s < 0.5
        assert not plane.proxy.clients
