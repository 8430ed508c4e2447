"""The command line of `ullage-router`, and the configuration that it and the file make together."""

import argparse
from typing import Any, Final

from ullage_router.config import Config, at_odds
from ullage_router.worker import Place
from ullage_shared.address import Address, AddressError, parse_base_url, parse_listen
from ullage_shared.command_line import daemon_parser
from ullage_shared.config import ConfigError, load
from ullage_shared.discovery.source import parse_source

KEYS: Final = ("listen", "admin", "replicas", "sidecars", "workers")
"""The keys that have a flag."""
_ANY_HOST: Final = frozenset({"0.0.0.0", "::"})


def parser() -> argparse.ArgumentParser:
    """The command line without a subcommand."""
    command = daemon_parser(
        "ullage-router", "check | explain | key | top", _SAYS, _EPILOG, add_keys
    )
    # How a supervisor starts its workers: of no use to anybody else.
    command.add_argument("--worker", type=Place.parse, help=argparse.SUPPRESS)
    return command


def add_keys(command: argparse.ArgumentParser) -> None:
    """The flags that are keys of the configuration."""
    add = command.add_argument
    add("--listen", metavar="HOST:PORT", help="where clients connect")
    add("--admin", metavar="HOST:PORT", help="where operators look")
    add(
        "--replica",
        dest="replicas",
        action="append",
        metavar="URL",
        help="a vLLM server, or file:, dns+http: or srv+http: of such; may be repeated",
    )
    add(
        "--sidecar",
        dest="sidecars",
        action="append",
        metavar="URL",
        help="a sidecar, or a source of such; its replicas join the fleet; may be repeated",
    )
    add(
        "--workers",
        type=lambda text: int(text) if text.lstrip("-").isdecimal() else text,
        metavar="N|auto",
        help="processes that share the port; auto: one for each core",
    )


_SAYS: Final = "Sends each request to the vLLM replica that has headroom for it."
_EPILOG: Final = """\
examples:
  ullage-router --sidecar http://gpu-01:9400 --sidecar http://gpu-02:9400
  ullage-router --sidecar file:/etc/ullage/sidecars.yml --sidecar srv+http://_ullage._tcp.example
  ullage-router --config router.toml --workers auto

commands (each has its own --help):
  check [FILE]      is this configuration in order, and what would be in force?
  explain           who would get this request now, and why: asked of a running router
  top               how its replicas stand, live in a terminal
  key NAME          make an API key for a client, and its line for access.keys

where to look next:
  ullage-router check --print      every key of the configuration, its default and what it means
  http://127.0.0.1:9401/           a page: how the replicas stand, and why one is not chosen
  http://127.0.0.1:9401/decisions  the latest decisions, and the numbers behind them

signals:
  HUP        read file and certificates again; a fault in them changes nothing
  TERM, INT  let what runs finish, for up to limits.stop_grace_s; again: end it now
exit status: 0 stopped by a signal, 1 cannot listen or start, 2 wrong configuration,
  130 Ctrl-C before it had begun"""


def configure(arguments: argparse.Namespace) -> Config:
    """File and flags, checked. Raises `ConfigError`."""
    given: dict[str, Any] = {
        name: value for name in KEYS if (value := getattr(arguments, name)) is not None
    }
    config = load(Config, arguments.config, given)
    file = str(arguments.config or "command line")
    faults = []
    for key, read, values in (
        ("listen", parse_listen, (config.listen,)),
        ("admin", parse_listen, (config.admin,)),
        ("replicas", parse_source, config.replicas),
        ("sidecars", parse_source, config.sidecars),
        ("trace.otlp", parse_base_url, filter(None, (config.trace.otlp,))),
    ):
        for value in values:
            try:
                read(value)
            except AddressError as error:
                origin = f"--{key.rstrip('s')}" if key in given else file
                faults.append(f"{key} = {error} ({origin})")
    if not faults and _meet(parse_listen(config.listen), parse_listen(config.admin)):
        faults.append(f"admin = {config.admin!r}: wanted another port than listen has ({file})")
    faults += [f"{problem} ({file})" for problem in at_odds(config)]
    if not config.replicas and not config.sidecars:
        faults.append(f"replicas, sidecars: at least one must be named ({file})")
    if faults:
        raise ConfigError(*faults)
    return config


def _meet(one: Address, other: Address) -> bool:
    """Can only one of them be listened at? Port 0 is whichever is free."""
    if not one.port or one.port != other.port:
        return False
    hosts = {one.host, other.host}
    versions = {":" in host for host in hosts}
    return len(hosts) == 1 or (len(versions) == 1 and bool(hosts & _ANY_HOST))
