"""Hears what sidecars and aggregators say: watches each of them, or asks it again and again.

Each look asks for a watch: the document a line at a time, when it changes and every interval. A
sidecar that does not know of that answers with one document, and is asked again at the interval.

Rules
* Nothing a peer does ends a loop.
* A sidecar that does not answer changes nothing: its snapshots age, and no longer vouch.
* Of lines that have come together the last document counts; an empty line vouches for it.
* A watch that fell silent, or sent rubbish, is given up, and asked for anew.
* What goes wrong is counted by kind, and logged when it begins and when it ends, not each time; of
  one that begins again and again, now and then.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import aclosing
from enum import StrEnum
from math import inf
from typing import Final, Protocol, cast

import aiohttp

from ullage_shared import snapshot
from ullage_shared.log import Seldom, line
from ullage_shared.peer import TooLargeError, lines, read_limited, why_unreachable
from ullage_shared.secret import Secret

_log: Final = logging.getLogger("ullage.feed")
_TIMEOUT_S: Final = 1.0
_INTERVALS: Final = 3.0
"""A watch without a line for so many is given up, but not before `_TIMEOUT_S`."""
_MOST_INTERVAL_S: Final = 60.0
"""What a peer says of its interval is believed up to that."""
AT_ONCE: Final = 64
"""So many are connected to side by side. A thousand at once would take longer than each may take to
answer: all would be given up, and asked again, for ever."""
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


_UNAUTHORIZED: Final = 401
_SPOKEN: Final = (Poll.NEW, Poll.UNCHANGED)

Look = tuple[Poll, str]
"""How it ended, and what is wrong; empty: nothing."""


class Ear(Protocol):
    """Whoever wants to hear what one source says."""

    def now_s(self) -> float:
        """The clock on which words are counted."""
        ...

    async def hear(self, document: snapshot.Document) -> tuple[tuple[str, ...], bool]:
        """Take in a document: a line for each replica it got wrong, and whether it was possible in
        all its parts. If not, it is said again with the next word that nothing has changed."""
        ...

    async def vouch(self) -> None:
        """What was said last is true now."""
        ...

    def lost(self) -> None:
        """It cannot be heard; said once, until it is."""
        ...


class Feed:
    """The look at one source, again and again."""

    def __init__(
        self,
        ear: Ear,
        session: aiohttp.ClientSession,
        url: str,
        spacing_s: float = 0.0,
        most_bytes: int | None = None,
        at_once: asyncio.Semaphore | None = None,
        token: Callable[[], Secret | None] = lambda: None,
    ) -> None:
        """`spacing_s`: no two lines of a watch are wanted within that. `most_bytes`: of a document;
        None: as many as of anybody's answer. `at_once`: shared by those that ask side by side; the
        time to answer counts from when it lets this one in. `token`: what to ask with now."""
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
        """When it last spoke, by the ear's clock; None: never."""
        self.watching = False
        """Does it push what changes? Else it is asked."""
        self._ear = ear
        self._session = session
        self._url = url
        self._spacing_s = spacing_s
        self._most_bytes = most_bytes
        self._at_once = at_once or asyncio.Semaphore()
        self._token = token
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
            look = await self._ask(interval_s, self._watch(interval_s))
            if look is None or look[0] is not Poll.STATUS:
                return look
            self._may_watch_s = loop.time() + _REFUSED_FOR_S
        return await self._ask(interval_s, "")

    def _watch(self, interval_s: float) -> str:
        wanted = f"?{snapshot.WATCH}&{snapshot.INTERVAL}={round(interval_s * 1000.0)}"
        spacing_ms = round(self._spacing_s * 1000.0)
        return f"{wanted}&{snapshot.SPACING}={spacing_ms}" if spacing_ms else wanted

    def _headers(self) -> dict[str, str]:
        token = self._token()
        headers = {"Accept-Encoding": "identity", **(token.headers if token else {})}
        return headers | ({"If-None-Match": self._etag} if self._etag else {})

    async def _ask(self, interval_s: float, query: str) -> Look | None:
        try:
            async with self._at_once:
                until_s = asyncio.get_running_loop().time() + _TIMEOUT_S
                async with asyncio.timeout_at(until_s):
                    begun = await self._session.get(
                        self._url + snapshot.PATH + query,
                        headers=self._headers(),
                        allow_redirects=False,
                        auto_decompress=False,  # A little may be made of a lot.
                        timeout=aiohttp.ClientTimeout(total=None),
                    )
            async with begun as answer, asyncio.timeout_at(until_s) as limit:
                if answer.status == 304 and self._etag:
                    limit.reschedule(None)
                    return await self._unchanged()
                if answer.status != 200:
                    return (
                        Poll.STATUS,
                        f"{snapshot.PATH} answered {answer.status}: {hint(answer.status)}",
                    )
                if answer.content_type == snapshot.LINES_TYPE:
                    limit.reschedule(None)
                    in_force_s = max(interval_s, _told_s(answer.headers))
                    return await self._follow(answer.content, in_force_s)
                body = await read_limited(answer.content, self._most_bytes)
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
            async with aclosing(lines(content, self._most_bytes)) as coming:
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
        settled = await self._heard(document, faults)
        # What was not taken in must be sent again: "unchanged" would vouch for something else.
        self._etag = etag if settled and etag.isascii() and etag.isprintable() else ""
        return Poll.NEW, "; ".join(self.faults)

    async def _unchanged(self) -> Look:
        if self._unsettled is not None:
            await self._heard(*self._unsettled)
        else:
            await self._ear.vouch()
        return Poll.UNCHANGED, "; ".join(self.faults)

    async def _heard(self, document: snapshot.Document, faults: tuple[str, ...]) -> bool:
        """Have a document taken in; was that possible in all its parts?"""
        more, whole = await self._ear.hear(document)
        self.faults = _brief(faults + more)
        self._unsettled = None if whole else (document, faults)
        return whole

    def _note(self, look: Look) -> None:
        """Count it, and report what is wrong when that begins and ends."""
        result, problem = look
        self.polls[result] += 1
        self.problem = problem
        if result in _SPOKEN:
            self.failing = False
            self.heard_s = self._ear.now_s()
        elif not self.failing:
            self.failing = True
            self._ear.lost()
        if problem and not self._told and self._seldom.allows(asyncio.get_running_loop().time()):
            self._told = True
            kept_back = self._seldom.kept_back
            _log.warning(
                line("sidecar_problem", sidecar=self._url, why=problem, kept_back=kept_back)
            )
        elif self._told and not problem:
            self._told = False
            _log.info(line("sidecar_well", sidecar=self._url))
        self.looked.set()


def hint(status: int) -> str:
    """What may be wrong with whoever answers so."""
    return "does it want another token?" if status == _UNAUTHORIZED else "is it a sidecar?"


def _brief(faults: tuple[str, ...]) -> tuple[str, ...]:
    """A peer may have thousands, of any length."""
    told = tuple(fault[:_WORDS] for fault in faults[:_FAULTS])
    return told if len(faults) <= _FAULTS else (*told, f"and {len(faults) - _FAULTS} more")


def _told_s(headers: Mapping[str, str]) -> float:
    """How often its lines come, as it says itself; 0: it does not."""
    text = headers.get(snapshot.INTERVAL_HEADER, "")
    told = text.isascii() and text.isdecimal() and len(text) < 9
    return min(int(text) / 1000.0, _MOST_INTERVAL_S) if told else 0.0


def _ascii(text: str) -> str:
    """Words that came from a peer, fit for a log and a page."""
    return text.encode("ascii", "backslashreplace").decode()
