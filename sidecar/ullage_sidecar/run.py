"""`ullage-sidecar`: reads its configuration and runs.

Exit status: 0 after SIGTERM or SIGINT, 1 if a place to listen at cannot be had, 2 if the
configuration is at fault, 130 after a Ctrl-C before it could listen to signals.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from ullage_shared import log
from ullage_shared.config import ConfigError, keys
from ullage_sidecar.config import Config, EngineEntry, engine_flags, read
from ullage_sidecar.serve import VERSION, serve
from ullage_sidecar.sources.plugin import ListenError


def main(words: Sequence[str]) -> int:
    """Run, as the command line wants it. Returns the exit status."""
    options = _parser().parse_args(words)
    log.configure(options.log_level)
    try:
        config = read(options.config, _flags(options))
        uvloop.run(serve(config))
    except ConfigError as error:
        sys.stderr.write(f"ullage-sidecar: {error}\n")
        return 2
    except ListenError as error:
        sys.stderr.write(f"ullage-sidecar: {error}\n")
        return 1
    return 0


def _flags(options: argparse.Namespace) -> dict[str, Any]:
    """The flags given, as top-level keys of the configuration."""
    given = {key: getattr(options, key) for key in ("node", "socket", "listen")}
    flags: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if options.engine:
        flags["engine"] = engine_flags(options.engine)
    return flags


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="ullage-sidecar",
        description="Turns the scheduler stats of this node's vLLM servers into scored snapshots.",
        epilog=_epilog(),
        usage="%(prog)s [flags], or: %(prog)s drain | undrain | status [-h]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = partial(parser.add_argument, default=None)
    add("--config", type=Path, metavar="FILE", help="TOML file; flags win over it")
    add(
        "--engine",
        action="append",
        metavar="[NAME=]URL",
        help="a vLLM server; again for more; replaces the file's [[engine]] tables",
    )
    add("--socket", metavar="PATH", help="unix socket for the plugin's readings")
    add("--listen", metavar="HOST:PORT", help="where to serve snapshots and metrics")
    add("--node", metavar="NAME", help="this node's name")
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info"
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    return parser


def _epilog() -> str:
    rows = [
        "commands to the sidecar that runs on this node (each has its own --help):",
        "  drain [ENGINE] [--wait S]    take a server out of service, until it starts anew",
        "  undrain [ENGINE]             take it back",
        "  status                       how the engines stand",
        "",
        "keys of the configuration file:",
    ]
    for key in keys(Config):
        default = "" if key.default is None or key.default == () else f" [{key.default}]"
        rows.append(f"  {key.name:<28} {key.description}{default}")
    rows += [f"  engine[].{key.name:<19} {key.description}" for key in keys(EngineEntry)]
    rows.append("exit status: 0 stopped by a signal, 1 cannot listen, 2 wrong configuration")
    return "\n".join(rows).replace("%", "%%")
