"""Reads `/metrics` of a server whose plugin is not heard, and tells the node what it says.

A server is asked while it answers `/health` and its plugin is silent; once that speaks, no longer.
A page costs vLLM 5 to 8 ms on the thread that streams its tokens, and more with each engine, which
is why there are no more of them than one every `interval_s`, and none where a plugin does better.
It is asked for uncompressed, for to compress it costs vLLM as much again.

What goes wrong is one line in the log when it begins and one when it ends.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

import aiohttp

from ullage_shared.log import Seldom, line
from ullage_shared.peer import TooLargeError, read_limited, why_unreachable
from ullage_shared.tls import trusting
from ullage_sidecar.core.health import HealthSettings, Probe
from ullage_sidecar.node import Node
from ullage_sidecar.sources.exposition import ExpositionError, Page, read
from ullage_sidecar.sources.scraped import Seen, Server, absent, look, rested
from ullage_sidecar.sources.settings import ScrapeSettings

PATH: Final = "/metrics"
OK: Final = 200
KEEP_S: Final = 4.0
"""Of an idle connection; vLLM closes it after 5 s."""
HEADERS: Final = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"}

_log: Final = logging.getLogger("ullage.sidecar")


class ScrapeError(Exception):
    """The server's or the network's fault. The message holds no figure that changes."""

    def __init__(self, why: str, *, gone: bool = False) -> None:
        super().__init__(why)
        self.gone = gone
        """Nobody listens there."""


def session(settings: HealthSettings) -> aiohttp.ClientSession:
    """What pages are asked for with. To be closed by the caller. Raises `ConfigError`.

    Connections are kept, which halves what a page costs this process.
    """
    tls = trusting("health.ca", settings.ca) if settings.ca else True
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_S, ssl=tls),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


async def fetch(client: aiohttp.ClientSession, url: str, timeout_s: float) -> Page:
    """Ask for one page. Raises `ScrapeError`."""
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with client.get(
            url + PATH, allow_redirects=False, headers=HEADERS, timeout=timeout
        ) as answer:
            if answer.status != OK:
                raise ScrapeError(f"status {answer.status}")
            return read(await read_limited(answer.content))
    except TimeoutError as error:
        raise ScrapeError("no answer in time") from error
    except aiohttp.ClientConnectorCertificateError as error:
        raise ScrapeError(why_unreachable(cast(OSError, error.certificate_error))) from error
    except aiohttp.ClientConnectorError as error:
        refused = isinstance(error.os_error, ConnectionRefusedError)
        raise ScrapeError(why_unreachable(error.os_error), gone=refused) from error
    except (aiohttp.ClientError, OSError) as error:
        raise ScrapeError("connection lost") from error
    except (ExpositionError, TooLargeError) as error:
        raise ScrapeError(str(error)) from error


def machine_start() -> str:
    """Name this start of the machine: instants are told from it. Empty: it has no name."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    return ""


class Scraper:
    """Asks one server at `url`, for ever."""

    def __init__(
        self,
        server: Server,
        url: str,
        settings: ScrapeSettings,
        node: Node,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._server = server
        self._url = url
        self._settings = settings
        self._node = node
        self._clock = clock
        self._wall = wall
        self._seen = Seen()
        self._answers = False
        self._came = asyncio.Event()
        self._said = ""
        self._seldom = Seldom()

    def probed(self, probe: Probe) -> None:
        """Take in what `/health` said: one that has just come is asked at once."""
        if probe.fault is None:
            if not self._answers:
                self._came.set()
            self._answers = True
        elif probe.certain:
            self._answers = False
            if probe.gone:
                self._seen = absent(self._seen, self._clock())

    async def run(self, client: aiohttp.ClientSession) -> None:
        """Ask every `interval_s`, where there is need; a slow answer makes the next one late."""
        due_s = self._clock()
        while True:
            due_s = max(due_s + self._settings.interval_s, self._clock())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(due_s - self._clock()):
                    await self._came.wait()
            self._came.clear()
            await self.ask(client)

    async def ask(self, client: aiohttp.ClientSession) -> None:
        """Ask once, if there is need."""
        name, at_s, wall_s = self._server.name, self._clock(), self._wall()
        if not self._answers or self._node.plugin_speaks(name, at_s):
            self._seen = rested(self._seen)
            return
        done = self._node.scrapes[name]
        done.made += 1
        try:
            page = await fetch(client, self._url, self._settings.timeout_s)
        except ScrapeError as error:
            done.failed += 1
            if error.gone:
                self._seen = absent(self._seen, self._clock())
            self._node.unread(name, str(error), self._clock())
            self._say(str(error))
        else:
            self._seen, events = look(self._server, self._seen, page, at_s, wall_s)
            for event in events:
                self._node.told(event, self._clock())
            self._say("")
        done.last_s = self._clock() - at_s

    def _say(self, fault: str) -> None:
        if fault == self._said or not self._seldom.allows(self._clock()):
            return
        if fault:
            fix = "set ULLAGE_SOCKET of that vLLM to the sidecar's, or let its /metrics be read"
            if self._node.has_plugin(self._server.name):
                fix = "its plugin is silent as well: see the log of that vLLM"
            name, kept_back = self._server.name, self._seldom.kept_back
            _log.warning(line("scrape_fails", server=name, why=fault, fix=fix, kept_back=kept_back))
        else:
            _log.info(line("scrape_works", server=self._server.name))
        self._said = fault
