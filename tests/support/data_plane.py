"""The router's real data plane, in this process: `Router` and `Proxy` on a free loopback port.

Rule: what production runs, runs here; the feed is left out, so that a test says what was heard.
When it ends, no count may be left, and nothing may have gone wrong in the event loop.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from mission import BY_SCORE
from raw_client import Client
from ullage_router.config import Limits
from ullage_router.core.fleet import Fleet, fleet_of
from ullage_router.core.policy import AffinityPolicy
from ullage_router.core.rules import Rules
from ullage_router.http.proxy import Proxy
from ullage_router.router import Router
from ullage_shared.address import Address

BY_LOAD = Rules(BY_SCORE, affinity=AffinityPolicy(enabled=False))
"""Whoever asks the same again may be sent anywhere."""


@dataclass
class Plane:
    """A running data plane."""

    router: Router
    proxy: Proxy
    address: Address
    clients: list[Client] = field(default_factory=list)

    async def client(self) -> Client:
        """A new connection to it, closed with the plane."""
        client = await Client.connect(self.address)
        self.clients.append(client)
        return client

    @property
    def in_flight(self) -> int:
        """Requests that no replica has finished."""
        return sum(self.router.in_flight.by_replica.values())


@asynccontextmanager
async def data_plane(
    *urls: str,
    fleet: Fleet | None = None,
    limits: Limits = Limits(),  # noqa: B008 -- frozen
    rules: Rules = BY_LOAD,
    seed: int = 1,
    models: Callable[[], bytes | None] = lambda: None,
) -> AsyncIterator[Plane]:
    """Run it for replicas that no sidecar speaks for, or for `fleet`."""
    loop = asyncio.get_running_loop()
    wrong: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: wrong.append(context))
    router = Router(fleet or fleet_of(urls), rules, Random(seed))
    proxy = Proxy(router, limits, loop, Random(seed), models)
    plane = Plane(router, proxy, await proxy.listen(Address("127.0.0.1", 0)))
    try:
        yield plane
    finally:
        await proxy.stop(0.0)
        for client in plane.clients:
            client.writer.transport.abort()  # Whatever it has yet to send.
        await eventually(lambda: not proxy.clients and not plane.in_flight)
    assert repr(router.in_flight) == "InFlight(0: {})"
    assert (router.in_flight.pending, router.in_flight.unbegun) == ({}, {})
    assert not wrong, wrong


async def eventually(holds: Callable[[], object], within_s: float = 5.0) -> None:
    """Wait until `holds()`, looking often; fail when it does not come true."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + within_s
    while not holds():
        assert loop.time() < end_s, "it did not come true in time"
        await asyncio.sleep(0.002)
