"""The running sidecar: sockets and timers wired to one node, until it is told to stop."""

import asyncio
import gc
import logging
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import web

from ullage_shared import log
from ullage_shared.address import parse_listen
from ullage_shared.admission import Admission, guard
from ullage_shared.admission import read as read_admission
from ullage_shared.notify import Notifier
from ullage_shared.version import VERSION
from ullage_sidecar import agent, endpoints, health, metrics
from ullage_sidecar.config import Config, EngineEntry
from ullage_sidecar.control import Control, Door, listening, path_of
from ullage_sidecar.core.health import Probe
from ullage_sidecar.drained import Kept
from ullage_sidecar.node import PULSE_S, Node
from ullage_sidecar.recorder import Recorder
from ullage_sidecar.sources import scrape
from ullage_sidecar.sources.plugin import ListenError, Readings, readings
from ullage_sidecar.sources.scraped import Server
from ullage_sidecar.sources.settings import When
from ullage_sidecar.warmer import Warmer

TICK_S: Final = 1.0
CLOSE_WITHIN_S: Final = 1.0
STOP_WITHIN_S: Final = 10.0

_log: Final = logging.getLogger("ullage.sidecar")


async def serve(config: Config) -> None:
    """Run until SIGTERM or SIGINT. Raises `ListenError`, `ConfigError`."""
    admission = read_admission(config.access, config.tls)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, log.no_reload, _log)
    manager = Notifier.of(os.environ, os.getpid())
    node = Node(config, time.monotonic())
    kept = Kept(Path(f"{config.socket}.drained"), scrape.machine_start())
    node.resume(kept.read(), time.monotonic())
    served = endpoints.Served()
    recorder = Recorder(served.recorded)

    def hear(datagrams: bytes) -> None:
        recorder.hear(datagrams)
        node.hear(datagrams, time.monotonic())

    ears = readings(Path(config.socket), hear, lambda: node.tell is not None)
    with ears as found:
        node.fetch = found.look
        async with health.session(config.health) as client, scrape.session(config.health) as pages:
            scrapers = _scrapers(node)
            await asyncio.gather(
                *(_first_probe(node, client, entry, scrapers) for entry in config.engine)
            )
            control = Control(node, kept, time.monotonic)
            controlled = listening(control, path_of(config.socket), CLOSE_WITHIN_S)
            checks = agent.Agent(node, served, time.monotonic, time.time)
            checked = agent.listening(checks, config.agent_listen)
            serving = _serving(node, served, recorder, admission)
            async with controlled as door, checked, serving, asyncio.TaskGroup() as group:
                warmer = Warmer(node, client, time.monotonic, VERSION)
                chores = [_pulse(node), _tick(node, kept, found, door), warmer.run()]
                chores.append(manager.keep_alive())
                chores += [_watch(node, client, entry, scrapers) for entry in config.engine]
                chores += [scraper.run(pages) for scraper in scrapers.values()]
                tasks = [group.create_task(chore) for chore in chores]
                _keep_for_good()
                manager.ready(f"snapshots at {config.listen}, plugins at {config.socket}")
                await stop.wait()
                manager.stopping(STOP_WITHIN_S)
                for task in tasks:
                    task.cancel()
    _log.info(log.line("stopped"))


def _keep_for_good() -> None:
    """What the start has made lives as long as this process. The collector need not go through it
    again and again: that takes longer than a change may take to be pushed."""
    gc.collect()
    gc.freeze()


Scrapers = Mapping[str, scrape.Scraper]
"""By server; none, if nothing is to be scraped."""


def _scrapers(node: Node) -> Scrapers:
    config = node.config
    if config.scrape.when is When.NEVER:
        return {}
    machine = scrape.machine_start()
    return {
        entry.name: scrape.Scraper(
            Server(entry.name, secrets.randbits(63), machine, entry.max_num_seqs or None),
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


async def _pulse(node: Node) -> None:
    """By this the node knows that it was stopped."""
    while True:
        node.pulse(time.monotonic())
        await asyncio.sleep(PULSE_S)


def _probed(node: Node, name: str, scrapers: Scrapers, probe: Probe) -> None:
    node.probed(name, probe, time.monotonic())
    if name in scrapers:
        scrapers[name].probed(probe)


async def _tick(node: Node, kept: Kept, found: Readings, door: Door) -> None:
    """Render at least every second: changes of state are logged though nobody asks. And see that
    plugins and operators find this sidecar."""
    while True:
        node.published(time.monotonic(), time.time())
        kept.keep(node.drains)  # One may have ended: its server has started anew.
        if found.mend():  # Else another sidecar may have taken our place.
            await door.mend()
        await asyncio.sleep(TICK_S)


@asynccontextmanager
async def _serving(
    node: Node, served: endpoints.Served, recorder: Recorder, admission: Admission
) -> AsyncIterator[None]:
    registry = metrics.registry(node, served, VERSION, time.monotonic)
    app = endpoints.application(
        node, registry, served, recorder, VERSION, time.monotonic, time.time
    )
    if admission.tokens:
        guard(app, lambda: admission.tokens)
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=CLOSE_WITHIN_S,
        handler_cancellation=True,  # Else one who watches is known to have gone at the next line.
    )
    await runner.setup()
    try:
        address = parse_listen(node.config.listen)
        try:
            site = web.TCPSite(runner, address.host, address.port, ssl_context=admission.tls)
            await site.start()
        except OSError as error:
            raise ListenError.at(address, error) from error
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
