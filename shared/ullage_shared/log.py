"""Log lines: one event each, to standard error, as `event key=value …` or as JSON.

    level=WARNING replica_failing replica=gpu-01/a how=connect why="Connection refused"

Rules
* What happens once is one line. What a peer can have happen again and again is a few lines in
  `SELDOM_S`; the next one says in `kept_back` how many there would have been.
* Under journald a line begins with its priority (`<4>`), and has no time: journald has it. It keeps
  its level, so that it reads the same wherever it has been copied to.
* No line holds a body, a prompt, a key or a header; of a request its id and its path.
* Nobody waits for whoever reads standard error: see `log_writer`.
"""

import argparse
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import Final, cast

from ullage_shared.log_line import Form, Line, form_of, line, line_of
from ullage_shared.log_writer import Writer

__all__ = [
    "SELDOM_S",
    "Bounded",
    "Line",
    "Log",
    "NotHttp",
    "Seldom",
    "add_log_flags",
    "complain",
    "configure",
    "line",
    "no_reload",
    "under_journald",
]

SELDOM_S: Final = 10.0
OF_ONE: Final = 6
"""Lines of one event about one peer in `SELDOM_S`: it came and went three times."""
OF_ALL: Final = 300
"""Lines of one event in `SELDOM_S`: each of a fleet has come."""
STDERR: Final = 2
LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")


def add_log_flags(command: argparse.ArgumentParser) -> None:
    """How a command that runs for long logs."""
    command.add_argument("--log-level", choices=LEVELS, default="info", help="[info]")
    command.add_argument(
        "--log-format", choices=FORMATS, default="text", help="key=value, or JSON [text]"
    )


def configure(level: str, form: str = "text", worker: int | None = None) -> "Log":
    """Send everything from `level` on to standard error.

    `worker`: its number, which every line then carries.
    """
    log = Log(Writer(STDERR), form_of(form, worker=worker, journald=under_journald(STDERR)))
    handler = _Handler(log)
    handler.setFormatter(log.form)
    handler.addFilter(Bounded())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    server = logging.getLogger("aiohttp.server")
    server.filters = [NotHttp()]
    return log


def under_journald(fd: int) -> bool:
    """Does journald read it? `JOURNAL_STREAM` says which file it gave us; see systemd.exec(5)."""
    try:
        there = os.fstat(fd)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{there.st_dev}:{there.st_ino}"


def complain(command: str, faults: Iterable[str]) -> None:
    """Say why `command` does not begin; before there is a log, and for people first."""
    begun = "<3>" if under_journald(STDERR) else ""
    sys.stderr.writelines(f"{begun}{command}: {fault}\n" for fault in faults)


class Log:
    """Where lines go, and in which form."""

    def __init__(self, writer: Writer, form: Form) -> None:
        self.writer = writer
        self.form = form
        writer.dropped = self._dropped

    def put(self, said: Line) -> None:
        """A line that is counted nowhere and kept back by nobody, as one for each request is."""
        self.writer.put(self.form.of(logging.INFO, said))

    def _dropped(self, lines: int) -> str:
        said = line("log_lines_dropped", lines=lines, why="nobody takes them")
        return self.form.of(logging.WARNING, said)


class _Handler(logging.Handler):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self._writer = log.writer

    def emit(self, record: logging.LogRecord) -> None:
        self._writer.put(self.format(record))

    def flush(self) -> None:
        self._writer.flush()


def no_reload(log: logging.Logger) -> None:
    """Answer SIGHUP, which would end the process: whoever sends it wants no end."""
    log.warning(line("sighup_ignored", why="the configuration is read at the start only"))


class Seldom:
    """Lets one line through every `SELDOM_S`, so that a flood of faults is no flood of lines."""

    def __init__(self) -> None:
        self._next_s: float | None = None
        self._kept_back = 0
        self.kept_back: int | None = None
        """How many were not let through before the latest one that was; None: none."""

    def allows(self, now_s: float) -> bool:
        """Is it time for a line?"""
        if self._next_s is not None and now_s < self._next_s:
            self._kept_back += 1
            return False
        self._next_s = now_s + SELDOM_S
        self.kept_back, self._kept_back = self._kept_back or None, 0
        return True


class Bounded(logging.Filter):
    """Of one event about one peer a few lines in `SELDOM_S`, and of one event so many.

    About whom a line is says its first field. A line that is let through says how many of its kind
    were not, since the last one that was.
    """

    def __init__(self) -> None:
        super().__init__()
        self._until_s = 0.0
        self._lines: Counter[str] = Counter()
        """Of each event, and of each event about each peer, since the window began."""
        self._kept_back: Counter[str] = Counter()
        """By event."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let a record through, perhaps changed."""
        said = self.allowed(line_of(record), time.monotonic())
        if said is not None:
            record.msg, record.args = said, ()
        return said is not None

    def allowed(self, said: Line, now_s: float) -> Line | None:
        """What is to be said; None: nothing."""
        if now_s >= self._until_s:
            self._until_s = now_s + SELDOM_S
            self._lines.clear()
        event = said.event
        one = f"{event} {next(iter(said.fields.values()), '')}"
        if self._lines[event] >= OF_ALL or self._lines[one] >= OF_ONE:
            self._kept_back[event] += 1
            return None
        self._lines[event] += 1
        self._lines[one] += 1
        kept_back = self._kept_back.pop(event, 0)
        if not kept_back:
            return said
        kept_back += cast(int, said.fields.get("kept_back", 0))
        return line(event, **{**said.fields, "kept_back": kept_back})


class NotHttp(logging.Filter):
    """Makes of aiohttp's traceback for each request that is no HTTP one line, seldom.

    aiohttp's own words hold some of what came, which may have been a key: only its kind is told.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seldom = Seldom()

    def filter(self, record: logging.LogRecord) -> bool:
        """Let a record through, perhaps changed."""
        error = record.exc_info[1] if record.exc_info else None
        if type(error).__module__ != "aiohttp.http_exceptions":
            return True
        if not self._seldom.allows(time.monotonic()):
            return False
        why, kept_back = type(error).__name__, self._seldom.kept_back
        record.msg, record.args = line("not_http", why=why, kept_back=kept_back), ()
        record.exc_info = record.exc_text = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True
