"""Keeps the fleet up to date with what its sidecars and aggregators say.

Rules
* Nothing here is on the path of a request.
* A source that does not answer changes nothing, unless another tells of the same replicas: its
  snapshots age, and no longer vouch.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import aiohttp

from ullage_router.core.fleet import Fleet, forget, hear, lost, speaks_for_all, vouch
from ullage_router.pace import Pace
from ullage_router.router import Router
from ullage_shared.feed import AT_ONCE, Feed
from ullage_shared.feeds import Feeds
from ullage_shared.log import line
from ullage_shared.secret import Secret
from ullage_shared.snapshot import Document, Snapshot, State

Token = Callable[[], Secret | None]

__all__ = ["SidecarFeed", "feeds"]

_log: Final = logging.getLogger("ullage.router")
_STALLED: Final = "stalled"
_BAD: Final = (State.DOWN, State.HUNG, _STALLED)


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
        before, taken_at = router.fleet, router.in_flight.taken_at
        router.fleet, faults = hear(before, self._source, document, now_s, taken_at)
        self._say_states(before)
        return faults, not faults and speaks_for_all(router.fleet, self._source)

    def _say_states(self, before: Fleet) -> None:
        """Tell of replicas that are in another state now."""
        fleet = self._router.fleet
        for key in fleet.named.get(self._source, ()):
            now, known = fleet.replicas.get(key), before.replicas.get(key)
            if now is None or now.snapshot is None or known is None or known.snapshot is None:
                continue
            was, state = _state(known.snapshot), _state(now.snapshot)
            if was != state:
                why = now.snapshot.reason or None
                said = line("replica_state", replica=now.id, was=was, now=state, why=why)
                _log.log(logging.WARNING if state in _BAD else logging.INFO, said)

    async def vouch(self) -> None:
        router, now_s = self._router, self._router.noted_s()
        await self._pace.turn(len(router.fleet.replicas))
        router.fleet = vouch(router.fleet, self._source, now_s, router.in_flight.taken_at)

    def lost(self) -> None:
        self._router.fleet = lost(self._router.fleet, self._source)


def _state(snapshot: Snapshot) -> str:
    return _STALLED if snapshot.stalled else snapshot.state


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
