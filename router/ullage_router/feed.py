"""Keeps the fleet up to date: asks every sidecar in turn for its document, and servers for models.

Rules
* Nothing here is on the path of a request, and nothing a peer does ends a loop.
* A sidecar that does not answer changes nothing: its snapshots age, and no longer vouch.
* What goes wrong is counted by kind, and logged when it begins and when it ends, not each time.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, cast

import aiohttp

from ullage_router.background import in_background
from ullage_router.core.fleet import forget, hear, vouch
from ullage_router.router import Router
from ullage_shared import snapshot
from ullage_shared.log import line
from ullage_shared.peer import TooLargeError, read_limited, why_unreachable

_log: Final = logging.getLogger("ullage.router")
_TIMEOUT_S: Final = 1.0


class Poll(StrEnum):
    """How one look at a sidecar ended."""

    NEW = "new"
    UNCHANGED = "unchanged"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    STATUS = "status"
    """It answered, but with neither 200 nor 304."""
    INVALID = "invalid"
    """It sent no snapshot document."""


class SidecarFeed:
    """The look at one sidecar, again and again."""

    def __init__(self, router: Router, session: aiohttp.ClientSession, sidecar: str) -> None:
        self.polls: Counter[Poll] = Counter()
        self.faults: tuple[str, ...] = ()
        """What was wrong with the latest document, a line for each replica."""
        self.problem = ""
        """Why the latest look failed; empty: it did not."""
        self.looked = asyncio.Event()
        """Has the first look ended, well or not?"""
        self._router = router
        self._session = session
        self._sidecar = sidecar
        self._etag = ""

    async def run(self, interval_s: float) -> None:
        """Look every `interval_s`, for ever."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            result, problem = await self._look()
            self.polls[result] += 1
            self._report(problem)
            self.looked.set()
            due_s = max(due_s + interval_s, loop.time())
            await asyncio.sleep(due_s - loop.time())

    async def _look(self) -> tuple[Poll, str]:
        headers = {"If-None-Match": self._etag} if self._etag else {}
        try:
            async with self._session.get(
                self._sidecar + snapshot.PATH,
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
            ) as answer:
                if answer.status == 304 and self._etag:
                    router, now_s = self._router, self._router.noted_s()
                    router.fleet = vouch(
                        router.fleet, self._sidecar, now_s, router.in_flight.taken_at
                    )
                    return Poll.UNCHANGED, "; ".join(self.faults)
                if answer.status != 200:
                    return (
                        Poll.STATUS,
                        f"{snapshot.PATH} answered {answer.status}: is it a sidecar?",
                    )
                body = await read_limited(answer.content)
                etag = answer.headers.get("ETag", "")
        except TimeoutError:
            return Poll.TIMEOUT, f"no answer within {_TIMEOUT_S} s"
        except aiohttp.ClientConnectorCertificateError as error:
            return Poll.UNREACHABLE, why_unreachable(cast(OSError, error.certificate_error))
        except aiohttp.ClientConnectorError as error:
            return Poll.UNREACHABLE, why_unreachable(error.os_error)
        except TooLargeError as error:
            return Poll.INVALID, str(error)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Poll.UNREACHABLE, _ascii(str(error)) or type(error).__name__
        return self._take_in(body, etag)

    def _take_in(self, body: bytes, etag: str) -> tuple[Poll, str]:
        self._etag = ""
        try:
            document, faults = snapshot.decode(body)
        except snapshot.SnapshotError as error:
            return Poll.INVALID, str(error)
        router, now_s = self._router, self._router.noted_s()
        router.fleet, more = hear(
            router.fleet, self._sidecar, document, now_s, router.in_flight.taken_at
        )
        self.faults = faults + more
        # What was not taken in must be sent again: "unchanged" would vouch for something else.
        self._etag = etag if not more and etag.isascii() and etag.isprintable() else ""
        return Poll.NEW, "; ".join(self.faults)

    def _report(self, problem: str) -> None:
        if problem and not self.problem:
            _log.warning(line("sidecar_problem", sidecar=self._sidecar, why=problem))
        elif self.problem and not problem:
            _log.info(line("sidecar_well", sidecar=self._sidecar))
        self.problem = problem


class Feeds(Mapping[str, SidecarFeed]):
    """One feed for each sidecar of the configuration, by URL, running."""

    def __init__(self, router: Router, session: aiohttp.ClientSession) -> None:
        self._router = router
        self._session = session
        self._feeds: dict[str, SidecarFeed] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._interval_s = 0.0

    def apply(self, urls: Iterable[str], interval_s: float) -> None:
        """Ask exactly these sidecars from now on, each every `interval_s`.

        A replica that only a sidecar no longer asked has published leaves the fleet.
        """
        wanted = list(urls)
        gone = self._feeds.keys() - set(wanted)
        for url in self._feeds if interval_s != self._interval_s else gone:
            self._tasks.pop(url).cancel()
        for url in gone:
            del self._feeds[url]
            self._router.fleet = forget(self._router.fleet, url)
        self._interval_s = interval_s
        for url in wanted:
            if url not in self._feeds:
                self._feeds[url] = SidecarFeed(self._router, self._session, url)
            if url not in self._tasks:
                self._tasks[url] = in_background(self._feeds[url].run(interval_s))

    async def first_looks(self) -> None:
        """Wait until each has been asked once; no longer than one may take to answer."""
        await asyncio.gather(*(feed.looked.wait() for feed in self._feeds.values()))

    async def stop(self) -> None:
        """Ask nobody any more; what is known of the fleet stays."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    def __getitem__(self, url: str) -> SidecarFeed:
        return self._feeds[url]

    def __iter__(self) -> Iterator[str]:
        return iter(self._feeds)

    def __len__(self) -> int:
        return len(self._feeds)


def _ascii(text: str) -> str:
    """Words that came from a peer, fit for a log and a page."""
    return text.encode("ascii", "backslashreplace").decode()
