"""One log line: an event and its fields, and how they are written.

text    [ts=2026-01-31T12:00:00.000Z] level=INFO [worker=2] state engine=a now=serving
json    {"ts": "…", "level": "INFO", "worker": 2, "event": "state", "engine": "a", …}

Rule: one event is one line, whatever its fields hold.
"""

import json
import logging
import re
import time
from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from typing import Final

_PRIORITIES: Final = {"ERROR": 3, "CRITICAL": 2, "WARNING": 4, "INFO": 6, "DEBUG": 7}
"""syslog's; see sd-daemon(3)."""


class Line(str):
    """An event and its fields; as text it is logfmt."""

    event: str
    fields: Mapping[str, object]


def line(event: str, **fields: object) -> Line:
    """An event and its fields; values with spaces or quotes are quoted. None: no such field."""
    known = {key: value for key, value in fields.items() if value is not None}
    said = Line(" ".join([event, *(f"{key}={_value(value)}" for key, value in known.items())]))
    said.event, said.fields = event, known
    return said


def line_of(record: logging.LogRecord) -> Line:
    """The line that somebody logs; of what is none, as libraries log it, the text. Whose arguments
    do not fit its text is told without them: to log raises at nobody."""
    if isinstance(record.msg, Line):
        return record.msg
    try:
        text = record.getMessage()
    except (TypeError, ValueError, LookupError):
        text = str(record.msg)
    return line("message", logger=record.name, text=text)


_PLAIN: Final = re.compile(r"[!#-<>-~]+").fullmatch
"""ASCII without space, quote and equals sign."""


def _value(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if _PLAIN(text):
        return text
    plain = text and text.isprintable() and not any(char in text for char in ' "=')
    return text if plain else json.dumps(text)


class Form(logging.Formatter):
    """How records become lines."""

    def __init__(self, *, worker: int | None = None, journald: bool = False) -> None:
        super().__init__()
        self._worker = {} if worker is None else {"worker": worker}
        self._journald = journald

    def format(self, record: logging.LogRecord) -> str:
        """One line, without its end."""
        said = line_of(record)
        if record.exc_info and record.exc_info[0] is not None:
            said = line(said.event, **said.fields, trace=self.formatException(record.exc_info))
        return self.of(record.levelno, said, record.created)

    def of(self, level: int, said: Line, at: float | None = None) -> str:
        """A line of this level. `at`: Unix seconds; None: now."""
        name = logging.getLevelName(level)
        when = {} if self._journald else {"ts": _utc(at)}
        begun = f"<{_PRIORITIES.get(name, 6)}>" if self._journald else ""
        return begun + self.written({**when, "level": name, **self._worker}, said)

    def written(self, begun: Mapping[str, object], said: Line) -> str:
        """Both together."""
        return f"{' '.join(f'{key}={_value(v)}' for key, v in begun.items())} {said}"


class _Json(Form):
    def written(self, begun: Mapping[str, object], said: Line) -> str:
        fields = {key: _plain(value) for key, value in said.fields.items()}
        return json.dumps({**begun, "event": said.event, **fields})


def form_of(form: str, *, worker: int | None = None, journald: bool = False) -> Form:
    """`text` or `json`."""
    kind = _Json if form == "json" else Form
    return kind(worker=worker, journald=journald)


def _plain(value: object) -> object:
    """What JSON has a form for; else its text."""
    plain = type(value) in (bool, int, str) or (type(value) is float and isfinite(value))
    return value if plain else str(value)


def _utc(at: float | None) -> str:
    at = time.time() if at is None else at
    second = int(at)
    return f"{_second(second)}.{int((at - second) * 1000.0):03d}Z"


@lru_cache(maxsize=4)
def _second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
