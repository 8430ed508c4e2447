"""What `check --connect` asks of sources and of sidecars, once."""

from collections.abc import Sequence
from typing import Final

import aiohttp

from ullage_shared import check, snapshot
from ullage_shared.check import Asked, PeerError
from ullage_shared.discovery.listing import Listing
from ullage_shared.feed import hint
from ullage_shared.secret import Secret

_OK: Final = 200


async def look(name: str, texts: Sequence[str]) -> tuple[tuple[str, ...], list[Asked]]:
    """Whom a list names now, and how each source of it that may change has answered."""
    listing = Listing(name, lambda: None)
    listing.apply(texts)
    await listing.first_looks()
    await listing.stop()
    looked = [(source, seeker.known) for source, seeker in listing.seekers.items()]
    return listing.urls, [
        Asked(source, well=not known.problem, said=known.problem or f"{len(known.urls)} {name}")
        for source, known in looked
    ]


async def ask_sidecar(
    session: aiohttp.ClientSession, url: str, token: Secret | None = None
) -> tuple[Asked, Sequence[snapshot.Snapshot]]:
    """What a sidecar, or an aggregator, says now, and its replicas."""
    who = f"sidecar {url}"
    try:
        status, body = await check.ask(session, url + snapshot.PATH, token)
        document, faults = snapshot.decode(body)
    except PeerError as error:
        return Asked(who, well=False, said=str(error)), ()
    except snapshot.SnapshotError as error:
        said = str(error) if status == _OK else f"status {status}: {hint(status)}"
        return Asked(who, well=False, said=said), ()
    told = [f"{replica.id} is {replica.state}" for replica in document.replicas]
    said = "; ".join([*told, *faults]) or "no replica"
    return Asked(who, well=True, said=said), document.replicas
