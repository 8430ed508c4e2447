"""`ullage-sidecar drain | undrain | status`: what an operator, or a unit's `ExecStop=`, asks of the
sidecar that runs on this node.

A drain has been waited for once no request runs or waits, for `SETTLED_S`: as long as routers may
take to hear of it, and to send what they had decided before. Where nobody listens any more there is
nothing to wait for. Where vLLM's plugin is silent nobody can tell, so it is waited in vain. A
sidecar that is started anew meanwhile is waited for.

Exit status: 0 done; 1 the time was up, the drain was ended, or no sidecar answers; 2 wrong usage,
or no such engine.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Final, NoReturn

import aiohttp
import msgspec

from ullage_shared.config import ConfigError, load
from ullage_sidecar.config import Config
from ullage_sidecar.control import Row, Standing, path_of

COMMANDS: Final = ("drain", "undrain", "status")
SETTLED_S: Final = 2.0
"""Four polls of a router, by default."""
LOOK_EVERY_S: Final = 0.1
ANSWER_WITHIN_S: Final = 5.0


_EPILOG: Final = (
    "exit status: 0 done; 1 the time was up, the drain was ended, or no sidecar answers; 2 wrong "
    "usage, or no such engine; 130 Ctrl-C"
)


class CommandError(Exception):
    """It cannot be done; the message says why, the status what the process exits with."""

    def __init__(self, why: str, status: int) -> None:
        super().__init__(why)
        self.status = status


def main(argv: Sequence[str]) -> int:
    """Carry out one command."""
    options = _parser().parse_args(argv)
    try:
        return asyncio.run(_run(options))
    except CommandError as error:
        sys.stderr.write(f"ullage-sidecar {options.command}: {error}\n")
        return error.status
    except KeyboardInterrupt:
        return 130


async def _run(options: argparse.Namespace) -> int:
    path = _socket(options)
    connector = aiohttp.UnixConnector(str(path))
    timeout = aiohttp.ClientTimeout(total=ANSWER_WITHIN_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        sidecar = _Sidecar(session, path, getattr(options, "engine", None))
        standing = await sidecar.ask(options.command)
        if standing.not_kept:
            why = f"a restart of the sidecar will forget it: {standing.not_kept}"
            sys.stderr.write(f"ullage-sidecar {options.command}: {why}\n")
        rows = standing.rows
        if options.command == "drain" and options.wait:
            rows = await _wait(sidecar, options.wait)
    sys.stdout.write(_table(rows))
    return 0


async def _wait(sidecar: "_Sidecar", within_s: float) -> list[Row]:
    """Wait until nothing runs there any more. Raises `CommandError`."""
    end_s = time.monotonic() + within_s
    quiet_since_s = inf
    rows: list[Row] = []
    while True:
        problem = ""
        try:
            rows = (await sidecar.ask("status")).rows
        except CommandError as error:
            problem = str(error)
        ended = [row.engine for row in rows if not row.drained]
        if ended:
            raise CommandError(f"{', '.join(ended)}: undrained meanwhile, or started anew", 1)
        now_s = time.monotonic()
        if problem or not rows or not all(map(_is_quiet, rows)):
            quiet_since_s = inf
        elif all(row.gone for row in rows) or now_s - quiet_since_s >= SETTLED_S:
            return rows
        else:
            quiet_since_s = min(quiet_since_s, now_s)
        if now_s >= end_s:
            sys.stdout.write(_table(rows))
            raise CommandError(f"after {within_s:g} s: {problem or _what_is_left(rows)}", 1)
        await asyncio.sleep(min(LOOK_EVERY_S, end_s - now_s))


def _is_quiet(row: Row) -> bool:
    if row.gone:
        return not row.running and not row.waiting
    return row.running == 0 and row.waiting == 0


def _what_is_left(rows: Sequence[Row]) -> str:
    busy = [row for row in rows if not _is_quiet(row)]
    if not busy:
        return "nothing runs, but routers may not have heard of it yet"
    return "; ".join(
        f"{row.engine}: its plugin is silent, so nobody knows what runs"
        if row.running is None or row.waiting is None
        else f"{row.engine}: {row.running} requests run, {row.waiting} wait{_besides(row)}"
        for row in busy
    )


def _besides(row: Row) -> str:
    """What is said of a drained engine but that it is drained."""
    also = row.reason.partition("; ")[2]
    return f"; it {also}" if also.startswith("has work") else ""


class _Sidecar:
    """The one that runs, asked of one server or of all."""

    def __init__(self, session: aiohttp.ClientSession, path: Path, engine: str | None) -> None:
        self._session = session
        self._path = path
        self._params = {} if engine is None else {"engine": engine}

    async def ask(self, command: str) -> Standing:
        """Send a command. Raises `CommandError`."""
        method = "GET" if command == "status" else "POST"
        url = f"http://sidecar/{command}"
        try:
            async with self._session.request(method, url, params=self._params) as answer:
                body = await answer.read()
        except TimeoutError as error:
            why = f"the sidecar at {self._path} gives no answer within {ANSWER_WITHIN_S:g} s"
            raise CommandError(why, 1) from error
        except (aiohttp.ClientError, OSError) as error:
            where = "(--socket PATH or --config FILE, as the sidecar has it)"
            why = f"no sidecar answers at {self._path} {where}: {_why(error)}"
            raise CommandError(why, 1) from error
        if answer.status == 404:
            raise CommandError(body.decode(errors="replace"), 2)
        try:
            return msgspec.json.decode(body, type=Standing)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            why = f"what answers at {self._path} is no sidecar of this version"
            raise CommandError(f"{why}: status {answer.status}, {error}", 1) from error


def _why(error: Exception) -> str:
    cause = getattr(error, "os_error", error)
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__


def _socket(options: argparse.Namespace) -> Path:
    try:
        flags = {} if options.socket is None else {"socket": options.socket}
        return path_of(load(Config, options.config, flags).socket)
    except ConfigError as error:
        raise CommandError(str(error), 2) from error


def _table(rows: Sequence[Row]) -> str:
    """The rows, aligned; `-`: unknown."""
    heads = ("ENGINE", "STATE", "SCORE", "RUNNING", "WAITING", "SOURCE", "WHY")
    lines: list[tuple[str, ...]] = [heads]
    for row in rows:
        figures = (row.capacity_score, row.running, row.waiting)
        shown = ("-" if figure is None else f"{round(figure, 3):g}" for figure in figures)
        lines.append((row.engine, row.state, *shown, row.source or "-", row.reason))
    widths = [max(len(cells[i]) for cells in lines) for i in range(len(heads))]
    table = "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        + "\n"
        for cells in lines
    )
    return table + "".join(f"{row.engine}: {row.note}\n" for row in rows if row.note)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        hint = "; an engine whose name begins with - goes last, behind --"
        super().error(message + hint if "unrecognized arguments: -" in message else message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="ullage-sidecar")
    commands = parser.add_subparsers(dest="command", required=True)
    drain = commands.add_parser(
        "drain", help="take an engine out of service, until undrain or until it starts anew"
    )
    undrain = commands.add_parser("undrain", help="take it back into service")
    status = commands.add_parser("status", help="how the engines of this node stand")
    for command in (drain, undrain):
        command.add_argument(
            "engine", nargs="?", metavar="ENGINE", help="name of a server; default: all"
        )
    drain.add_argument(
        "--wait",
        type=_seconds,
        default=0.0,
        metavar="S",
        help="wait until nothing runs on it, this many seconds at most; default: do not wait",
    )
    for command in (drain, undrain, status):
        command.epilog = _EPILOG
        command.add_argument("--config", type=Path, metavar="FILE", help="the sidecar's own")
        command.add_argument("--socket", metavar="PATH", help="the sidecar's own")
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.0 <= seconds <= 86_400.0:
        raise argparse.ArgumentTypeError(f"{text}: wanted 0 to 86400 seconds")
    return seconds
