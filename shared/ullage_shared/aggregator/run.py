"""`ullage-aggregator`: reads its configuration and runs.

Exit status: 0 after SIGTERM or SIGINT, 1 if it cannot listen, 2 if the configuration is at fault,
130 after a Ctrl-C before it could listen to signals.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

import uvloop

from ullage_shared import log
from ullage_shared.aggregator.cli import flags, parser
from ullage_shared.aggregator.config import Config, read
from ullage_shared.aggregator.serve import aggregating, opened
from ullage_shared.background import in_background
from ullage_shared.config import ConfigError
from ullage_shared.log import line
from ullage_shared.notify import Notifier
from ullage_shared.peer import why_unreachable
from ullage_shared.version import VERSION

STOP_WITHIN_S: Final = 10.0
_log: Final = logging.getLogger("ullage.aggregator")


def main(words: Sequence[str]) -> int:
    """Run, as the command line wants it. Returns the exit status."""
    options = parser().parse_args(words)
    try:
        config = read(options.config, flags(options))
        log.configure(options.log_level, options.log_format)
        return uvloop.run(serve(options, config))
    except ConfigError as error:
        sys.stderr.writelines(f"ullage-aggregator: {fault}\n" for fault in error.faults)
        return 2


async def serve(options: argparse.Namespace, config: Config) -> int:
    """Be the whole aggregator, until SIGTERM or SIGINT. Returns the exit status."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    manager = Notifier.of(os.environ, os.getpid())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with aggregating(config) as running:
        loop.add_signal_handler(
            signal.SIGHUP, running.reload, lambda: read(options.config, flags(options))
        )
        try:
            async with opened(running, config) as http:
                _log.info(
                    line("listening", version=VERSION, http=http, sidecars=len(running.feeds))
                )
                living = in_background(manager.keep_alive())
                manager.ready(f"routers at {http}, {len(running.feeds)} sidecars")
                await stop.wait()
                manager.stopping(STOP_WITHIN_S)
                living.cancel()
        except OSError as error:
            why = why_unreachable(error)
            _log.error(line("cannot_listen", listen=config.listen, why=why))
            return 1
    _log.info(line("stopped"))
    return 0
