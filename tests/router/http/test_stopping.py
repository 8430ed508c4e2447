"""A router that stops ends no connection on which a request may be on its way."""

import asyncio
import socket
import time

from certificates import Authority
from data_plane import data_plane, eventually
from raw_client import Client, request
from scripted_backend import Backend, answering, response
from ullage_router.http.listener import Guest

WELL = answering(response(b"well"))


async def test_a_request_that_is_on_its_way_when_the_router_stops_is_answered() -> None:
    """As far as the clients know, their connections stay open."""
    async with Backend(WELL) as backend, data_plane(backend.url) as plane:
        used, fresh = await plane.client(), await plane.client()
        assert (await used.ask(request())).one(b"connection") != b"close"
        await eventually(lambda: len(plane.proxy.clients) == 2)
        stopping = asyncio.ensure_future(plane.proxy.stop(grace_s=20.0))
        await asyncio.sleep(0.02)
        for client in (used, fresh):
            answer = await client.ask(request())
            assert (answer.body, answer.one(b"connection")) == (b"well", b"close")
            assert await client.closed() == b""
        await asyncio.wait_for(stopping, 2.0)


async def test_what_has_come_and_is_yet_unread_when_an_idle_connection_is_due_is_answered() -> None:
    """The event loop was busy meanwhile. Found by clients that asked twice a second under a rolling
    upgrade: of 20,000 requests, 30 were lost."""
    async with Backend(WELL) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        await client.ask(request())
        (connection,) = plane.proxy.clients
        stopping = asyncio.ensure_future(plane.proxy.stop(grace_s=20.0))
        await asyncio.sleep(0.02)
        client.writer.write(request())
        connection.overdue()
        assert (await client.answer()).body == b"well"
        await asyncio.wait_for(stopping, 2.0)


async def test_those_on_which_nothing_comes_keep_it_for_a_moment_only() -> None:
    async with Backend(WELL) as backend, data_plane(backend.url) as plane:
        used, fresh = await plane.client(), await plane.client()
        await used.ask(request())
        await eventually(lambda: len(plane.proxy.clients) == 2)
        began_s = time.monotonic()
        await asyncio.wait_for(plane.proxy.stop(grace_s=20.0), 5.0)
        assert time.monotonic() - began_s >= 0.5
        assert [await used.closed(), await fresh.closed()] == [b"", b""]


async def test_who_has_been_accepted_but_not_let_in_when_the_router_stops_is_served() -> None:
    async with Backend(WELL) as backend, data_plane(backend.url) as plane:
        listener = plane.proxy._listener
        assert listener is not None
        meet = listener._meet
        stopping: list[asyncio.Future[None]] = []

        def stop_as_it_comes(guest: Guest, sock: socket.socket) -> None:
            meet(guest, sock)
            stopping.append(asyncio.ensure_future(plane.proxy.stop(grace_s=20.0)))
            listener.close()

        listener._meet = stop_as_it_comes  # type: ignore[method-assign]
        client = await plane.client()
        assert (await client.ask(request())).body == b"well"
        await asyncio.wait_for(stopping[0], 2.0)


async def test_a_tls_handshake_that_does_not_end_keeps_it_for_a_moment_only() -> None:
    async with Backend(WELL) as backend, data_plane(backend.url) as plane:
        assert plane.proxy._listener is not None
        plane.proxy._listener.close()
        address = await plane.proxy.listen(plane.address, tls=Authority().server())
        client = await Client.connect(address)
        await eventually(lambda: plane.proxy._listener._arriving)
        await asyncio.wait_for(plane.proxy.stop(grace_s=20.0), 5.0)
        assert await client.closed() == b""
        client.close()
