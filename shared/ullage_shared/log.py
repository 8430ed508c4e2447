"""Log lines for journald: one line each, `event key=value …`, to standard error."""

import json
import logging
import sys
from typing import Final

SELDOM_S: Final = 10.0


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
