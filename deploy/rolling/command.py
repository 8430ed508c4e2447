"""Upgrades one host after the other while the cluster serves.

Nothing is done on a host before every router says that all others serve, and the next one's turn
comes when every router says that this one serves again, in full. What goes wrong ends it.

Exit status: 0 all hosts are done; 1 it stopped, at a host or before a later one; 2 wrong usage;
3 nothing was done, for others are not well; 130 Ctrl-C or SIGTERM. Standard error says why, which
hosts are done, and with which to begin again.
"""

import argparse
import http.client
import json
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from rolling.seen import Page, PageError, page_of
from rolling.upgrade import Refused, Stop, Upgrade, What

COMMANDS: Final[Mapping[What, tuple[str, ...]]] = {
    What.REPLICAS: (
        # The unit drains too, but stops vLLM even if that fails; this ends the upgrade.
        "/opt/ullage/bin/ullage-sidecar drain --wait 120",
        "systemctl stop vllm@a",
        "systemctl start vllm@a",
    ),
    What.SIDECARS: ("systemctl restart ullage-sidecar",),
    What.ROUTERS: (
        "systemctl start ullage-router@9409",
        "systemctl restart ullage-router",
        "systemctl stop ullage-router@9409",
    ),
}
"""What is done on a host, if nothing else is asked for: our units, started anew."""
_ANSWER_WITHIN_S: Final = 5.0
_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")


class Outside:
    """What is around this program: routers, hosts, the clock."""

    def __init__(self, runner: str) -> None:
        self._runner = shlex.split(runner)

    def look(self, url: str) -> Page:
        """Ask a router. Raises `OSError`, `PageError`."""
        try:
            with urllib.request.urlopen(f"{url}/status", timeout=_ANSWER_WITHIN_S) as answer:
                return page_of(json.load(answer))
        except (http.client.HTTPException, ValueError) as error:
            raise PageError(f"this is no page of a router: {error!r}") from error

    def run(self, host: str, command: str, within_s: float) -> str:
        """Run a command on a host. Returns what went wrong; empty: nothing."""
        words = [word.replace("{host}", host) for word in (*self._runner, command)]
        try:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, timeout=within_s, check=False)
        except subprocess.TimeoutExpired:
            return f"not done after {within_s:g} s"
        except OSError as error:
            return f"cannot run {words[0]}: {error.strerror}"
        return f"exit status {done.returncode}" if done.returncode else ""

    def now_s(self) -> float:
        """Monotonic."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def say(self, text: str) -> None:
        """Tell the operator."""
        print(text, flush=True)


def main(words: Sequence[str]) -> int:
    """Do it. Returns the exit status."""
    upgrade = _upgrade(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        upgrade.go()
    except Refused as why:
        return _stopped(upgrade, str(why), 1 if upgrade.done else 3)
    except Stop as why:
        return _stopped(upgrade, str(why), 1)
    except KeyboardInterrupt:
        return _stopped(upgrade, "interrupted; a command that ran may go on", 130)
    return 0


def _stopped(upgrade: Upgrade, why: str, status: int) -> int:
    print(f"rolling: {why}", file=sys.stderr)
    print(f"Done: {' '.join(upgrade.done) or 'none'}.", file=sys.stderr)
    if upgrade.at:
        print(f"Under way, look after it: {upgrade.at}.", file=sys.stderr)
    print(f"Not done; begin again with: {' '.join(upgrade.left)}", file=sys.stderr)
    return status


def _upgrade(words: Sequence[str]) -> Upgrade:
    options = _parser().parse_args(words)
    parser, what = _parser(), What(options.what)
    routers = dict(options.router)
    if len(routers) < len(options.router):
        parser.error("--router: two have one name; give each its own: NAME=URL")
    if len(set(options.hosts)) < len(options.hosts):
        parser.error("HOST: one is there twice")
    if what is What.ROUTERS and (others := set(options.hosts) - routers.keys()):
        parser.error(f"HOST: no --router is called {', '.join(sorted(others))} (NAME=URL)")
    commands = options.do or COMMANDS[what]
    return Upgrade(what, options.hosts, commands, routers, options.within, Outside(options.run))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rolling",
        allow_abbrev=False,
        description=__doc__,
        epilog=_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("what", choices=[str(what) for what in What])
    add(
        "hosts",
        nargs="+",
        type=_host,
        metavar="HOST",
        help="by its node's name in /replicas, or as in a replica's URL; a router's: by --router",
    )
    add(
        "--router",
        action="append",
        required=True,
        type=_router,
        metavar="[NAME=]URL",
        help="the admin port of a router; again for each of them. NAME: its host; as in the URL",
    )
    add(
        "--run",
        type=_runner,
        default="ssh {host}",
        metavar="WORDS",
        help="what runs a command on a host; the command comes behind, as one word [%(default)s]",
    )
    add(
        "--do",
        action="append",
        metavar="COMMAND",
        help="on the host ({host}: its name), instead of those below; again for the next, in order",
    )
    add(
        "--within",
        type=_seconds,
        default=900.0,
        metavar="S",
        help="for each command, and for a host to serve again, in seconds [%(default)g]",
    )
    return parser


def _epilog() -> str:
    lines = [f"  {what:<10}{command}" for what, each in COMMANDS.items() for command in each]
    return "\n".join(["what is done on each host without --do, in this order:", *lines])


def _host(text: str) -> str:
    if not _HOST.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: wanted a host's name")
    return text


def _router(text: str) -> tuple[str, str]:
    name, equals, url = text.rpartition("=")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
        raise argparse.ArgumentTypeError(f"{text!r}: wanted NAME=http://host:port")
    return _host(name) if equals else parts.hostname, url.rstrip("/")


def _runner(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    if not words:  # Else the command itself would be run here.
        raise argparse.ArgumentTypeError("wanted a command, as: ssh {host}")
    return text


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.0 < seconds <= 86_400.0:
        raise argparse.ArgumentTypeError(f"{text}: wanted seconds, above 0 and up to 86400")
    return seconds
