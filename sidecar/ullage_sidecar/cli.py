"""The command line of `ullage-sidecar`, and what it says of the configuration."""

import argparse
from typing import Any, Final

from ullage_shared.command_line import daemon_parser
from ullage_sidecar.config import engine_flags


def flags(options: argparse.Namespace) -> dict[str, Any]:
    """The flags given, as top-level keys of the configuration."""
    given = {key: getattr(options, key) for key in ("node", "socket", "listen")}
    keys: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if options.engine:
        keys["engine"] = engine_flags(options.engine)
    return keys


def parser() -> argparse.ArgumentParser:
    """The command line without a subcommand."""
    return daemon_parser(
        "ullage-sidecar", "check | drain | undrain | status", _SAYS, _EPILOG, add_keys
    )


def add_keys(command: argparse.ArgumentParser) -> None:
    """The flags that are keys of the configuration."""
    add = command.add_argument
    add(
        "--engine",
        action="append",
        metavar="[NAME=]URL",
        help="a vLLM server; again for more; replaces the file's [[engine]] tables",
    )
    add("--socket", metavar="PATH", help="unix socket for the plugin's readings")
    add("--listen", metavar="HOST:PORT", help="where to serve snapshots and metrics")
    add("--node", metavar="NAME", help="this node's name")


_SAYS: Final = "Turns the scheduler stats of this node's vLLM servers into scored snapshots."
_EPILOG: Final = """\
examples:
  ullage-sidecar --engine http://gpu-01:8000     the URL under which routers reach this vLLM
  ullage-sidecar --engine a=http://gpu-01:8000 --engine b=http://gpu-01:8001
  ullage-sidecar --config sidecar.toml

commands (each has its own --help):
  check [FILE]                 is this configuration in order, and what would be in force?
  to the sidecar that runs on this node:
  drain [ENGINE] [--wait S]    take a server out of service, until it starts anew
  undrain [ENGINE]             take it back
  status                       how the engines stand

where to look next:
  ullage-sidecar check --print        every key of the configuration, its default and meaning
  http://127.0.0.1:9400/v1/snapshots  what routers see of this node
  http://127.0.0.1:9400/metrics       every term of every score

signals:
  TERM, INT  stop; HUP is ignored, for the file is read at the start only
exit status: 0 stopped by a signal, 1 cannot listen, 2 wrong configuration,
  130 Ctrl-C before it had begun"""
