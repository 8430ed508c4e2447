"""What `check` of both commands has in common: flags, words, and asking a peer once.

Exit status: 0 in order; 1 somebody whom `--connect` asked does not answer; 2 wrong configuration.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, cast

import aiohttp
import msgspec

from ullage_shared.address import without_password
from ullage_shared.command_line import AddKeys, plain_parser
from ullage_shared.log import add_log_flags
from ullage_shared.peer import TooLargeError, read_limited, why_unreachable
from ullage_shared.plain import plain
from ullage_shared.printed import changed, printed, toml
from ullage_shared.secret import Secret

IN_ORDER: Final = 0
NO_ANSWER: Final = 1
WRONG: Final = 2
WITHIN_S: Final = 3.0
"""Seconds that a peer may take to answer."""

EPILOG: Final = """\
--print writes a whole file: every key, what it means and its default. A key that
has its default stands behind #. Without FILE and flags it is one to begin with.
exit status: 0 in order, 1 somebody whom --connect asked does not answer,
  2 wrong configuration: a line on standard error for each fault, those of one kind
  at a time (keys and values; then addresses, and what is at odds; then files)"""


def parser(prog: str, add_keys: AddKeys) -> argparse.ArgumentParser:
    """What is to be checked, and how."""
    says = "Says whether a configuration is in order, and what would be in force."
    command = plain_parser(prog, says, EPILOG)
    add = command.add_argument
    add("file", nargs="?", type=Path, metavar="FILE", help="TOML file")
    add("--config", type=Path, metavar="FILE", help="the same, as the command itself has it")
    add("--print", action="store_true", help="write the whole file, as it would be in force")
    add("--connect", action="store_true", help="ask everybody named there once [no network]")
    add_keys(command)
    add_log_flags(command)
    return command


def file_of(command: argparse.ArgumentParser, options: argparse.Namespace) -> Path | None:
    """The file that is meant. Ends the process if there are two."""
    if options.file is not None and options.config is not None:
        command.error("FILE and --config: wanted one of them")
    return cast(Path | None, options.file or options.config)


def told(config: msgspec.Struct, name: str, rows: Mapping[str, str]) -> str:
    """That a configuration is in order, and what it comes to."""
    lines = [f"{name} is in order."]
    lines += [f"  {what:<10} {value}" for what, value in rows.items()]
    others = [row for row in changed(config) if row[0].partition(".")[0] not in _SAID]
    if others:
        lines.append("Not as by default:")
    for key, value, default in others:
        was = "" if default is msgspec.UNSET else f"   (default: {toml(default)})"
        lines.append(f"  {key} = {toml(value)}{was}")
    return "\n".join(lines) + "\n"


_SAID: Final = ("listen", "admin", "replicas", "sidecars", "workers", "engine", "socket")
"""What the rows say already."""


def say(
    config: msgspec.Struct, options: argparse.Namespace, name: str, rows: Mapping[str, str]
) -> None:
    """Print the file, or what it comes to."""
    sys.stdout.write(printed(config) if options.print else told(config, name, rows))


def faults(command: str, lines: Iterable[str]) -> int:
    """Say what is wrong; the exit status."""
    sys.stderr.writelines(f"{command}: {line}\n" for line in lines)
    return WRONG


class Asked(NamedTuple):
    """What came of asking one peer."""

    who: str
    """`sidecar http://gpu-01:9400`."""
    well: bool
    said: str


def say_asked(asked: Iterable[Asked], *, as_comment: bool) -> int:
    """Say who answered; the exit status. `as_comment`: what is printed is TOML."""
    rows = [row._replace(who=_shown(row.who), said=_shown(row.said)) for row in asked]
    begun = "# " if as_comment else ""
    width = max((len(row.who) for row in rows), default=0)
    for row in rows:
        mark = "answers" if row.well else "FAILS"
        print(f"{begun}{row.who:<{width}}  {mark}: {row.said}")
    return IN_ORDER if all(row.well for row in rows) else NO_ANSWER


def _shown(text: str) -> str:
    return plain(without_password(text))


class PeerError(Exception):
    """It did not answer; the message says why."""


async def ask(
    session: aiohttp.ClientSession, url: str, token: Secret | None = None
) -> tuple[int, bytes]:
    """Get `url` once, with this token: status and body. Raises `PeerError`."""
    timeout = aiohttp.ClientTimeout(total=WITHIN_S)
    try:
        async with session.get(
            url,
            headers=token.headers if token else None,
            allow_redirects=False,
            timeout=timeout,
        ) as answer:
            return answer.status, await read_limited(answer.content)
    except TimeoutError as error:
        raise PeerError(f"nothing within {WITHIN_S:g} s") from error
    except aiohttp.ClientConnectorCertificateError as error:
        raise PeerError(why_unreachable(cast(OSError, error.certificate_error))) from error
    except aiohttp.ClientConnectorError as error:
        raise PeerError(why_unreachable(error.os_error)) from error
    except TooLargeError as error:
        raise PeerError(str(error)) from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise PeerError("what answers there speaks no HTTP") from error
