"""One of several processes that share a port: a `Service` that obeys its supervisor.

Rules
* Orders come through a socket that is the worker's standard input, one a line: `config {…}`,
  `stop`, and `alive?`, which the worker answers if its event loop runs. Signals are for the
  supervisor: systemd and terminals send them to everybody at once.
* The configuration comes from the supervisor, not from the file: all workers have the same, also
  one that is started again after the file has changed.
* A supervisor that is gone is an order to stop.
"""

import asyncio
import logging
import os
import shutil
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Self

import msgspec

from ullage_router.config import Config
from ullage_router.serve import Service, service
from ullage_shared.address import Address, parse_listen
from ullage_shared.background import in_background
from ullage_shared.config import ConfigError
from ullage_shared.log import Line, line

_log: Final = logging.getLogger("ullage.router")
MOST_BYTES: Final = 16 * 1024 * 1024
"""Longest line on the socket."""
READY: Final = b"ready\n"


class Held(NamedTuple):
    """What the supervisor holds for all its workers."""

    port: int
    descriptors: tuple[int, ...] = ()
    """Sockets that were given, all at that port; none: each worker binds its own."""


class Place(NamedTuple):
    """Which worker, and where: `--worker 2:8080:3,4:/tmp/…/2-0.sock`."""

    number: int
    held: Held
    admin: Path
    """The unix socket on which the supervisor asks for the admin pages."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The place that `str` wrote."""
        number, port, descriptors, admin = text.split(":", 3)
        held = Held(int(port), tuple(map(int, filter(None, descriptors.split(",")))))
        return cls(int(number), held, Path(admin))

    def __str__(self) -> str:
        descriptors = ",".join(map(str, self.held.descriptors))
        return f"{self.number}:{self.held.port}:{descriptors}:{self.admin}"


def config_order(config: Config) -> bytes:
    """The line that has a worker take over a configuration."""
    return b"config " + msgspec.json.encode(config) + b"\n"


STOP_ORDER: Final = b"stop\n"
"""The line that has a worker stop, and again: stop at once."""
ALIVE_ORDER: Final = b"alive?\n"
"""The line that a worker answers at once."""
ALIVE: Final = b"alive\n"


async def work(place: Place, put: Callable[[Line], None]) -> int:
    """Serve until the supervisor says otherwise. Returns the exit status.

    `put` takes the lines of the access log.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    orders, said = await asyncio.open_connection(
        sock=socket.socket(fileno=os.dup(0)), limit=MOST_BYTES
    )
    first = await orders.readline()
    try:
        if first:  # Else the supervisor is gone already.
            await _serve(place, _config(first), orders, said, put)
    except (ConfigError, OSError) as error:
        said.write(" ".join(str(error).split()).encode() + b"\n")
        await said.drain()
        return 1
    finally:
        said.close()
    _log.info(line("stopped"))
    return 0


async def _serve(
    place: Place,
    config: Config,
    orders: asyncio.StreamReader,
    said: asyncio.StreamWriter,
    put: Callable[[Line], None],
) -> None:
    async with service(config, put) as running:
        listen = Address(parse_listen(config.listen).host, place.held.port)
        await running.open(place.held.descriptors or listen, place.admin, share_port=True)
        said.write(READY)
        obeying = in_background(_obey(orders, said, running, place.admin.parent))
        await running.stopped()
        obeying.cancel()


async def _obey(
    orders: asyncio.StreamReader, said: asyncio.StreamWriter, running: Service, directory: Path
) -> None:
    with suppress(ConnectionError):
        while order := await orders.readline():
            if order == ALIVE_ORDER:
                said.write(ALIVE)
            elif order == STOP_ORDER:
                running.stop()
            else:
                running.reload(partial(_config, order))
    _log.warning(line("supervisor_gone"))
    shutil.rmtree(directory, ignore_errors=True)  # Which the supervisor would have done.
    if not running.stopping:
        running.stop()


def _config(order: bytes) -> Config:
    return msgspec.json.decode(order.removeprefix(b"config "), type=Config)
