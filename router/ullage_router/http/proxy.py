"""The data plane as a whole: listens, holds what its connections share, stops in good order."""

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import Callable, Hashable, Iterable, Sequence
from math import inf
from random import Random
from typing import Final, cast

from ullage_router.config import Config, Limits
from ullage_router.core.budget import RetryBudget
from ullage_router.core.policy import AffinityPolicy, RetryPolicy
from ullage_router.http.access import NOTED as KEYED
from ullage_router.http.access import Access
from ullage_router.http.downstream import Downstream
from ullage_router.http.exchange import Exchange
from ullage_router.http.listener import Listener
from ullage_router.http.message import NOTED, shown
from ullage_router.http.pool import Pool
from ullage_router.http.story import NOTED as TOLD
from ullage_router.http.story import ToldExchange, Witness
from ullage_router.http.turns import Turns
from ullage_router.lateness import BOUNDS
from ullage_router.router import Router
from ullage_router.tally import Histogram
from ullage_router.waiting import WaitingRoom
from ullage_shared.address import Address
from ullage_shared.log import Seldom, line
from ullage_shared.peer import why_unreachable
from ullage_shared.snapshot import RequestClass

_log: Final = logging.getLogger("ullage.router")
_REPORT_EVERY_S: Final = 5.0
_OTHER_FILES: Final = 64
_STOPPED_IDLE_S: Final = 0.5
"""Once the router stops: how long a connection without a request stays open, and TLS's handshakes
may take. On a connection that the client believes open a request may be on its way."""
_STOPPED_SWEEP_S: Final = 0.1
_LAST_WORDS_S: Final = 0.5
"""For what was still said to reach its clients."""


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
        self.loop = loop
        self.models = models
        self.budget = RetryBudget(RetryPolicy())
        self.pool = Pool(loop, limits, replica_tls)
        self.waiting = WaitingRoom(loop, self._breathing)
        self.turns = Turns(loop)
        self.name_replica = True
        self.name_why = False
        self.late_s = Histogram(BOUNDS)
        """How late the event loop was, each time that somebody looked."""
        self.exchange: type[Exchange] = Exchange
        self.witnesses: tuple[Witness, ...] = ()
        """Who is told of each request."""
        self.handshakes_failed = 0
        """Connections that ended before TLS's handshake did."""
        self.stopping = False
        self.clients: set[Downstream] = set()
        """Open client connections."""
        self.access: Access | None = None
        """Who may send requests; None: everybody, and what they send goes on."""
        self._note(AffinityPolicy().session_header.lower().encode())
        self._wake = asyncio.Event()
        self._hurry = False
        self._rng = rng
        self._seldom = Seldom()
        self._cuts = Seldom()
        self._listener: Listener | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._use(limits)

    def configure(self, config: Config) -> None:
        """Take on another configuration. What is under way keeps the limits it began with."""
        self.name_replica = config.name_replica
        self.name_why = config.name_why
        self._note(config.affinity.session_header.lower().encode())
        self.budget.policy = config.retry
        self.waiting.policy = config.queue
        self._use(config.limits)

    def tell(self, witnesses: Iterable[Witness]) -> None:
        """Have them told of each request that begins from now on."""
        self.witnesses = tuple(witnesses)
        self.exchange = ToldExchange if self.witnesses else Exchange
        self._note(self.session_header)

    def admit(self, access: Access) -> None:
        """Have no others send requests from now on."""
        self.access = None if access.idle else access
        self._note(self.session_header)

    def _note(self, session_header: bytes) -> None:
        """Which request headers choosing goes by, what is told of requests, and who sends them."""
        self.session_header = session_header
        self.noted = NOTED | ({session_header} - {b""})
        if self.witnesses:
            self.noted |= TOLD
        if self.access is not None:
            self.noted |= KEYED
        for client in self.clients:
            client.note(self.noted, self.access)

    def _use(self, limits: Limits) -> None:
        self.limits = limits
        self.pool.limits = limits
        self.max_connections = limits.max_connections or _connections_allowed()
        shortest_s = min(
            limits.head_timeout_s,
            limits.body_timeout_s,
            limits.idle_client_s,
            limits.stalled_client_s,
            limits.first_byte_timeout_s or inf,
        )
        self._sweep_each(min(1.0, shortest_s / 4))

    def _sweep_each(self, every_s: float) -> None:
        self._sweep_every_s = every_s
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._sweeper = self.loop.call_later(every_s, self._sweep)

    def _sweep(self) -> None:
        """End what is overdue. One look at every connection costs less than a timer for each."""
        self._sweeper = self.loop.call_later(self._sweep_every_s, self._sweep)
        self.router.see_off()
        now_s = self.loop.time()
        for client in [client for client in self.clients if client.due_s < now_s]:
            client.overdue()

    def _breathing(self, lane: Hashable) -> int:
        """How many replicas have headroom now for requests of this lane; None: of any."""
        if lane is None:
            return self.router.breathing(None)
        model, size = cast(tuple[str | None, RequestClass], lane)
        return self.router.breathing_of(model, size)

    @property
    def idle_s(self) -> float:
        """How long a connection without a request stays open."""
        return _STOPPED_IDLE_S if self.stopping else self.limits.idle_client_s

    def new_request_id(self) -> bytes:
        """An `X-Request-Id` for a request that brings none: 128 random bits."""
        return b"%032x" % self._rng.getrandbits(128)

    def out_of_descriptors(self, error: OSError) -> None:
        """The router's own limit was hit, not a replica's."""
        if self._seldom.allows(self.loop.time()):
            why, kept_back = why_unreachable(error), self._seldom.kept_back
            fix = "raise ulimit -n"
            _log.error(line("out_of_descriptors", why=why, fix=fix, kept_back=kept_back))

    def _handshake_failed(self, error: OSError) -> None:
        self.handshakes_failed += 1
        _log.debug(line("handshake_failed", why=why_unreachable(error)))

    def answer_cut(self, replica: str, request_id: bytes, problem: str) -> None:
        """A replica broke off in the midst of an answer. One line says so for many."""
        if self._cuts.allows(self.loop.time()):
            _log.warning(
                line(
                    "answer_cut",
                    replica=replica,
                    why=problem,
                    request_id=shown(request_id),
                    kept_back=self._cuts.kept_back,
                )
            )

    def client_left(self, client: Downstream) -> None:
        """A client connection is gone."""
        self.clients.discard(client)
        if self.stopping and not self.clients:
            self._wake.set()

    async def listen(
        self, address: Address, *, tls: ssl.SSLContext | None = None, share_port: bool = False
    ) -> Address:
        """Accept connections; returns the address, for port 0 the given one. Raises `OSError`.

        `share_port`: other processes may listen there too (SO_REUSEPORT).
        """
        self._listener = self._listens(tls)
        return Address(address.host, self._listener.open(address, share_port=share_port))

    async def listen_on(
        self, sockets: Sequence[socket.socket], *, tls: ssl.SSLContext | None = None
    ) -> None:
        """Accept connections on sockets that listen already. They are the proxy's from now on."""
        self._listener = self._listens(tls)
        self._listener.take(sockets)

    def _listens(self, tls: ssl.SSLContext | None) -> Listener:
        return Listener(
            self.loop,
            lambda: Downstream(self),
            self.out_of_descriptors,
            self._handshake_failed,
            lambda arriving: len(self.clients) + arriving >= self.max_connections,
            tls,
            self.limits.head_timeout_s,
        )

    async def stop(self, grace_s: float) -> None:
        """Accept no more, let what runs finish for up to `grace_s`, then end what is left."""
        self.stopping = True
        if self._listener is not None:
            self._listener.close()
        for client in list(self.clients):
            client.stop_when_idle()
        self._sweep_each(min(self._sweep_every_s, _STOPPED_SWEEP_S))
        end_s = self.loop.time() + grace_s
        if self._listener is not None:
            await self._listener.see_in(min(grace_s, _STOPPED_IDLE_S))
        while self.clients and not self._hurry and (left_s := end_s - self.loop.time()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), min(left_s, _REPORT_EVERY_S))
            if self.clients:
                _log.info(line("still_stopping", connections=len(self.clients)))
        if self.clients:
            _log.warning(line("cut_by_stop", connections=len(self.clients)))
        for client in list(self.clients):
            client.stop_now()
        if self.clients:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _LAST_WORDS_S)
        for client in list(self.clients):
            client.cut(reset=True)
        self.close()

    def cut_now(self) -> None:
        """Whoever stops the router will wait no longer."""
        self._hurry = True
        self._wake.set()

    def close(self) -> None:
        """End the timers and the idle connections to replicas."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.waiting.close()
        self.pool.close()


def _connections_allowed() -> int:
    """How many clients the limit of open files suffices for, with a replica connection for each."""
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, (open_files - _OTHER_FILES) // 2)
