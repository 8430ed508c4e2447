"""The looks at many sources, side by side: one that hangs holds up no other."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping

from ullage_shared.background import in_background
from ullage_shared.feed import Feed


class Feeds(Mapping[str, Feed]):
    """One feed for each source, by URL, running."""

    def __init__(self, feed: Callable[[str], Feed], forget: Callable[[str], None]) -> None:
        """`feed` makes that of a URL; `forget` is told of those that are no longer asked."""
        self._feed = feed
        self._forget = forget
        self._feeds: dict[str, Feed] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._interval_s = 0.0

    def apply(self, urls: Iterable[str], interval_s: float) -> None:
        """Ask exactly these from now on, each every `interval_s`."""
        wanted = list(urls)
        gone = self._feeds.keys() - set(wanted)
        for url in self._feeds if interval_s != self._interval_s else gone:
            self._tasks.pop(url).cancel()
        for url in gone:
            del self._feeds[url]
            self._forget(url)
        self._interval_s = interval_s
        for url in wanted:
            if url not in self._feeds:
                self._feeds[url] = self._feed(url)
            if url not in self._tasks:
                self._tasks[url] = in_background(self._feeds[url].run(interval_s))

    async def first_looks(self) -> None:
        """Wait until each has been asked once; no longer than one may take to answer."""
        await asyncio.gather(*(feed.looked.wait() for feed in self._feeds.values()))

    async def stop(self) -> None:
        """Ask nobody any more; what was heard stays."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    def __getitem__(self, url: str) -> Feed:
        return self._feeds[url]

    def __iter__(self) -> Iterator[str]:
        return iter(self._feeds)

    def __len__(self) -> int:
        return len(self._feeds)
