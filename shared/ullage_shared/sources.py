"""Several sources of one replica: who speaks for it, who stands by, who inherits it.

    takes over    its picture − the speaker's picture > YOUNGER_S, both counted on our clock

A word of the same source is always taken (if it is no older than the last one); one of another that
calls the replica by the same name, only when it is so much the younger. Two aggregators, each a
second late by turns, so do not take a replica from each other, while one that is cut off from its
sidecars, and says so by `age_s`, loses it before its snapshots are stale.

A source on the replica's own host, by the names in both URLs, is at home. It speaks for the replica
as soon as it does and while it is heard, whatever a source that is not says, or has said before: a
sidecar that lies can so take nothing from a node whose own sidecar is listed by the name that its
replicas have.
"""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

YOUNGER_S: Final = 1.5
"""More than two aggregators of 1 s differ by while both are well, and less than makes a snapshot
stale by default."""

Named = Mapping[str, frozenset[str]]
"""By source: the keys of the replicas that it tells of, also of those that another speaks for."""


def takes_over(speakers_age_s: float, age_s: float) -> bool:
    """Does a picture of this age take the place of the speaker's?"""
    return speakers_age_s - age_s > YOUNGER_S


def at_home(source: str, url: str) -> bool:
    """Is a source on the host of the replica at this URL, as far as their names tell?"""
    return _host(source) == _host(url)


@lru_cache(maxsize=16_384)
def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def telling(named: Named, source: str, keys: set[str]) -> Named:
    """`source` tells of exactly these now. The same mapping, where that is nothing new: nearly
    always."""
    if named.get(source, frozenset()) == keys:
        return named
    others = {other: theirs for other, theirs in named.items() if other != source}
    return MappingProxyType(others | ({source: frozenset(keys)} if keys else {}))


def heir(named: Named, source: str, key: str) -> str | None:
    """Who else than `source` tells of this replica; None: nobody."""
    others = (other for other, keys in named.items() if other != source and key in keys)
    return next(others, None)
