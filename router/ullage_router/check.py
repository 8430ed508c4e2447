"""`ullage-router check`: is this configuration in order, what would be in force, who answers?

It reads what a start or a reload would read, certificates and keys too, and says what is wrong: all
faults of one kind at a time (keys and values; addresses, and what is at odds; files).
With `--connect` it also looks at each source that lists servers, and asks each sidecar and each
replica, those that sidecars publish as well, once: as this host reaches them, which is what routing
will do.

Exit status: see `ullage_shared.check`.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Final

import aiohttp

from ullage_router import tls
from ullage_router.cli import KEYS, add_keys, configure
from ullage_router.config import Config, Tls, worker_count
from ullage_router.http import access
from ullage_router.tracing import require
from ullage_shared import asking, check
from ullage_shared.check import Asked, PeerError
from ullage_shared.config import ConfigError
from ullage_shared.secret import Secret, own
from ullage_shared.tls import trusting

_COMMAND: Final = "ullage-router check"
_EXAMPLE: Final = Config(sidecars=("http://gpu-01:9400", "http://gpu-02:9400"))
_OK: Final = 200


def main(words: Sequence[str]) -> int:
    """Check. Returns the exit status."""
    command = check.parser(_COMMAND, add_keys)
    options = command.parse_args(words)
    options.config = check.file_of(command, options)
    given = options.config or any(getattr(options, key) is not None for key in KEYS)
    try:
        config = _EXAMPLE if options.print and not given else configure(options)
        _read_files(config)
        require(config.trace.otlp)
    except ConfigError as error:
        return check.faults(_COMMAND, error.faults)
    check.say(config, options, str(options.config or "The command line"), _rows(config))
    if not options.connect:
        return check.IN_ORDER
    peers = tls.read(config.tls).peers
    token = own("access.sidecar_token", config.access.sidecar_token)
    asked = asyncio.run(_ask_all(config, peers, token))
    return check.say_asked(asked, as_comment=options.print)


def _read_files(config: Config) -> None:
    """Read certificates and keys as a start would. Raises `ConfigError`, with all that is wrong."""
    files = config.tls
    faults: list[str] = []
    readers: list[Callable[[], object]] = [
        lambda: trusting("tls.ca", files.ca),
        lambda: trusting("tls.ca", "", files.client_certificate, files.client_key),
        lambda: tls.read(Tls(certificate=files.certificate, key=files.key)),
        lambda: access.read(config.access.keys, ""),
        lambda: access.read("", config.access.replica_key),
        lambda: own("access.sidecar_token", config.access.sidecar_token),
    ]
    for read in readers:
        try:
            read()
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError(*faults)


def _rows(config: Config) -> dict[str, str]:
    workers = worker_count(config)
    return {
        "clients": f"{config.listen}, {'TLS' if config.tls.certificate else 'without TLS'}",
        "operators": config.admin,
        "sidecars": ", ".join(config.sidecars) or "none: nothing but own counts to go by",
        "replicas": ", ".join(config.replicas) or "those of the sidecars",
        "workers": f"{workers}, one for each core" if config.workers == "auto" else f"{workers}",
    }


async def _ask_all(config: Config, peers: ssl.SSLContext, token: Secret | None) -> list[Asked]:
    connector = aiohttp.TCPConnector(ssl=peers, limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        (urls, of_replicas), (sidecars, of_sidecars) = await asyncio.gather(
            asking.look("replicas", config.replicas), asking.look("sidecars", config.sidecars)
        )
        told = await asyncio.gather(*(asking.ask_sidecar(session, url, token) for url in sidecars))
        urls += tuple(replica.url for _, replicas in told for replica in replicas)
        each = [_ask_replica(session, url) for url in dict.fromkeys(urls)]
        sources = of_replicas + of_sidecars
        return sources + [asked for asked, _ in told] + await asyncio.gather(*each)


async def _ask_replica(session: aiohttp.ClientSession, url: str) -> Asked:
    who = f"replica {url}"
    try:
        status, _ = await check.ask(session, f"{url}/health")
    except PeerError as error:
        return Asked(who, well=False, said=str(error))
    return Asked(who, well=status == _OK, said=f"/health says {status}")
