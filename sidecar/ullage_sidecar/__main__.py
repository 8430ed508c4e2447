"""`ullage-sidecar`: reads its configuration, wires sockets to the node, runs until told to stop.

Exit status: 0 after SIGTERM or SIGINT, 1 if a place to listen at cannot be had, 2 if the
configuration is at fault; both in one line on standard error.
"""

import argparse
import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import aiohttp
import uvloop
from aiohttp import web

from ullage_shared import log
from ullage_shared.address import parse_listen
from ullage_shared.config import ConfigError, keys
from ullage_sidecar import command, endpoints, health, metrics
from ullage_sidecar.config import Config, EngineEntry, engine_flags, read
from ullage_sidecar.control import Control, listening, path_of
from ullage_sidecar.core.health import Probe
from ullage_sidecar.drained import Kept
from ullage_sidecar.node import Node
from ullage_sidecar.sources import scrape
from ullage_sidecar.sources.plugin import ListenError, readings
from ullage_sidecar.sources.scraped import Server
from ullage_sidecar.sources.settings import When

TICK_S: Final = 1.0
CLOSE_WITHIN_S: Final = 1.0
VERSION: Final = version("ullage")

_log = logging.getLogger("ullage.sidecar")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sidecar, or ask the one that runs."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments and arguments[0] in command.COMMANDS:
        return command.main(arguments)
    options = _parser().parse_args(arguments)
    log.configure(options.log_level)
    try:
        config = read(options.config, _flags(options))
        uvloop.run(_run(config))
    except ConfigError as error:
        sys.stderr.write(f"ullage-sidecar: {error}\n")
        return 2
    except ListenError as error:
        sys.stderr.write(f"ullage-sidecar: {error}\n")
        return 1
    return 0


async def _run(config: Config) -> None:
    """Serve until SIGTERM or SIGINT. Raises `ListenError`."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, log.no_reload, _log)
    node = Node(config, time.monotonic())
    kept = Kept(Path(f"{config.socket}.drained"))
    node.resume(kept.read(), time.monotonic())
    with readings(Path(config.socket), lambda datagram: node.hear(datagram, time.monotonic())):
        async with health.session(config.health) as client, scrape.session(config.health) as pages:
            scrapers = _scrapers(node)
            await asyncio.gather(
                *(_first_probe(node, client, entry, scrapers) for entry in config.engine)
            )
            control = Control(node, kept, time.monotonic)
            controlled = listening(control, path_of(config.socket), CLOSE_WITHIN_S)
            async with controlled, _serving(node), asyncio.TaskGroup() as group:
                watches = (_watch(node, client, entry, scrapers) for entry in config.engine)
                scrapes = (scraper.run(pages) for scraper in scrapers.values())
                chores = [_tick(node, kept), *watches, *scrapes]
                tasks = [group.create_task(chore) for chore in chores]
                await stop.wait()
                for task in tasks:
                    task.cancel()
    _log.info(log.line("stopped"))


Scrapers = Mapping[str, scrape.Scraper]
"""By server; none, if nothing is to be scraped."""


def _scrapers(node: Node) -> Scrapers:
    config = node.config
    if config.scrape.when is When.NEVER:
        return {}
    machine = scrape.machine_start()
    return {
        entry.name: scrape.Scraper(
            Server(entry.name, secrets.randbits(64), machine, entry.max_num_seqs or None),
            entry.url,
            config.scrape,
            node,
            time.monotonic,
            time.time,
        )
        for entry in config.engine
    }


async def _first_probe(
    node: Node, client: aiohttp.ClientSession, entry: EngineEntry, scrapers: Scrapers
) -> None:
    """Ask before anything is published: a restart must not show a living server as starting."""
    _probed(node, entry.name, scrapers, await health.probe(client, entry.url))


async def _watch(
    node: Node, client: aiohttp.ClientSession, entry: EngineEntry, scrapers: Scrapers
) -> None:
    await health.watch(
        client,
        entry.url,
        node.config.health.interval_s,
        lambda probe: _probed(node, entry.name, scrapers, probe),
        time.monotonic,
    )


def _probed(node: Node, name: str, scrapers: Scrapers, probe: Probe) -> None:
    node.probed(name, probe, time.monotonic())
    if name in scrapers:
        scrapers[name].probed(probe)


async def _tick(node: Node, kept: Kept) -> None:
    """Render at least every second: changes of state are logged though nobody asks."""
    while True:
        node.published(time.monotonic(), time.time())
        kept.keep(node.drains)  # One may have ended: its server has started anew.
        await asyncio.sleep(TICK_S)


@asynccontextmanager
async def _serving(node: Node) -> AsyncIterator[None]:
    served = endpoints.Served()
    registry = metrics.registry(node, served, VERSION, time.monotonic)
    app = endpoints.application(node, registry, served, VERSION, time.monotonic, time.time)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=CLOSE_WITHIN_S)
    await runner.setup()
    try:
        address = parse_listen(node.config.listen)
        try:
            await web.TCPSite(runner, address.host, address.port).start()
        except OSError as error:
            is_lookup = isinstance(error, socket.gaierror) or not error.errno
            why = error.strerror if is_lookup else os.strerror(error.errno or 0)
            raise ListenError(f"listen {address}: {why}") from error
        host, port = runner.addresses[0][:2]
        _log.info(
            log.line(
                "listening",
                version=VERSION,
                http=f"{host}:{port}",
                socket=node.config.socket,
                engines=",".join(entry.name for entry in node.config.engine),
            )
        )
        yield
    finally:
        await runner.cleanup()


def _flags(options: argparse.Namespace) -> dict[str, Any]:
    """The flags given, as top-level keys of the configuration."""
    given = {key: getattr(options, key) for key in ("node", "socket", "listen")}
    flags: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if options.engine:
        flags["engine"] = engine_flags(options.engine)
    return flags


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ullage-sidecar",
        description="Turns the scheduler stats of this node's vLLM servers into scored snapshots.",
        epilog=_epilog(),
        usage="%(prog)s [flags], or: %(prog)s drain | undrain | status [-h]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = partial(parser.add_argument, default=None)
    add("--config", type=Path, metavar="FILE", help="TOML file; flags win over it")
    add(
        "--engine",
        action="append",
        metavar="[NAME=]URL",
        help="a vLLM server; again for more; replaces the file's [[engine]] tables",
    )
    add("--socket", metavar="PATH", help="unix socket for the plugin's readings")
    add("--listen", metavar="HOST:PORT", help="where to serve snapshots and metrics")
    add("--node", metavar="NAME", help="this node's name")
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info"
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    return parser


def _epilog() -> str:
    rows = [
        "commands to the sidecar that runs on this node (each has its own --help):",
        "  drain [ENGINE] [--wait S]    take a server out of service, until it starts anew",
        "  undrain [ENGINE]             take it back",
        "  status                       how the engines stand",
        "",
        "keys of the configuration file:",
    ]
    for key in keys(Config):
        default = "" if key.default is None or key.default == () else f" [{key.default}]"
        rows.append(f"  {key.name:<28} {key.description}{default}")
    rows += [f"  engine[].{key.name:<19} {key.description}" for key in keys(EngineEntry)]
    rows.append("exit status: 0 stopped by a signal, 1 cannot listen, 2 wrong configuration")
    return "\n".join(rows).replace("%", "%%")


if __name__ == "__main__":
    sys.exit(main())
