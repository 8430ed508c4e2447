"""A list of servers, kept up to date: `urls` is what there is now.

Rules
* Nothing that a source does ends the process, or takes away what another source names.
* Of a reload the old list stays until each source that came with it has been read well once: so
  that nobody is cut off for as long as a name is looked up.
* A problem is logged when it begins, when it becomes another, and when it ends.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import StrEnum
from typing import Final

from ullage_shared.background import in_background
from ullage_shared.discovery.files import LOOK_EVERY_S, Files
from ullage_shared.discovery.known import Known, after, merged
from ullage_shared.discovery.source import Kind, Source, parse_source
from ullage_shared.log import line

_log: Final = logging.getLogger("ullage.discovery")


class Look(StrEnum):
    """How a look at a source ended."""

    CHANGED = "changed"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    """Some of what it says, or all, was not taken."""


class Seeker:
    """One source that may change, and what is known of it."""

    def __init__(self, source: Source, list_: str, changed: Callable[[], None]) -> None:
        self.source = source
        self.known = Known()
        self.looks: Counter[Look] = Counter()
        self.looked = asyncio.Event()
        """Has the first look ended, well or not?"""
        self._list = list_
        self._changed = changed
        self._again = asyncio.Event()

    async def run(self) -> None:
        """Look for ever."""
        files = Files(self.source.where)
        while True:
            self._again.clear()
            if self.source.kind is Kind.FILE:
                known, wait_s = await asyncio.to_thread(files.look), LOOK_EVERY_S
            else:
                from ullage_shared.discovery import names  # Takes a tenth of a second to import.

                told = await names.ask(self.source)
                known, wait_s = after(self.known, told.found), told.holds_s
            self.note(known)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._again.wait()

    def look_soon(self) -> None:
        """Look now, rather than when it is due."""
        self._again.set()

    def note(self, known: Known) -> None:
        """Take over what is known now, count it, and say what has changed."""
        before, self.known = self.known, known
        new = before.urls != known.urls
        self.looks[Look.FAILED if known.problem else Look.CHANGED if new else Look.UNCHANGED] += 1
        where = {"source": self.source.text, "list": self._list}
        if known.problem and known.problem != before.problem:
            _log.warning(line("discovery_problem", **where, why=known.problem))
        elif before.problem and not known.problem:
            _log.info(line("discovery_well", **where))
        if new:
            joined, left = (
                len({*some}.difference(others))
                for some, others in ((known.urls, before.urls), (before.urls, known.urls))
            )
            now = len(known.urls)
            _log.info(line("discovery_changed", **where, joined=joined, left=left, now=now))
        self.looked.set()
        if new or before.holds != known.holds:
            self._changed()


class Listing:
    """All sources of one list, running."""

    def __init__(self, name: str, changed: Callable[[], None]) -> None:
        """`name`: of the list, in logs, pages and metrics. `changed`: called when `urls` may be
        others, but not by `apply`."""
        self.name = name
        self.seekers: dict[str, Seeker] = {}
        """Those that may change, by their text."""
        self._changed = changed
        self._sources: list[Source] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._old: tuple[str, ...] = ()
        self._new: frozenset[str] = frozenset()
        """Sources that came with the latest reload. Until they hold, `_old` stays."""

    @property
    def urls(self) -> tuple[str, ...]:
        """Whom it names now, in normal form, each once."""
        lists = [
            (source.where,) if source.kind is Kind.URL else self.seekers[source.text].known.urls
            for source in self._sources
        ]
        if all(self.seekers[text].known.holds for text in self._new):
            self._old = ()
        return merged([*lists, self._old])

    def apply(self, texts: Iterable[str]) -> None:
        """Ask exactly these sources from now on; all of them now. Raises `AddressError`, and has
        changed nothing then."""
        sources = [parse_source(text) for text in dict.fromkeys(texts)]
        before = self.urls
        moving = {each.text: each for each in sources if each.kind is not Kind.URL}
        for text in self.seekers.keys() - moving.keys():
            self._tasks.pop(text).cancel()
            del self.seekers[text]
        for seeker in self.seekers.values():
            seeker.look_soon()
        self._new = frozenset(moving.keys() - self.seekers.keys())
        for text in self._new:
            seeker = Seeker(moving[text], self.name, self._changed)
            self.seekers[text] = seeker
            self._tasks[text] = in_background(seeker.run())
        self._sources, self._old = sources, before if self._new else ()

    async def first_looks(self) -> None:
        """Wait until each source has been looked at once, well or not."""
        await asyncio.gather(*(seeker.looked.wait() for seeker in self.seekers.values()))

    async def stop(self) -> None:
        """Look no more; `urls` stays as it is."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
