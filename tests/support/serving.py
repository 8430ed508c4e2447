"""The router's `Service` in this process: what the command runs, without the process around it."""

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from raw_client import Client
from ullage_router.config import Config
from ullage_router.serve import Service, service
from ullage_shared.address import Address
from ullage_shared.log import Line


@dataclass
class Serving:
    """It runs."""

    service: Service
    address: Address
    admin: Address
    clients: list[Client] = field(default_factory=list)

    async def client(self, tls: ssl.SSLContext | None = None) -> Client:
        """A new connection to it, closed with it."""
        client = await Client.connect(self.address, tls)
        self.clients.append(client)
        return client

    async def page(self, path: str) -> Any:
        """A page of the admin port."""
        url = f"http://{self.admin}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as page:
            return await page.json()


@asynccontextmanager
async def serving(
    config: Config, put: Callable[[Line], None] = lambda _: None
) -> AsyncIterator[Serving]:
    """Run it on free ports of the loopback; it is stopped without grace."""
    loopback = Address("127.0.0.1", 0)
    async with service(config, put) as running:
        address, admin = await running.open(loopback, loopback)
        assert isinstance(admin, Address)
        it = Serving(running, address, admin)
        try:
            yield it
        finally:
            running.stop()
            running.stop()
            await running.stopped()
            for client in it.clients:
                client.writer.transport.abort()
