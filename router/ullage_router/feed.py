"""Keeps the fleet up to date with what its sidecars and aggregators say.

Rules
* Nothing here is on the path of a request.
* A source that does not answer changes nothing, unless another tells of the same replicas: its
  snapshots age, and no longer vouch.
"""

import asyncio
from collections.abc import Callable

import aiohttp

from ullage_router.core.fleet import forget, hear, lost, speaks_for_all, vouch
from ullage_router.pace import Pace
from ullage_router.router import Router
from ullage_shared.feed import AT_ONCE, Feed
from ullage_shared.feeds import Feeds
from ullage_shared.secret import Secret
from ullage_shared.snapshot import Document

Token = Callable[[], Secret | None]

__all__ = ["SidecarFeed", "feeds"]


class _Ear:
    """The fleet, as one of its sources changes it."""

    def __init__(self, router: Router, source: str, pace: Pace) -> None:
        self.now_s: Callable[[], float] = router.now_s
        self._router = router
        self._source = source
        self._pace = pace

    async def hear(self, document: Document) -> tuple[tuple[str, ...], bool]:
        router, now_s = self._router, self._router.noted_s()
        await self._pace.turn(len(router.fleet.replicas))
        taken_at = router.in_flight.taken_at
        router.fleet, faults = hear(router.fleet, self._source, document, now_s, taken_at)
        return faults, not faults and speaks_for_all(router.fleet, self._source)

    async def vouch(self) -> None:
        router, now_s = self._router, self._router.noted_s()
        await self._pace.turn(len(router.fleet.replicas))
        router.fleet = vouch(router.fleet, self._source, now_s, router.in_flight.taken_at)

    def lost(self) -> None:
        self._router.fleet = lost(self._router.fleet, self._source)


class SidecarFeed(Feed):
    """The look at one sidecar or aggregator."""

    def __init__(
        self,
        router: Router,
        session: aiohttp.ClientSession,
        sidecar: str,
        pace: Pace,
        at_once: asyncio.Semaphore | None = None,
        token: Token = lambda: None,
    ) -> None:
        ear = _Ear(router, sidecar, pace)
        super().__init__(ear, session, sidecar, at_once=at_once, token=token)


def feeds(router: Router, session: aiohttp.ClientSession, token: Token = lambda: None) -> Feeds:
    """The feeds of one router. A replica that only a source that is no longer asked has published
    leaves the fleet. `token`: what to ask with now."""
    pace, at_once = Pace(), asyncio.Semaphore(AT_ONCE)

    def gone(source: str) -> None:
        router.fleet = forget(router.fleet, source)

    def feed(url: str) -> Feed:
        return SidecarFeed(router, session, url, pace, at_once, token)

    return Feeds(feed, gone)
