"""The data plane as a whole: listens, holds what its connections share, stops in good order."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from random import Random
from typing import Final

from ullage_router.config import Limits
from ullage_router.http.downstream import Downstream
from ullage_router.http.pool import Pool
from ullage_router.router import Router
from ullage_shared.address import Address
from ullage_shared.log import Seldom, line
from ullage_shared.peer import why_unreachable

_log: Final = logging.getLogger("ullage.router")
_BACKLOG: Final = 4096


class Proxy:
    """Everything that client connections have in common."""

    def __init__(
        self,
        router: Router,
        limits: Limits,
        loop: asyncio.AbstractEventLoop,
        rng: Random,
        models: Callable[[], bytes | None],
        replica_tls: ssl.SSLContext | None = None,
    ) -> None:
        """`models`: the body of `GET /v1/models`; None: unknown, ask a replica.

        `replica_tls`: for replicas at `https://`; None: the system's authorities.
        """
        self.router = router
        self.limits = limits
        self.loop = loop
        self.models = models
        self.pool = Pool(
            loop, idle_s=limits.idle_upstream_s, connect_s=limits.connect_timeout_s, tls=replica_tls
        )
        self.stopping = False
        self.clients: set[Downstream] = set()
        """Open client connections."""
        self._all_gone = asyncio.Event()
        self._rng = rng
        self._seldom = Seldom()
        self._server: asyncio.Server | None = None

    def new_request_id(self) -> bytes:
        """An `X-Request-Id` for a request that brings none: 128 random bits."""
        return b"%032x" % self._rng.getrandbits(128)

    def out_of_descriptors(self, error: OSError) -> None:
        """The router's own limit was hit, not a replica's."""
        if self._seldom.allows(self.loop.time()):
            _log.error(
                line("out_of_descriptors", why=why_unreachable(error), fix="raise ulimit -n")
            )

    def client_left(self, client: Downstream) -> None:
        """A client connection is gone."""
        self.clients.discard(client)
        if self.stopping and not self.clients:
            self._all_gone.set()

    async def listen(
        self, address: Address, *, tls: ssl.SSLContext | None = None, share_port: bool = False
    ) -> Address:
        """Accept connections; returns the address, for port 0 the given one. Raises `OSError`.

        `share_port`: other processes may listen there too (SO_REUSEPORT).
        """
        self._server = await self.loop.create_server(
            lambda: Downstream(self),
            address.host,
            address.port,
            backlog=_BACKLOG,
            ssl=tls,
            reuse_port=share_port,
        )
        return Address(address.host, self._server.sockets[0].getsockname()[1])

    async def stop(self, grace_s: float) -> None:
        """Accept no more, let what runs finish for up to `grace_s`, then end what is left."""
        self.stopping = True
        if self._server is not None:
            self._server.close()
        for client in list(self.clients):
            client.stop_when_idle()
        if self.clients:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), grace_s)
        if self.clients:
            _log.warning(line("cut_by_stop", connections=len(self.clients)))
        for client in list(self.clients):
            client.cut(reset=True)
        self.pool.close()
