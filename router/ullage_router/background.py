"""Loops that run beside the requests, for as long as the router does."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from ullage_shared.log import line

_log: Final = logging.getLogger("ullage.router")


def in_background(loop: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start it; whoever cancels it ends it. Should it end by itself, the log says why."""
    task = asyncio.get_running_loop().create_task(loop)
    task.add_done_callback(_say_if_broken)
    return task


def _say_if_broken(task: asyncio.Task[None]) -> None:
    """A loop in the background has ended, which only a fault of ours does.

    Its sidecar's snapshots age and no longer vouch; requests go on by the router's own counts.
    """
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error(line("background_loop_broken", why=repr(error)), exc_info=error)
