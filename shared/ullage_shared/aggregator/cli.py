"""The command line of `ullage-aggregator`."""

import argparse
from typing import Any, Final

from ullage_shared.command_line import daemon_parser


def flags(options: argparse.Namespace) -> dict[str, Any]:
    """The flags given, as keys of the configuration."""
    given = {key: getattr(options, key) for key in ("listen", "sidecars", "node")}
    return {key: value for key, value in given.items() if value is not None}


def parser() -> argparse.ArgumentParser:
    """The command line without a subcommand."""
    return daemon_parser("ullage-aggregator", "check", _SAYS, _EPILOG, add_keys)


def add_keys(command: argparse.ArgumentParser) -> None:
    """The flags that are keys of the configuration."""
    add = command.add_argument
    add("--listen", metavar="HOST:PORT", help="where to serve snapshots and metrics")
    add(
        "--sidecar",
        dest="sidecars",
        action="append",
        metavar="URL",
        help="a sidecar, or file:, dns+http: or srv+http: of such; may be repeated",
    )
    add("--node", metavar="NAME", help="this aggregator's name")


_SAYS: Final = "Hears many sidecars, and tells routers of all their replicas as one would."
_EPILOG: Final = """\
examples:
  ullage-aggregator --sidecar http://gpu-01:9400 --sidecar http://gpu-02:9400
  ullage-aggregator --sidecar file:/etc/ullage/sidecars.yml
  ullage-router --sidecar http://agg-01:9402 --sidecar http://agg-02:9402
                               two of them, over the same sidecars, for safety

commands (each has its own --help):
  check [FILE]                 is this configuration in order, and what would be in force?

where to look next:
  ullage-aggregator check --print     every key of the configuration, its default and meaning
  http://127.0.0.1:9402/v1/snapshots  what routers see
  http://127.0.0.1:9402/healthz       which sidecars are not heard, and why

signals:
  HUP        read the file again; a fault in it changes nothing
  TERM, INT  stop
exit status: 0 stopped by a signal, 1 cannot listen, 2 wrong configuration,
  130 Ctrl-C before it had begun"""
