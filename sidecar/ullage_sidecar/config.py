"""The sidecar's configuration: a TOML file, flags laid over it, checked once, by name.

[[engine]]                     # one table for each vLLM server of this node
name = "vllm"                  # what the server has in ULLAGE_ENGINE
url = "http://gpu-03:8000"     # where routers reach it; /health is asked there too
"""

import math
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ullage_shared.address import AddressError, parse_base_url, parse_listen
from ullage_shared.admission import Access, Tls
from ullage_shared.config import ConfigError, load
from ullage_sidecar.channel import DEFAULT_SOCKET
from ullage_sidecar.core.settings import Settings
from ullage_sidecar.sources.settings import ScrapeSettings, When

DEFAULT_NAME: Final = "vllm"
CONTROL_SUFFIX: Final = ".control"
"""The control socket's path is the readings' one and this."""
SOCKET_PATH_BYTES: Final = 107 - len(CONTROL_SUFFIX)
"""A unix socket's address has no room for more."""
WEIGHTS_TOLERANCE: Final = 1e-6
SCRAPE_LATE_S: Final = 0.5
"""So late a page may come before its engine counts as silent: what the plugin, which speaks every
second, is given too."""


class EngineEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table `[[engine]]`: one vLLM server, however many data-parallel engines it has."""

    url: Annotated[
        str, Meta(description="Where routers reach it: `http://host:port` or `https://…`.")
    ]
    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9._-]{1,64}$",
            description="What the server has in ULLAGE_ENGINE.",
        ),
    ] = DEFAULT_NAME
    api_key_file: Annotated[
        str,
        Meta(
            description="File with the API key for dummy requests, where the server wants one "
            "(`vllm serve --api-key`). Read at each warm-up. Empty: none."
        ),
    ] = ""
    max_num_seqs: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="The server's --max-num-seqs, which its /metrics does not tell. "
            "0: estimated, once requests have waited.",
        ),
    ] = 0


class Config(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything an operator may set."""

    engine: Annotated[
        tuple[EngineEntry, ...], Meta(description="The vLLM servers of this node.")
    ] = ()
    node: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9._-]{1,255}$",
            description="This node's name in snapshot ids; by default its host name.",
        ),
    ] = msgspec.field(default_factory=socket.gethostname)
    socket: Annotated[
        str, Meta(description="Unix socket for the plugin's readings: ULLAGE_SOCKET of vLLM.")
    ] = DEFAULT_SOCKET
    scrape: ScrapeSettings = ScrapeSettings()
    listen: Annotated[
        str,
        Meta(
            description="Where to serve snapshots and metrics: host:port. Open to whoever reaches "
            "it, unless `access.token` or `tls.client_ca` says otherwise."
        ),
    ] = "0.0.0.0:9400"
    agent_listen: Annotated[
        str,
        Meta(
            description="Where to answer HAProxy's agent-checks: host:port; empty: nowhere. Open "
            "to whoever reaches it: HAProxy can show nothing there."
        ),
    ] = ""
    access: Access = Access()
    tls: Tls = Tls()


def read(path: Path | None, flags: Mapping[str, Any]) -> Config:
    """Read and check everything. Raises `ConfigError`. URLs come back in normal form."""
    config = load(Config, path, flags)
    origin = _Origin(str(path or "defaults"), flags)
    checks = (_sums, _patience, _places, _engines)
    faults = [fault for check in checks for fault in check(config, origin)]
    if faults:
        raise ConfigError(*faults)
    engines = (
        msgspec.structs.replace(entry, url=parse_base_url(entry.url)[0]) for entry in config.engine
    )
    return msgspec.structs.replace(config, engine=tuple(engines))


def engine_flags(texts: Sequence[str]) -> list[dict[str, str]]:
    """What `--engine [NAME=]URL`, given any number of times, says as `[[engine]]` tables."""
    entries = []
    for text in texts:
        name, equals, url = text.partition("=")
        named = equals and "://" not in name
        entries.append({"name": name, "url": url} if named else {"url": text})
    return entries


class _Origin:
    """Which file or flag a key came from, for errors."""

    def __init__(self, file: str, flags: Mapping[str, Any]) -> None:
        self._file = file
        self._flags = flags

    def fault(self, key: str, value: object, wanted: str) -> str:
        top = key.partition(".")[0].partition("[")[0]
        origin = f"--{top}" if top in self._flags else self._file
        return f"{key} = {value!r}: {wanted} ({origin})"


def _sums(config: Config, origin: _Origin) -> Iterator[str]:
    score, warm_up = config.score, config.warm_up
    tables = {"score": score, "score.short": score.short, "score.long": score.long}
    for table, of in tables.items():
        total = of.free_weight + of.running_weight + of.waiting_weight
        if not math.isclose(total, 1.0, rel_tol=0.0, abs_tol=WEIGHTS_TOLERANCE):
            weights = ("free_weight", "running_weight", "waiting_weight")
            key = " + ".join(f"{table}.{weight}" for weight in weights)
            yield origin.fault(key, round(total, 9), "wanted a sum of 1")
    if warm_up.ramp_until_s < warm_up.zero_until_s:
        yield origin.fault(
            "warm_up.ramp_until_s",
            warm_up.ramp_until_s,
            f"wanted warm_up.zero_until_s = {warm_up.zero_until_s!r} or more",
        )


def _patience(config: Config, origin: _Origin) -> Iterator[str]:
    scrape, signs_of_life_s = config.scrape, config.health.signs_of_life_s
    least_s = round(scrape.interval_s + SCRAPE_LATE_S, 9)
    if scrape.when is not When.NEVER and signs_of_life_s < least_s:
        yield origin.fault(
            "health.signs_of_life_s",
            signs_of_life_s,
            f"wanted scrape.interval_s + {SCRAPE_LATE_S!r} = {least_s!r} or more, "
            'or scrape.when = "never"',
        )


def _places(config: Config, origin: _Origin) -> Iterator[str]:
    path_bytes = len(os.fsencode(config.socket))
    if not 0 < path_bytes <= SOCKET_PATH_BYTES or "\0" in config.socket:
        wanted = f"wanted a path of 1 to {SOCKET_PATH_BYTES} bytes"
        yield origin.fault("socket", config.socket, wanted)
    places = {"listen": config.listen, "agent_listen": config.agent_listen}
    for key, place in places.items():
        try:
            if place or key == "listen":
                parse_listen(place)
        except AddressError as error:
            yield origin.fault(key, place, _wanted(error))


def _engines(config: Config, origin: _Origin) -> Iterator[str]:
    if not config.engine:
        yield origin.fault("engine", [], "wanted at least one [[engine]], or --engine [NAME=]URL")
    names: set[str] = set()
    urls: set[str] = set()
    for index, entry in enumerate(config.engine):
        if entry.name in names:
            wanted = "wanted a name that no other engine has"
            yield origin.fault(f"engine[{index}].name", entry.name, wanted)
        names.add(entry.name)
        try:
            url, _ = parse_base_url(entry.url)
        except AddressError as error:
            yield origin.fault(f"engine[{index}].url", entry.url, _wanted(error))
            continue
        if url in urls:
            yield origin.fault(f"engine[{index}].url", url, "wanted a URL that no other engine has")
        urls.add(url)


def _wanted(error: AddressError) -> str:
    """The address error without the value, which `fault` says already."""
    return str(error).partition(": ")[2]
