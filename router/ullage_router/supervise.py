"""The supervisor: holds the port for its workers, hears signals, shows all of them as one router.

Rules
* It serves no client: it binds the port without listening, so that port 0 and a port in use are
  dealt with once. The kernel spreads connections over the workers that listen there. Sockets that
  systemd gave are bound already; all workers accept from their one queue, whoever is first.
* A configuration is checked here first: of one with a fault no worker hears.
"""

import logging
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from aiohttp import web

from ullage_router import tls
from ullage_router.claim import claim
from ullage_router.config import Config
from ullage_router.given import address_of, given
from ullage_router.http import access
from ullage_router.local_only import guard
from ullage_router.overview import Overview
from ullage_router.reload import changes
from ullage_router.signals import obey_signals
from ullage_router.tracing import require
from ullage_router.worker import Held
from ullage_router.workers import Workers
from ullage_shared.address import Address, parse_listen
from ullage_shared.background import in_background
from ullage_shared.config import ConfigError
from ullage_shared.log import line
from ullage_shared.notify import Notifier
from ullage_shared.peer import why_unreachable
from ullage_shared.version import VERSION

_log: Final = logging.getLogger("ullage.router")
_ADMIN_CLOSE_S: Final = 1.0


async def supervise(
    config: Config, number: int, words: Sequence[str], read: Callable[[], Config]
) -> int:
    """Run so many workers until SIGTERM or SIGINT. Returns the exit status.

    `words`: the command line; `read`: file and command line again. Raises `ConfigError`.
    """
    tls.read(config.tls)
    access.read(config.access.keys, config.access.replica_key)
    require(config.trace.otlp)
    manager = Notifier.of(os.environ, os.getpid())
    descriptors = given(os.environ, os.getpid())
    listen = address_of(descriptors) if descriptors else parse_listen(config.listen)
    admin = parse_listen(config.admin)
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="ullage-router-"))
        stack.callback(in_background(manager.keep_alive()).cancel)
        try:
            port = listen.port if descriptors else stack.enter_context(claim(listen))
            workers = Workers(
                config, words, Held(port, descriptors), Path(directory), manager.watchdog_s
            )
            admin = await stack.enter_async_context(_admin(Overview(workers), admin))
        except OSError as error:
            why = why_unreachable(error)
            _log.error(line("cannot_listen", listen=listen, admin=admin, why=why))
            return 1
        obey_signals(
            manager, lambda: _stop(workers), lambda: _reload(workers, read), lambda: workers.config
        )
        problem = await workers.start(number)
        if problem and not workers.stopping:
            _log.error(line("no_worker_starts", why=problem))
            workers.stop()
            await workers.ended()
            return 1
        if not problem:
            http = Address(listen.host, port)
            _log.info(
                line(
                    "listening",
                    version=VERSION,
                    http=http,
                    admin=admin,
                    tls="on" if config.tls.certificate else "off",
                    replicas=len(config.replicas),
                    sidecars=len(config.sidecars),
                    workers=number,
                )
            )
            if not workers.stopping:
                manager.ready(f"clients at {http}, operators at {admin}, {number} workers")
        in_order = await workers.ended()
    _log.info(line("stopped"))
    return 0 if in_order else 1


def _stop(workers: Workers) -> None:
    _log.info(line("stopping", workers=len(workers.alive)))
    workers.stop()


def _reload(workers: Workers, read: Callable[[], Config]) -> str:
    """Have all take over the file. Returns why they shall not; empty: they shall."""
    try:
        config = read()
        changes(workers.config, config)
        tls.read(config.tls)
        files = config.access
        access.read(files.keys, files.replica_key, files.sidecar_token)
    except (ConfigError, OSError) as error:  # A file may go while it is read.
        _log.error(line("reload_refused", why=error))
        return str(error)
    workers.reload(config)  # Each says what has changed.
    return ""


@asynccontextmanager
async def _admin(overview: Overview, address: Address) -> AsyncIterator[Address]:
    """Let operators in. Raises `OSError`."""
    app = overview.app()
    guard(app, address)
    runner = web.AppRunner(
        app, access_log=None, shutdown_timeout=_ADMIN_CLOSE_S, auto_decompress=False
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, address.host, address.port).start()
        yield Address(address.host, runner.addresses[0][1])
    finally:
        await runner.cleanup()
