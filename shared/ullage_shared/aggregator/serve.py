"""The running aggregator: hears sidecars, serves routers, until it is told to stop.

GET /v1/snapshots    the document of all sidecars, as one sidecar serves its own; `?watch` as well
GET /healthz         200 as long as this process runs; whom of its sidecars it does not hear
GET /metrics         Prometheus

Rules
* Routers are let in once every source has been looked at and every sidecar asked: to be told of
  half a fleet is worse than to wait for a second.
* What is asked for by strangers is refused: see `admission`.
* No sidecar may say more than `MOST_BYTES`: the document of all must stay one that routers read.
"""

import asyncio
import logging
import resource
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry

from ullage_shared import snapshot
from ullage_shared.address import Address, parse_listen
from ullage_shared.admission import guard
from ullage_shared.aggregator import files
from ullage_shared.aggregator.config import Config, changes
from ullage_shared.aggregator.gather import normal
from ullage_shared.aggregator.metrics import AggregatorCollector, Served, registry
from ullage_shared.aggregator.table import RENDER_EVERY_S, Table
from ullage_shared.answers import JSON, Answer, metrics, response, snapshots
from ullage_shared.config import ConfigError
from ullage_shared.discovery.listing import Listing
from ullage_shared.feed import AT_ONCE, Feed
from ullage_shared.feeds import Feeds
from ullage_shared.log import line
from ullage_shared.tls import Listening, Peers, peers
from ullage_shared.version import VERSION
from ullage_shared.watch import Watchers

MOST_BYTES: Final = 4 * 1024 * 1024
SPACING_S: Final = 0.1
"""Sidecars push no more often than the document is rendered."""
CLOSE_WITHIN_S: Final = 1.0

_log: Final = logging.getLogger("ullage.aggregator")


class _Ear:
    """The table, as one source changes it."""

    def __init__(self, table: Table, source: str) -> None:
        self.now_s: Callable[[], float] = time.monotonic
        self._table = table
        self._source = source

    async def hear(self, document: snapshot.Document) -> tuple[tuple[str, ...], bool]:
        sound, faults = normal(document)
        self._table.hear(self._source, sound, self.now_s())
        return faults, True

    async def vouch(self) -> None:
        self._table.vouch(self._source, self.now_s())

    def lost(self) -> None:
        """What it said last stays, and ages."""


class Aggregator:
    """One process's state."""

    def __init__(
        self, config: Config, held: files.Files, peers: Peers, session: aiohttp.ClientSession
    ) -> None:
        self.table = Table(config.node)
        self.served = Served()
        self.listing = Listing("sidecars", self._changed)
        at_once = asyncio.Semaphore(AT_ONCE)

        def feed(url: str) -> Feed:
            ear = _Ear(self.table, url)
            return Feed(
                *(ear, session, url, SPACING_S, MOST_BYTES, at_once),
                token=lambda: self.files.sidecar_token,
            )

        self.feeds = Feeds(feed, self.table.forget)
        self.files = held
        """What the configuration's files held when they were last read."""
        self.listening = Listening(held.admission.tls) if held.admission.tls else None
        self._peers = peers
        self._config = config
        self.listing.apply(config.sidecars)
        self._changed()

    def _changed(self) -> None:
        self.feeds.apply(self.listing.urls, self._config.poll_interval_s)

    def reload(self, read: Callable[[], Config]) -> None:
        """Take over what `read` gives, or nothing of it; the log says which."""
        try:
            new = read()
            changed = changes(self._config, new)
            held = files.read(new)
            self.listing.apply(new.sidecars)
        except (ConfigError, OSError) as error:  # A file may go while it is read.
            _log.error(line("reload_refused", why=error))
            return
        self._config, self.files = new, held
        self._peers.newest = held.peers
        if self.listening is not None and held.admission.tls is not None:
            self.listening.newest = held.admission.tls
        self._changed()
        _log.info(line("reloaded", changed=",".join(changed) or "nothing"))

    async def first_looks(self) -> None:
        """Wait until every source and every sidecar has been asked once."""
        await self.listing.first_looks()
        await self.feeds.first_looks()

    async def close(self) -> None:
        """Ask nobody any more."""
        await self.listing.stop()
        await self.feeds.stop()


@asynccontextmanager
async def aggregating(config: Config) -> AsyncIterator[Aggregator]:
    """It hears its sidecars, and is not yet open. Raises `ConfigError`."""
    held = files.read(config)
    trust = peers(held.peers)
    _allow_many_descriptors()
    connector = aiohttp.TCPConnector(ssl=trust, limit=0)  # One that hangs delays nobody.
    async with aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:
        running = Aggregator(config, held, trust, session)
        try:
            await running.first_looks()
            yield running
        finally:
            await running.close()


@asynccontextmanager
async def opened(running: Aggregator, config: Config) -> AsyncIterator[Address]:
    """Let routers in. Raises `OSError`."""
    collector = AggregatorCollector(
        *(running.table, running.feeds, running.listing, running.served),
        *(VERSION, time.monotonic),
    )
    app = _application(running, registry(collector), config.report_interval_s)
    runner = web.AppRunner(
        app, access_log=None, shutdown_timeout=CLOSE_WITHIN_S, handler_cancellation=True
    )
    await runner.setup()
    try:
        listen = parse_listen(config.listen)
        tls = running.listening.context if running.listening else None
        await web.TCPSite(runner, listen.host, listen.port, ssl_context=tls).start()
        yield Address(listen.host, runner.addresses[0][1])
    finally:
        await runner.cleanup()


def _application(
    running: Aggregator, numbers: CollectorRegistry, report_interval_s: float
) -> web.Application:
    table, served = running.table, running.served
    watchers = Watchers(
        table,
        served.watched,
        time.monotonic,
        time.time,
        least_s=report_interval_s,
        render_every_s=RENDER_EVERY_S,
    )

    async def let_go(_: web.Application) -> None:
        watchers.close()

    async def get_snapshots(request: web.Request) -> web.StreamResponse:
        if snapshot.WATCH in request.query:
            return await watchers.answer(request)
        published = table.published(time.monotonic(), time.time())
        answer = snapshots(published, request.headers.get("If-None-Match"))
        if answer.status == 304:
            served.not_modified += 1
        else:
            served.full += 1
        return response(answer)

    async def get_healthz(_: web.Request) -> web.Response:
        return response(healthz(running.feeds, running.table.disputed))

    async def get_metrics(_: web.Request) -> web.Response:
        return response(metrics(numbers))

    app = web.Application()
    if running.files.admission.tokens:
        guard(app, lambda: running.files.admission.tokens)
    app.on_shutdown.append(let_go)
    app.router.add_get(snapshot.PATH, get_snapshots)
    app.router.add_get("/healthz", get_healthz)
    app.router.add_get("/metrics", get_metrics)
    return app


def healthz(feeds: Mapping[str, Feed], disputed: Sequence[str]) -> Answer:
    """That this process runs, how many sidecars it has, whom of them it does not hear, and who
    claims a replica of another."""
    silent = {url: feed.problem for url, feed in feeds.items() if feed.failing}
    content = {
        "version": VERSION,
        "sidecars": len(feeds),
        "silent": silent,
        "disputed": list(disputed),
    }
    return Answer(200, msgspec.json.encode(content), {"Content-Type": JSON})


def _allow_many_descriptors() -> None:
    """Every sidecar is a connection, and so is every router."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
