"""Loops that run beside all else, for as long as the process does."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from ullage_shared.log import line

_log: Final = logging.getLogger("ullage.background")


def in_background(loop: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start it; whoever cancels it ends it. Should it end by itself, the log says why."""
    task = asyncio.get_running_loop().create_task(loop)
    task.add_done_callback(_say_if_broken)
    return task


def _say_if_broken(task: asyncio.Task[None]) -> None:
    """A loop in the background has ended, which only a fault of ours does.

    What it kept up to date stays as it was: snapshots age, and no longer vouch.
    """
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error(line("background_loop_broken", why=repr(error)), exc_info=error)
