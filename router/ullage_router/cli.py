"""The command line of `ullage-router`, and the configuration that it and the file make together."""

import argparse
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from ullage_router.config import Config, at_odds
from ullage_router.worker import Place
from ullage_shared.address import AddressError, parse_base_url, parse_listen
from ullage_shared.config import ConfigError, keys, load

VERSION: Final = version("ullage")
_LEVELS: Final = ("debug", "info", "warning", "error")
_KEYS: Final = ("listen", "admin", "replicas", "sidecars", "workers")
"""The keys that have a flag."""


def parser() -> argparse.ArgumentParser:
    """The command line. A flag beats the same key in the file."""
    flags = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="ullage-router",
        description="Sends each request to the vLLM replica that has headroom for it.",
        epilog=_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument("--config", type=Path, metavar="FILE", help="TOML file")
    flags.add_argument("--listen", metavar="HOST:PORT", help="where clients connect")
    flags.add_argument("--admin", metavar="HOST:PORT", help="where operators look")
    flags.add_argument(
        "--replica",
        dest="replicas",
        action="append",
        metavar="URL",
        help="a vLLM server; may be repeated",
    )
    flags.add_argument(
        "--sidecar",
        dest="sidecars",
        action="append",
        metavar="URL",
        help="a sidecar; its replicas join the fleet; may be repeated",
    )
    flags.add_argument(
        "--workers",
        type=lambda text: int(text) if text.lstrip("-").isdecimal() else text,
        metavar="N|auto",
        help="processes that share the port; auto: one for each core",
    )
    flags.add_argument("--log-level", choices=_LEVELS, default="info")
    flags.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    # How a supervisor starts its workers: of no use to anybody else.
    flags.add_argument("--worker", type=Place.parse, help=argparse.SUPPRESS)
    return flags


def _epilog() -> str:
    rows = ["keys of the configuration file:"]
    for key in keys(Config):
        default = "" if key.default in (None, (), "") else f" [{key.default}]"
        rows.append(f"  {key.name:<28} {key.description}{default}")
    rows += [
        "signals:",
        "  HUP        read file and certificates again; a fault in them changes nothing",
        "  TERM, INT  let what runs finish, for up to limits.stop_grace_s; again: end it now",
        "exit status: 0 stopped by a signal, 1 cannot listen or start, 2 wrong configuration",
    ]
    return "\n".join(rows).replace("%", "%%")


def configure(arguments: argparse.Namespace) -> Config:
    """File and flags, checked. Raises `ConfigError`."""
    given: dict[str, Any] = {
        name: value for name in _KEYS if (value := getattr(arguments, name)) is not None
    }
    config = load(Config, arguments.config, given)
    file = str(arguments.config or "command line")
    for key, read, values in (
        ("listen", parse_listen, (config.listen,)),
        ("admin", parse_listen, (config.admin,)),
        ("replicas", parse_base_url, config.replicas),
        ("sidecars", parse_base_url, config.sidecars),
    ):
        for value in values:
            try:
                read(value)
            except AddressError as error:
                origin = f"--{key.rstrip('s')}" if key in given else file
                raise ConfigError(f"{key} = {error} ({origin})") from error
    if problem := at_odds(config):
        raise ConfigError(f"{problem} ({file})")
    if not config.replicas and not config.sidecars:
        raise ConfigError(f"replicas, sidecars: at least one must be named ({file})")
    return config
