"""Idle connections to replicas, kept for the next request.

Rule: one that has been idle for longer than `idle_upstream_s` is never used again. uvicorn, in
front of vLLM, closes after 5 s; a request written to a connection just being closed is lost.
"""

import asyncio
import ssl
from collections import defaultdict
from functools import cache
from typing import Any, Final

from ullage_router.config import Limits
from ullage_router.http.sockets import reaches
from ullage_router.http.upstream import Upstream
from ullage_shared.address import Address

_LATE_S: Final = 0.01
"""A timer that is as late as this was kept waiting."""
_MOST_ADDED_S: Final = 1.0
"""For all that this loop is late while one connection is waited for."""


def _let_go(connecting: asyncio.Task[tuple[asyncio.Transport, Upstream]]) -> None:
    """Nobody waits for it any more."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result()[1].abort()


@cache
def _system_tls() -> ssl.SSLContext:
    """Trusts the system's authorities. To read them takes 50 ms, so they are read when needed."""
    return ssl.create_default_context()


class Pool:
    """The idle connections by address, the most recently used first."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limits: Limits, tls: ssl.SSLContext | None = None
    ) -> None:
        """`tls`: for addresses that are reached over TLS; None: the system's authorities."""
        self.limits = limits
        self.own: tuple[Address, ...] = ()
        """Where this router listens itself: no replica is there."""
        self._loop = loop
        self._tls = tls
        self._idle: defaultdict[Address, list[Upstream]] = defaultdict(list)
        self._sweeper = loop.call_later(limits.idle_upstream_s, self._sweep)

    def take(self, address: Address) -> Upstream | None:
        """An open idle connection, if there is one."""
        idle = self._idle.get(address)
        oldest_s = self._loop.time() - self.limits.idle_upstream_s
        while idle:
            upstream = idle.pop()
            if upstream.open and upstream.idle_since_s > oldest_s:
                return upstream
            upstream.abort()
        return None

    def give(self, upstream: Upstream) -> None:
        """Keep a connection whose exchange has finished, if it can carry another."""
        if upstream.release():
            upstream.idle_since_s = self._loop.time()
            self._idle[upstream.address].append(upstream)

    async def connect(self, address: Address) -> Upstream:
        """A new connection, to no port of our own. Raises `OSError`, and `TimeoutError` after
        `connect_timeout_s`."""
        connecting = self._loop.create_task(
            self._loop.create_connection(
                lambda: Upstream(address),
                address.host,
                address.port,
                ssl=(self._tls or _system_tls()) if address.tls else None,
            )
        )
        try:
            await self._in_time(connecting)
        except BaseException:
            connecting.cancel()
            connecting.add_done_callback(_let_go)
            raise
        transport, upstream = connecting.result()
        if self.own and reaches(transport, self.own):
            upstream.abort()
            raise OSError("it is this router's own port")
        return upstream

    async def _in_time(self, connecting: asyncio.Task[Any]) -> None:
        """The time is the replica's. When this loop itself is late, it has yet to look at what came
        meanwhile, so as much is added: up to a limit, or one that is always late would wait for
        ever."""
        left_s, due_s = _MOST_ADDED_S, self._loop.time() + self.limits.connect_timeout_s
        while not connecting.done():
            await asyncio.wait((connecting,), timeout=due_s - self._loop.time())
            now_s = self._loop.time()
            late_s = now_s - due_s
            if late_s < 0.0 or connecting.done():
                continue
            if late_s < _LATE_S or left_s <= 0.0:
                raise TimeoutError
            added_s = min(late_s, left_s)
            left_s, due_s = left_s - added_s, now_s + added_s

    def close(self) -> None:
        """End every idle connection."""
        self._sweeper.cancel()
        for idle in self._idle.values():
            for upstream in idle:
                upstream.abort()
        self._idle.clear()

    @property
    def idle(self) -> int:
        """How many connections wait here."""
        return sum(len(idle) for idle in self._idle.values())

    def _sweep(self) -> None:
        self._sweeper = self._loop.call_later(self.limits.idle_upstream_s / 2, self._sweep)
        oldest_s = self._loop.time() - self.limits.idle_upstream_s
        for address, idle in list(self._idle.items()):
            kept = []
            for upstream in idle:
                if upstream.open and upstream.idle_since_s > oldest_s:
                    kept.append(upstream)
                else:
                    upstream.abort()
            if kept:
                self._idle[address] = kept
            else:
                del self._idle[address]
