"""The supervisor: holds the port for its workers, hears signals, shows all of them as one router.

Rules
* It serves no client: it binds the port without listening, so that port 0 and a port in use are
  dealt with once. The kernel spreads connections over the workers that listen there.
* A configuration is checked here first: of one with a fault no worker hears.
"""

import asyncio
import logging
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from aiohttp import web

from ullage_router import tls
from ullage_router.claim import claim
from ullage_router.cli import VERSION
from ullage_router.config import Config
from ullage_router.http import access
from ullage_router.local_only import guard
from ullage_router.overview import Overview
from ullage_router.reload import changes
from ullage_router.tracing import require
from ullage_router.workers import Workers
from ullage_shared.address import Address, parse_listen
from ullage_shared.config import ConfigError
from ullage_shared.log import line
from ullage_shared.peer import why_unreachable

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
    listen, admin = parse_listen(config.listen), parse_listen(config.admin)
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="ullage-router-"))
        try:
            port = stack.enter_context(claim(listen))
            workers = Workers(config, words, port, Path(directory))
            admin = await stack.enter_async_context(_admin(Overview(workers), admin))
        except OSError as error:
            why = why_unreachable(error)
            _log.error(line("cannot_listen", listen=listen, admin=admin, why=why))
            return 1
        _obey_signals(workers, read)
        problem = await workers.start(number)
        if problem and not workers.stopping:
            _log.error(line("no_worker_starts", why=problem))
            workers.stop()
            await workers.ended()
            return 1
        if not problem:
            _log.info(
                line(
                    "listening",
                    version=VERSION,
                    http=Address(listen.host, port),
                    admin=admin,
                    tls="on" if config.tls.certificate else "off",
                    replicas=len(config.replicas),
                    sidecars=len(config.sidecars),
                    workers=number,
                )
            )
        in_order = await workers.ended()
    _log.info(line("stopped"))
    return 0 if in_order else 1


def _obey_signals(workers: Workers, read: Callable[[], Config]) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        _log.info(line("stopping", workers=len(workers.alive)))
        workers.stop()

    def reload() -> None:
        try:
            config = read()
            changes(workers.config, config)
            tls.read(config.tls)
            access.read(config.access.keys, config.access.replica_key)
        except (ConfigError, OSError) as error:  # A file may go while it is read.
            _log.error(line("reload_refused", why=error))
        else:
            workers.reload(config)  # Each says what has changed.

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, reload)


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
