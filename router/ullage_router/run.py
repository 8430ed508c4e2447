"""`ullage-router`: reads its configuration and serves, alone or as the supervisor of workers.

Exit status: 0 after SIGTERM or SIGINT, 1 if it cannot listen or no worker starts, 2 if the
configuration is at fault, 130 after a Ctrl-C before it could listen to signals.
"""

import argparse
import logging
import os
from collections.abc import Callable, Sequence
from typing import Final

import uvloop

from ullage_router.cli import configure, parser
from ullage_router.config import Config, worker_count
from ullage_router.given import address_of, given
from ullage_router.serve import service
from ullage_router.signals import obey_signals
from ullage_router.supervise import supervise
from ullage_router.worker import work
from ullage_shared import log
from ullage_shared.address import parse_listen
from ullage_shared.background import in_background
from ullage_shared.config import ConfigError
from ullage_shared.log import line
from ullage_shared.notify import Notifier
from ullage_shared.peer import why_unreachable
from ullage_shared.version import VERSION

_log: Final = logging.getLogger("ullage.router")


def main(words: Sequence[str]) -> int:
    """Serve, as the command line wants it. Returns the exit status."""
    arguments = parser().parse_args(words)
    if arguments.worker is not None:
        number = arguments.worker.number
        lines = log.configure(arguments.log_level, arguments.log_format, worker=number)
        return uvloop.run(work(arguments.worker, lines.put))
    try:
        config = configure(arguments)
        lines = log.configure(arguments.log_level, arguments.log_format)
        workers = worker_count(config)
        if workers > 1:
            return uvloop.run(supervise(config, workers, words, lambda: configure(arguments)))
        return uvloop.run(serve(arguments, config, lines.put))
    except ConfigError as error:
        log.complain("ullage-router", error.faults)
        return 2


async def serve(
    arguments: argparse.Namespace, config: Config, put: Callable[[log.Line], None]
) -> int:
    """Be the whole router, until SIGTERM or SIGINT. Returns the exit status."""
    manager = Notifier.of(os.environ, os.getpid())
    descriptors = given(os.environ, os.getpid())
    living = in_background(manager.keep_alive())
    async with service(config, put) as running:
        obey_signals(
            manager,
            running.stop,
            lambda: running.reload(lambda: configure(arguments)),
            lambda: running.config,
        )
        listen = address_of(descriptors) if descriptors else parse_listen(config.listen)
        admin = parse_listen(config.admin)
        try:
            http, pages = await running.open(descriptors or listen, admin)
        except OSError as error:
            why = why_unreachable(error)
            _log.error(line("cannot_listen", listen=listen, admin=admin, why=why))
            return 1
        _log.info(
            line(
                "listening",
                version=VERSION,
                http=http,
                admin=pages,
                tls="on" if config.tls.certificate else "off",
                replicas=len(config.replicas),
                sidecars=len(config.sidecars),
            )
        )
        manager.ready(f"clients at {http}, operators at {pages}")
        await running.stopped()
    living.cancel()
    _log.info(line("stopped"))
    return 0
