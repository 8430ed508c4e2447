"""Keeps the fleet up to date: watches every sidecar, or asks it again and again.

Each look asks for a watch: the document a line at a time, when it changes and every interval. A
sidecar that does not know of that answers with one document, and is asked again at the interval.

Rules
* Nothing here is on the path of a request, and nothing a peer does ends a loop.
* A sidecar that does not answer changes nothing: its snapshots age, and no longer vouch.
* Of lines that have come together the last document counts; an empty line vouches for it.
* A watch that fell silent, or sent rubbish, is given up, and asked for anew.
* What goes wrong is counted by kind, and logged when it begins and when it ends, not each time; of
  one that begins again and again, now and then.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing
from enum import StrEnum
from math import inf
from typing import Final, cast

import aiohttp

from ullage_router.core.fleet import forget, hear, vouch
from ullage_router.pace import Pace
from ullage_router.router import Router
from ullage_shared import snapshot
from ullage_shared.background import in_background
from ullage_shared.log import Seldom, line
from ullage_shared.peer import TooLargeError, lines, read_limited, why_unreachable

_log: Final = logging.getLogger("ullage.router")
_TIMEOUT_S: Final = 1.0
_INTERVALS: Final = 3.0
"""A watch without a line for so many is given up, but not before `_TIMEOUT_S`."""
_FAULTS: Final = 8
_WORDS: Final = 300
"""Faults of a document that are told, and characters of each."""
_REFUSED_FOR_S: Final = 30.0
"""Who refuses a watch (it has too many) is asked for none for so long."""


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


_SPOKEN: Final = (Poll.NEW, Poll.UNCHANGED)

Look = tuple[Poll, str]
"""How it ended, and what is wrong; empty: nothing."""


class SidecarFeed:
    """The look at one sidecar, again and again."""

    def __init__(
        self, router: Router, session: aiohttp.ClientSession, sidecar: str, pace: Pace
    ) -> None:
        self.polls: Counter[Poll] = Counter()
        """Answers, and lines of a watch."""
        self.faults: tuple[str, ...] = ()
        """What was wrong with the latest document, a line for each replica."""
        self.problem = ""
        """Why the latest look failed; empty: it did not."""
        self.looked = asyncio.Event()
        """Has the first look ended, well or not?"""
        self.failing = False
        """Has the latest look failed?"""
        self.heard_s: float | None = None
        """When it last spoke, by the router's clock; None: never."""
        self.watching = False
        """Does it push what changes? Else it is asked."""
        self._router = router
        self._session = session
        self._sidecar = sidecar
        self._pace = pace
        self._told = False
        """Does the log say that there is a problem?"""
        self._seldom = Seldom()
        self._etag = ""
        self._unsettled: tuple[snapshot.Document, tuple[str, ...]] | None = None
        """A document that was not taken in whole, and its faults."""
        self._may_watch_s = -inf
        """Not before that is a watch asked for."""

    async def run(self, interval_s: float) -> None:
        """Look for ever, every `interval_s` unless a look is a watch."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            look = await self._look(interval_s)
            if look is not None:
                self._note(look)
            due_s = max(due_s + interval_s, loop.time())
            await asyncio.sleep(due_s - loop.time())

    async def _look(self, interval_s: float) -> Look | None:
        """Watch, or ask once. None: it was a watch, and the sidecar has ended it."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._may_watch_s:
            look = await self._ask(interval_s, f"?{snapshot.WATCH}&{_interval(interval_s)}")
            if look is None or look[0] is not Poll.STATUS:
                return look
            self._may_watch_s = loop.time() + _REFUSED_FOR_S
        return await self._ask(interval_s, "")

    async def _ask(self, interval_s: float, query: str) -> Look | None:
        headers = {"If-None-Match": self._etag} if self._etag else {}
        try:
            async with (
                asyncio.timeout(_TIMEOUT_S) as limit,
                self._session.get(
                    self._sidecar + snapshot.PATH + query,
                    headers=headers,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None),
                ) as answer,
            ):
                if answer.status == 304 and self._etag:
                    limit.reschedule(None)
                    return await self._unchanged()
                if answer.status != 200:
                    return (
                        Poll.STATUS,
                        f"{snapshot.PATH} answered {answer.status}: is it a sidecar?",
                    )
                if answer.content_type == snapshot.LINES_TYPE:
                    limit.reschedule(None)
                    return await self._follow(answer.content, interval_s)
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
            return Poll.UNREACHABLE, _ascii(str(error))[:_WORDS] or type(error).__name__
        return await self._take_in(body, etag)

    async def _follow(self, content: aiohttp.StreamReader, interval_s: float) -> Look | None:
        """Take in lines until they end, well (None) or not."""
        wait_s, first = _TIMEOUT_S, True
        self.watching = True
        try:
            async with aclosing(lines(content)) as coming:
                while True:
                    async with asyncio.timeout(wait_s):
                        whole = await anext(coming, None)
                    if whole is None:
                        return (Poll.INVALID, "its watch ended before a line") if first else None
                    text = next((text for text in reversed(whole) if text), b"")
                    if first and not text:
                        return Poll.INVALID, "its watch begins with an empty line"
                    look = await (self._take_in(text, "") if text else self._unchanged())
                    if look[0] is Poll.INVALID:
                        return look
                    self._note(look)
                    wait_s, first = max(_TIMEOUT_S, _INTERVALS * interval_s), False
        except TimeoutError:
            return Poll.TIMEOUT, f"no line within {wait_s:g} s"
        finally:
            self.watching = False

    async def _take_in(self, body: bytes, etag: str) -> Look:
        self._etag, self._unsettled = "", None
        try:
            document, faults = snapshot.decode(body)
        except snapshot.SnapshotError as error:
            return Poll.INVALID, str(error)
        settled = await self._hear(document, faults)
        # What was not taken in must be sent again: "unchanged" would vouch for something else.
        self._etag = etag if settled and etag.isascii() and etag.isprintable() else ""
        return Poll.NEW, "; ".join(self.faults)

    async def _unchanged(self) -> Look:
        if self._unsettled is not None:
            await self._hear(*self._unsettled)
            return Poll.UNCHANGED, "; ".join(self.faults)
        router, now_s = self._router, self._router.noted_s()
        await self._pace.turn(len(router.fleet.replicas))
        router.fleet = vouch(router.fleet, self._sidecar, now_s, router.in_flight.taken_at)
        return Poll.UNCHANGED, "; ".join(self.faults)

    async def _hear(self, document: snapshot.Document, faults: tuple[str, ...]) -> bool:
        """Take in a document; was that possible in all its parts?"""
        router, now_s = self._router, self._router.noted_s()
        await self._pace.turn(len(router.fleet.replicas))
        router.fleet, more = hear(
            router.fleet, self._sidecar, document, now_s, router.in_flight.taken_at
        )
        self.faults = _brief(faults + more)
        self._unsettled = (document, faults) if more else None
        return not more

    def _note(self, look: Look) -> None:
        """Count it, and report what is wrong when that begins and ends."""
        result, problem = look
        self.polls[result] += 1
        self.problem = problem
        self.failing = result not in _SPOKEN
        if not self.failing:
            self.heard_s = self._router.now_s()
        if problem and not self._told and self._seldom.allows(asyncio.get_running_loop().time()):
            self._told = True
            kept_back = self._seldom.kept_back
            _log.warning(
                line("sidecar_problem", sidecar=self._sidecar, why=problem, kept_back=kept_back)
            )
        elif self._told and not problem:
            self._told = False
            _log.info(line("sidecar_well", sidecar=self._sidecar))
        self.looked.set()


class Feeds(Mapping[str, SidecarFeed]):
    """One feed for each sidecar of the configuration, by URL, running."""

    def __init__(self, router: Router, session: aiohttp.ClientSession) -> None:
        self._router = router
        self._session = session
        self._pace = Pace()
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
                self._feeds[url] = SidecarFeed(self._router, self._session, url, self._pace)
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


def _brief(faults: tuple[str, ...]) -> tuple[str, ...]:
    """A peer may have thousands, of any length."""
    told = tuple(fault[:_WORDS] for fault in faults[:_FAULTS])
    return told if len(faults) <= _FAULTS else (*told, f"and {len(faults) - _FAULTS} more")


def _interval(interval_s: float) -> str:
    return f"{snapshot.INTERVAL}={round(interval_s * 1000.0)}"


def _ascii(text: str) -> str:
    """Words that came from a peer, fit for a log and a page."""
    return text.encode("ascii", "backslashreplace").decode()
