"""Log lines for journald: one line each, `event key=value …`, to standard error."""

import json
import logging
import sys
import time
from typing import Final

SELDOM_S: Final = 10.0
MOST_CHARACTERS: Final = 160
"""Of what a peer has sent, in a line about it."""


def line(event: str, **fields: object) -> str:
    """Write an event and its fields in logfmt; values with spaces or quotes are quoted."""
    return " ".join([event, *(f"{key}={_value(value)}" for key, value in fields.items())])


def _value(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    plain = text and text.isprintable() and not any(char in text for char in ' "=')
    return text if plain else json.dumps(text)


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\n", "\\n")


def configure(level: str, worker: int | None = None) -> None:
    """Send everything from `level` on to standard error; journald adds the time.

    `worker`: its number, which every line then carries.
    """
    handler = logging.StreamHandler(sys.stderr)
    who = "" if worker is None else f"worker={worker} "
    handler.setFormatter(_OneLine(f"level=%(levelname)s {who}%(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    server = logging.getLogger("aiohttp.server")
    server.filters = [NotHttp()]


def no_reload(log: logging.Logger) -> None:
    """Answer SIGHUP, which would end the process: whoever sends it wants no end."""
    log.warning(line("sighup_ignored", why="the configuration is read at the start only"))


class Seldom:
    """Lets one line through every `SELDOM_S`, so that a flood of faults is no flood of lines."""

    def __init__(self) -> None:
        self._next_s: float | None = None

    def allows(self, now_s: float) -> bool:
        """Is it time for a line?"""
        if self._next_s is not None and now_s < self._next_s:
            return False
        self._next_s = now_s + SELDOM_S
        return True


class NotHttp(logging.Filter):
    """Makes of aiohttp's traceback for each request that is no HTTP one line, seldom."""

    def __init__(self) -> None:
        super().__init__()
        self._seldom = Seldom()

    def filter(self, record: logging.LogRecord) -> bool:
        """Let a record through, perhaps changed."""
        error = record.exc_info[1] if record.exc_info else None
        if type(error).__module__ != "aiohttp.http_exceptions":
            return True
        why = " ".join(str(error).split())[:MOST_CHARACTERS]
        record.msg, record.args = line("not_http", why=why), ()
        record.exc_info = record.exc_text = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        return self._seldom.allows(time.monotonic())
