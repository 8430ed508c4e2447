"""`ullage-sidecar drain | undrain | status`: what an operator, or a unit's `ExecStop=`, asks of the
sidecar that runs on this node.

A drain has been waited for once no request runs or waits, for `SETTLED_S`: as long as routers may
take to hear of it, and to send what they had decided before. Of an engine that is down there is
nothing to wait for. Where vLLM's plugin is silent nobody can tell, so it is waited in vain.

Exit status: 0 done; 1 the time was up, or no sidecar answers; 2 wrong usage, or no such engine.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from ullage_shared.config import ConfigError, load
from ullage_shared.snapshot import State
from ullage_sidecar.config import Config
from ullage_sidecar.control import Row, path_of

COMMANDS: Final = ("drain", "undrain", "status")
SETTLED_S: Final = 2.0
"""Four polls of a router, by default."""
LOOK_EVERY_S: Final = 0.1
ANSWER_WITHIN_S: Final = 5.0
_GONE: Final = (State.DOWN, State.STARTING)


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
        engine = getattr(options, "engine", None)
        rows = await _ask(session, path, options.command, engine)
        if options.command == "drain" and options.wait:
            rows = await _wait(session, path, [row.engine for row in rows], options.wait)
    sys.stdout.write(_table(rows))
    return 0


async def _wait(
    session: aiohttp.ClientSession, path: Path, engines: Sequence[str], within_s: float
) -> list[Row]:
    """Wait until nothing runs on these engines any more. Raises `CommandError`."""
    end_s = time.monotonic() + within_s
    quiet_since_s: float | None = None
    while True:
        rows = [row for row in await _ask(session, path, "status") if row.engine in engines]
        busy = [row for row in rows if not _is_quiet(row)]
        now_s = time.monotonic()
        if busy:
            quiet_since_s = None
        elif all(row.state in _GONE for row in rows):
            return rows
        else:
            quiet_since_s = now_s if quiet_since_s is None else quiet_since_s
            if now_s - quiet_since_s >= SETTLED_S:
                return rows
        if now_s >= end_s:
            sys.stdout.write(_table(rows))
            raise CommandError(f"after {within_s:g} s: {_what_is_left(busy)}", 1)
        await asyncio.sleep(min(LOOK_EVERY_S, end_s - now_s))


def _is_quiet(row: Row) -> bool:
    return row.state in _GONE or (row.running == 0 and row.waiting == 0)


def _what_is_left(busy: Sequence[Row]) -> str:
    if not busy:
        return "nothing runs, but routers may not have heard of it yet"
    return "; ".join(
        f"{row.engine}: its plugin is silent, so nobody knows what runs"
        if row.running is None or row.waiting is None
        else f"{row.engine}: {row.running} requests run, {row.waiting} wait"
        for row in busy
    )


async def _ask(
    session: aiohttp.ClientSession, path: Path, command: str, engine: str | None = None
) -> list[Row]:
    method = "GET" if command == "status" else "POST"
    params = {} if engine is None else {"engine": engine}
    try:
        async with session.request(method, f"http://sidecar/{command}", params=params) as answer:
            body = await answer.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise CommandError(f"no sidecar answers at {path}: {_why(error)}", 1) from error
    if answer.status != 200:
        raise CommandError(body.decode(errors="replace"), 2)
    return msgspec.json.decode(body, type=list[Row])


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
    heads = ("ENGINE", "STATE", "SCORE", "RUNNING", "WAITING", "WHY")
    lines: list[tuple[str, ...]] = [heads]
    for row in rows:
        figures = (row.capacity_score, row.running, row.waiting)
        shown = ("-" if figure is None else f"{figure:g}" for figure in figures)
        lines.append((row.engine, row.state, *shown, row.reason))
    widths = [max(len(cells[i]) for cells in lines) for i in range(len(heads))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        + "\n"
        for cells in lines
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ullage-sidecar")
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
        command.add_argument("--config", type=Path, metavar="FILE", help="the sidecar's own")
        command.add_argument("--socket", metavar="PATH", help="the sidecar's own")
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.0 <= seconds <= 86_400.0:
        raise argparse.ArgumentTypeError(f"{text}: wanted 0 to 86400 seconds")
    return seconds
