"""The aggregator's configuration."""

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ullage_shared import admission
from ullage_shared.address import AddressError, parse_listen
from ullage_shared.config import ConfigError, keys, load
from ullage_shared.discovery.source import parse_source
from ullage_shared.tls import ClientKey


class Access(admission.Access, frozen=True, forbid_unknown_fields=True):
    """`[access]`. Files are read at the start and again at SIGHUP."""

    sidecar_token: Annotated[
        str,
        Meta(
            description="File with the token that sidecars want (their `access.token`), alone on a "
            "line. Empty: they want none."
        ),
    ] = ""


class Tls(admission.Tls, frozen=True, forbid_unknown_fields=True):
    """`[tls]`. Files are read at the start and again at SIGHUP."""

    ca: Annotated[
        str,
        Meta(
            description="PEM file with the authorities that sidecars at `https://` are checked "
            "against. Empty: the system's."
        ),
    ] = ""
    client_certificate: Annotated[
        str,
        Meta(
            description="PEM file with the certificate chain that sidecars at `https://` are shown "
            "where they want one (their `tls.client_ca`). Empty: none."
        ),
    ] = ""
    client_key: ClientKey = ""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole configuration."""

    listen: Annotated[
        str,
        Meta(
            description="Where to serve snapshots and metrics: host:port. Open to whoever reaches "
            "it, unless `access.token` or `tls.client_ca` says otherwise."
        ),
    ] = "0.0.0.0:9402"
    sidecars: Annotated[
        tuple[str, ...],
        Meta(
            description="Sidecars, or further aggregators, `http://host:port` or `https://…`, or "
            "where they are listed: as `sidecars` of the router."
        ),
    ] = ()
    node: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9._-]{1,255}$",
            description="This aggregator's name in its document; by default its host name. The ids "
            "of replicas stay as their sidecars give them.",
        ),
    ] = msgspec.field(default_factory=socket.gethostname)
    poll_interval_s: Annotated[
        float,
        Meta(
            ge=0.02,
            le=60.0,
            description="How often, in seconds, each sidecar says how things stand. More often "
            "costs CPU here, less often makes what routers see older.",
        ),
    ] = 0.5
    report_interval_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=60.0,
            description="How often, in seconds, routers are told; at once, who comes, goes or "
            "changes its state. More often costs CPU in every router, less often makes what they "
            "see older: keep it well below their `choose.stale_after_s`.",
        ),
    ] = 1.0
    access: Access = Access()
    tls: Tls = Tls()


FIXED = ("listen", "node", "report_interval_s")
"""What a reload cannot change."""
SWITCHES = ("access.token", "tls.certificate", "tls.client_ca")
"""Files of which a reload takes another, or another content, but not the first or none."""


def read(path: Path | None, flags: Mapping[str, Any]) -> Config:
    """Read and check everything. Raises `ConfigError`."""
    config = load(Config, path, flags)
    faults = list(_faults(config, str(path or "command line"), flags))
    if faults:
        raise ConfigError(*faults)
    return config


def _faults(config: Config, file: str, flags: Mapping[str, Any]) -> Iterator[str]:
    for key, check, values in (
        ("listen", parse_listen, (config.listen,)),
        ("sidecars", parse_source, config.sidecars),
    ):
        origin = f"--{key.rstrip('s')}" if key in flags else file
        for value in values:
            try:
                check(value)
            except AddressError as error:
                yield f"{key} = {error} ({origin})"
    if not config.sidecars:
        yield f"sidecars = []: wanted at least one ({file})"


def changes(old: Config, new: Config) -> tuple[str, ...]:
    """The keys whose values differ. Raises `ConfigError` if one of them needs a restart."""
    changed = [key.name for key in keys(Config) if _value(old, key.name) != _value(new, key.name)]
    switched = [name for name in changed if name in SWITCHES]
    fixed = [name for name in changed if name in FIXED]
    fixed += [name for name in switched if bool(_value(old, name)) != bool(_value(new, name))]
    if fixed:
        raise ConfigError(f"{', '.join(fixed)}: cannot change while it runs, restart it")
    return tuple(changed)


def _value(config: Config, name: str) -> object:
    value: object = config
    for step in name.split("."):
        value = getattr(value, step)
    return value
