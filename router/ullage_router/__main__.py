"""`ullage-router`: the process."""

import argparse
import asyncio
import logging
import random
import resource
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import aiohttp
import uvloop
from aiohttp import web
from prometheus_client import CollectorRegistry

from ullage_router.admin import admin_app
from ullage_router.config import Config
from ullage_router.core.fleet import fleet_of
from ullage_router.feed import SidecarFeed
from ullage_router.http.proxy import Proxy
from ullage_router.metrics import RouterCollector
from ullage_router.models import Models
from ullage_router.router import Router
from ullage_shared import log
from ullage_shared.address import Address, AddressError, parse_base_url, parse_listen
from ullage_shared.config import ConfigError, keys, load
from ullage_shared.log import line

_log: Final = logging.getLogger("ullage.router")
_ADMIN_CLOSE_S: Final = 1.0
VERSION: Final = version("ullage")
_LEVELS: Final = ("debug", "info", "warning", "error")


def parser() -> argparse.ArgumentParser:
    """The command line. A flag beats the same key in the file."""
    flags = argparse.ArgumentParser(
        prog="ullage-router",
        description="Sends each request to the vLLM replica that has headroom for it.",
        epilog=_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument("--config", type=Path, metavar="FILE", help="TOML file")
    flags.add_argument("--listen", metavar="HOST:PORT", help="where clients connect")
    flags.add_argument("--admin", metavar="HOST:PORT", help="where operators look")
    flags.add_argument(
        "--replica",
        dest="replicas",
        action="append",
        metavar="URL",
        help="a vLLM server; may be repeated",
    )
    flags.add_argument(
        "--sidecar",
        dest="sidecars",
        action="append",
        metavar="URL",
        help="a sidecar; its replicas join the fleet; may be repeated",
    )
    flags.add_argument("--log-level", choices=_LEVELS, default="info")
    flags.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    return flags


def _epilog() -> str:
    rows = ["keys of the configuration file:"]
    for key in keys(Config):
        default = "" if key.default in (None, ()) else f" [{key.default}]"
        rows.append(f"  {key.name:<24} {key.description}{default}")
    rows.append("exit status: 0 stopped by a signal, 1 cannot listen, 2 wrong configuration")
    return "\n".join(rows).replace("%", "%%")


def configure(arguments: argparse.Namespace) -> Config:
    """File and flags, checked. Raises `ConfigError`."""
    names = ("listen", "admin", "replicas", "sidecars")
    given: dict[str, Any] = {
        name: value for name in names if (value := getattr(arguments, name)) is not None
    }
    config = load(Config, arguments.config, given)
    file = str(arguments.config or "command line")
    for key, read, values in (
        ("listen", parse_listen, (config.listen,)),
        ("admin", parse_listen, (config.admin,)),
        ("replicas", parse_base_url, config.replicas),
        ("sidecars", parse_base_url, config.sidecars),
    ):
        for value in values:
            try:
                read(value)
            except AddressError as error:
                origin = f"--{key.rstrip('s')}" if key in given else file
                raise ConfigError(f"{key} = {error} ({origin})") from error
    if not config.replicas and not config.sidecars:
        raise ConfigError(f"replicas, sidecars: at least one must be named ({file})")
    return config


async def serve(config: Config) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit status."""
    _allow_many_descriptors()
    loop = asyncio.get_running_loop()
    rng = random.Random()
    router = Router(fleet_of(config.replicas), config.choose, rng)
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        models = Models(router, session)
        proxy = Proxy(router, config.limits, loop, rng, models.body)
        urls = [parse_base_url(url)[0] for url in config.sidecars]
        feeds = {url: SidecarFeed(router, session, url) for url in urls}
        registry = CollectorRegistry()
        registry.register(RouterCollector(router, proxy, feeds))
        runner = web.AppRunner(
            admin_app(router, feeds, registry), access_log=None, shutdown_timeout=_ADMIN_CLOSE_S
        )
        await runner.setup()
        admin, listen = parse_listen(config.admin), parse_listen(config.listen)
        try:
            await web.TCPSite(runner, admin.host, admin.port).start()
            admin = Address(admin.host, runner.addresses[0][1])
            listen = await proxy.listen(listen)
        except OSError as error:
            _log.error(line("cannot_listen", listen=listen, admin=admin, why=error.strerror))
            await runner.cleanup()
            return 1
        stop = asyncio.Event()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, stop.set)
        loop.add_signal_handler(signal.SIGHUP, log.no_reload, _log)
        loops = [feed.run(config.poll_interval_s) for feed in feeds.values()]
        tasks = [loop.create_task(each) for each in (*loops, models.run())]
        for task in tasks:
            task.add_done_callback(_say_if_broken)
        _log.info(
            line(
                "listening",
                version=VERSION,
                http=listen,
                admin=admin,
                replicas=len(config.replicas),
                sidecars=len(feeds),
            )
        )
        await stop.wait()
        _log.info(line("stopping", requests=sum(router.in_flight.by_replica.values())))
        await proxy.stop(config.limits.stop_grace_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await runner.cleanup()
    _log.info(line("stopped"))
    return 0


def _allow_many_descriptors() -> None:
    """Every request holds two connections: take as many descriptors as the system allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _say_if_broken(task: asyncio.Task[None]) -> None:
    """A loop in the background has ended, which only a fault of ours does.

    Its sidecar's snapshots age and no longer vouch; requests go on by the router's own counts.
    """
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error(line("background_loop_broken", why=repr(error)), exc_info=error)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    arguments = parser().parse_args(argv)
    log.configure(arguments.log_level)
    try:
        config = configure(arguments)
    except ConfigError as error:
        sys.stderr.write(f"ullage-router: {error}\n")
        return 2
    return uvloop.run(serve(config))


if __name__ == "__main__":
    sys.exit(main())
