"""One process that serves clients: the data plane, and all that keeps its picture up to date.

Rules
* Clients are let in once every source has been looked at and every sidecar asked: a router that has
  just started refuses nobody for not yet knowing whom to send them to.
* A reload is checked whole before anything of it is applied, and applied in one go.
"""

import asyncio
import logging
import random
import resource
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import web

from ullage_router import tls
from ullage_router.access import AccessLog
from ullage_router.admin import admin_app
from ullage_router.config import Config, rules
from ullage_router.core.fleet import fleet_of, relist
from ullage_router.feed import feeds
from ullage_router.given import address_of, opened
from ullage_router.http.access import Access
from ullage_router.http.access import read as read_access
from ullage_router.http.proxy import Proxy
from ullage_router.http.story import Witness
from ullage_router.lateness import watch_lateness
from ullage_router.local_only import guard
from ullage_router.memory import give_back_memory
from ullage_router.metrics import registry
from ullage_router.models import Models
from ullage_router.probe import Prober
from ullage_router.reload import changes, renewed
from ullage_router.router import Router
from ullage_router.tracing import Tracing, exporting
from ullage_shared.address import Address, parse_listen
from ullage_shared.background import in_background
from ullage_shared.config import ConfigError
from ullage_shared.discovery.listing import Listing
from ullage_shared.discovery.source import parse_source
from ullage_shared.log import Line, line

_log: Final = logging.getLogger("ullage.router")
_ADMIN_CLOSE_S: Final = 1.0


@asynccontextmanager
async def service(config: Config, put: Callable[[Line], None]) -> AsyncIterator["Service"]:
    """The process, wired up and asking its sidecars; not yet open. Raises `ConfigError`.

    `put` takes the lines of the access log; it must not wait.
    """
    live = tls.LiveTls(tls.read(config.tls))
    trace = config.trace
    tracing = exporting(trace.otlp, trace.share, config.tls.ca) if trace.otlp else None
    allow_many_descriptors()
    connector = aiohttp.TCPConnector(ssl=live.peers, limit=0)  # One that hangs delays nobody.
    async with aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:
        running = Service(config, live, session, AccessLog(put), tracing)
        try:
            yield running
        finally:
            await running.close()


class Service:
    """Serves until told to stop, and takes new configurations meanwhile."""

    def __init__(
        self,
        config: Config,
        live: tls.LiveTls,
        session: aiohttp.ClientSession,
        access_log: AccessLog,
        tracing: Tracing | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._config = config
        self._tls = live
        self._access_log = access_log
        self._access = _access(config)
        self._tracing = tracing
        self._replicas = Listing("replicas", self._replicas_changed)
        self._replicas.apply(config.replicas)
        self._sidecars = Listing("sidecars", self._sidecars_changed)
        self._sidecars.apply(config.sidecars)
        self._router = Router(fleet_of(self._replicas.urls), rules(config), random.Random())
        self._feeds = feeds(self._router, session, lambda: self._access.sidecar_token)
        models = Models(self._router, session, lambda: self._access.replica_headers)
        self._proxy = Proxy(
            self._router, config.limits, self._loop, random.Random(), models.body, live.peers
        )
        self._configure(config)
        self._sidecars_changed()
        prober = Prober(session, self._router.probes_due, self._router.probed)
        late = watch_lateness(self._proxy.late_s)
        self._loops = [
            in_background(loop) for loop in (models.run(), prober.run(), give_back_memory(), late)
        ]
        listings = (self._replicas, self._sidecars)
        shown = registry(self._router, self._proxy, self._feeds, listings)
        self._pages = admin_app(self._proxy, self._feeds, shown, lambda: self.stopping, listings)
        self._admin = web.AppRunner(
            self._pages, access_log=None, shutdown_timeout=_ADMIN_CLOSE_S, auto_decompress=False
        )
        self._stop = asyncio.Event()

    async def open(
        self, listen: Address | Sequence[int], admin: Address | Path, *, share_port: bool = False
    ) -> tuple[Address, Address | Path]:
        """Let operators in at `admin`, then clients at `listen`. Returns both, with their ports.

        `listen` may be descriptors that were given (see `given`), `admin` a unix socket.
        `share_port`: other processes listen there too. Raises `OSError`.
        """
        await asyncio.gather(self._replicas.first_looks(), self._sidecars.first_looks())
        await self._feeds.first_looks()
        guard(self._pages, admin)
        await self._admin.setup()
        if isinstance(admin, Path):
            await web.UnixSite(self._admin, admin).start()
        else:
            await web.TCPSite(self._admin, admin.host, admin.port).start()
            admin = Address(admin.host, self._admin.addresses[0][1])
        tls = self._tls.listening
        if isinstance(listen, Address):
            listen = await self._proxy.listen(listen, tls=tls, share_port=share_port)
        else:
            await self._proxy.listen_on(opened(listen), tls=tls)
            listen = address_of(listen)
        at = admin if isinstance(admin, Address) else parse_listen(self._config.admin)
        self._proxy.pool.own = (listen, at)
        return listen, admin

    @property
    def config(self) -> Config:
        """The one in force."""
        return self._config

    @property
    def stopping(self) -> bool:
        """Has it been told to stop?"""
        return self._stop.is_set()

    def stop(self) -> None:
        """Let what runs finish, within `limits.stop_grace_s`. Told again: end it now."""
        if self.stopping:
            self._proxy.cut_now()
        self._stop.set()

    async def stopped(self) -> None:
        """Wait until it was told to stop, and then until all clients have been served."""
        await self._stop.wait()
        _log.info(line("stopping", requests=self._requests))
        await self._proxy.stop(self._config.limits.stop_grace_s)

    def reload(self, read: Callable[[], Config]) -> str:
        """Take over what `read` gives, or nothing of it; the log says which.

        Returns why nothing was taken over; empty: it was.
        """
        try:
            changed = self._take_over(read())
        except (ConfigError, OSError) as error:  # A file may go while it is read.
            _log.error(line("reload_refused", why=error))
            return str(error)
        _log.info(line("reloaded", changed=",".join(changed) or "nothing"))
        return ""

    async def close(self) -> None:
        """End all that runs beside the requests."""
        for listing in (self._replicas, self._sidecars):
            await listing.stop()
        await self._feeds.stop()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._proxy.close()
        await self._admin.cleanup()
        if self._tracing is not None:
            self._tracing.close()

    def _configure(self, config: Config) -> None:
        self._proxy.configure(config)
        self._proxy.admit(self._access)
        witnesses: list[Witness] = []
        if self._tracing is not None:  # First, since it names the trace.
            witnesses.append(self._tracing)
        if config.access_log:
            witnesses.append(self._access_log)
        self._proxy.tell(witnesses)

    @property
    def _requests(self) -> int:
        return sum(self._router.in_flight.by_replica.values())

    def _take_over(self, new: Config) -> Iterable[str]:
        if self.stopping:
            raise ConfigError("the router is stopping")
        changed = changes(self._config, new)
        material = tls.read(new.tls, self._tls.material)
        access = _access(new)
        if access != self._access and "access" not in changed:
            changed += ("access",)
        changed = tuple(dict.fromkeys(changed + renewed(self._tls.material, material)))
        for source in (*new.replicas, *new.sidecars):
            parse_source(source)
        # Nothing from here on can fail.
        self._config = new
        self._tls.material = material
        self._access = access
        self._router.rules = rules(new)
        self._configure(new)
        self._replicas.apply(new.replicas)
        self._sidecars.apply(new.sidecars)
        self._replicas_changed()
        self._sidecars_changed()
        return changed

    def _replicas_changed(self) -> None:
        self._router.fleet = relist(self._router.fleet, self._replicas.urls)

    def _sidecars_changed(self) -> None:
        self._feeds.apply(self._sidecars.urls, self._config.poll_interval_s)


def _access(config: Config) -> Access:
    files = config.access
    return read_access(files.keys, files.replica_key, files.sidecar_token)


def allow_many_descriptors() -> None:
    """Every request holds two connections: take as many descriptors as the system allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
