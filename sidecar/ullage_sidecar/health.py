"""Asks every server's `/health`, over a new connection each time: does it still accept any?"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

import aiohttp

from ullage_shared.peer import why_unreachable
from ullage_shared.tls import trusting
from ullage_sidecar.core.health import HealthSettings, Probe

PATH: Final = "/health"
OK: Final = 200


def session(settings: HealthSettings) -> aiohttp.ClientSession:
    """What probes are made with. To be closed by the caller. Raises `ConfigError`."""
    tls = trusting("health.ca", settings.ca) if settings.ca else True
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True, limit=0, ssl=tls),
        timeout=aiohttp.ClientTimeout(total=settings.timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


async def probe(client: aiohttp.ClientSession, url: str) -> Probe:
    """Ask once. Never raises for anything the server or the network does."""
    try:
        async with client.get(url + PATH, allow_redirects=False) as answer:
            return Probe(None if answer.status == OK else f"status {answer.status}")
    except TimeoutError:
        return Probe("no answer in time", certain=False)
    except aiohttp.ClientConnectorCertificateError as error:
        return Probe(why_unreachable(cast(OSError, error.certificate_error)), certain=False)
    except aiohttp.ClientConnectorError as error:
        refused = isinstance(error.os_error, ConnectionRefusedError)
        return Probe(why_unreachable(error.os_error), certain=refused, gone=refused)
    except (aiohttp.ClientError, OSError):
        return Probe("connection lost", certain=False)


async def watch(
    client: aiohttp.ClientSession,
    url: str,
    interval_s: float,
    tell: Callable[[Probe], None],
    clock: Callable[[], float],
) -> None:
    """Ask every `interval_s`, for ever; a slow answer makes the next question late, not two."""
    due_s = clock()
    while True:
        due_s = max(due_s + interval_s, clock())
        await asyncio.sleep(due_s - clock())
        tell(await probe(client, url))
