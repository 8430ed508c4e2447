"""What signals have the router do, and what systemd is told of it.

* TERM, INT: stop; again: stop at once.
* HUP: read the file again.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Final

from ullage_router.config import Config
from ullage_shared.notify import Notifier

MARGIN_S: Final = 10.0
"""How much longer than `limits.stop_grace_s` the whole may take to end."""


def obey_signals(
    manager: Notifier,
    stop: Callable[[], None],
    reload: Callable[[], str],
    config: Callable[[], Config],
) -> None:
    """From now on. `reload` returns why nothing was taken over, or nothing.

    `config`: the one in force.
    """

    def stop_and_tell() -> None:
        manager.stopping(config().limits.stop_grace_s + MARGIN_S)
        stop()

    def reload_and_tell() -> None:
        manager.reloading(time.monotonic())
        manager.reloaded(reload())

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_and_tell)
    loop.add_signal_handler(signal.SIGHUP, reload_and_tell)
