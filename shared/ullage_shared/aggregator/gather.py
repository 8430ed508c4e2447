"""What many sidecars said, as one document: pure.

    age_s there = age_s as it was sent + the time since it was received or vouched for

Everything else passes as it came: `id`, `boot_id`, `seq`, `ts`. A sidecar that falls silent removes
nothing: its replicas age, until routers no longer go by them. They leave when their sidecar no
longer names them, or is no longer listed.

A replica that several sources tell of is there once. Which of them speaks for it is settled as in a
router: see `sources`. One at home speaks for it while heard; else, of one that another calls by
another name, whoever was first, while heard.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from ullage_shared.address import AddressError, parse_base_url
from ullage_shared.snapshot import Document, Snapshot
from ullage_shared.sources import at_home, takes_over

OWNED_S: Final = 3.0
"""Whoever has not been heard for so long speaks for nothing that another claims."""
SAME_AGE_S: Final = 0.1
"""Ages that differ by no more are the same: what a sidecar's own documents leave open, too."""

Key = tuple[str, int | None]
"""A replica's URL and rank."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The latest word of one source."""

    document: Document
    received_s: float
    """When that came, or was vouched for."""


class Gathered(NamedTuple):
    """All of them together."""

    replicas: tuple[Snapshot, ...]
    speakers: Mapping[Key, str]
    """Who speaks for each."""
    disputed: tuple[str, ...]
    """A line for each that is claimed under another name, too."""


class _Claim(NamedTuple):
    source: str
    snapshot: Snapshot
    age_s: float
    silent_s: float


def gather(heard: Mapping[str, Heard], speakers: Mapping[Key, str], now_s: float) -> Gathered:
    """The replicas of all sources in their order. `speakers`: as of the last time."""
    found: dict[Key, _Claim] = {}
    disputed = []
    for source, word in heard.items():
        held_s = max(0.0, now_s - word.received_s)
        for snapshot in word.document.replicas:
            key = snapshot.url, snapshot.dp_rank
            claim = _Claim(source, snapshot, snapshot.age_s + held_s, held_s)
            other = found.get(key)
            if other is None:
                found[key] = claim
            elif other.source != source:  # Of one that is named twice the first counts.
                found[key] = winner = _speaker(speakers.get(key), other, claim)
                if other.snapshot.id != snapshot.id:
                    loser = claim if winner is other else other
                    claims = f"{loser.snapshot.id} of {loser.source}"
                    disputed.append(f"{claims}: {winner.source} speaks for {snapshot.url}")
    replicas = tuple(_aged(claim) for claim in found.values())
    everybody = {key: claim.source for key, claim in found.items()}
    return Gathered(replicas, everybody, tuple(disputed))


def _speaker(known: str | None, first: _Claim, second: _Claim) -> _Claim:
    for one, other in ((first, second), (second, first)):
        url, heard = one.snapshot.url, one.silent_s <= OWNED_S
        if heard and at_home(one.source, url) and not at_home(other.source, url):
            return one
    speaks, stands_by = (second, first) if second.source == known else (first, second)
    if speaks.snapshot.id == stands_by.snapshot.id:
        return stands_by if takes_over(speaks.age_s, stands_by.age_s) else speaks
    gone = speaks.silent_s > OWNED_S >= stands_by.silent_s
    return stands_by if gone else speaks


def _aged(claim: _Claim) -> Snapshot:
    return msgspec.structs.replace(claim.snapshot, age_s=round(claim.age_s, 3))


def same(one: Iterable[Snapshot], other: Iterable[Snapshot]) -> bool:
    """May one stand for the other? Not if an age is another: to say that nothing has changed is to
    say that the ages hold, too."""
    left, right = tuple(one), tuple(other)
    return len(left) == len(right) and all(
        (a.url, a.dp_rank, a.id, a.boot_id, a.seq) == (b.url, b.dp_rank, b.id, b.boot_id, b.seq)
        and abs(a.age_s - b.age_s) <= SAME_AGE_S
        for a, b in zip(left, right, strict=True)
    )


def normal(document: Document) -> tuple[Document, tuple[str, ...]]:
    """With every URL in its normal form, so that one replica is one key, and without those that
    have none: a line for each."""
    replicas, faults = [], []
    for replica in document.replicas:
        try:
            url = _normal(replica.url)
        except AddressError as error:
            faults.append(f"replica {replica.id}: url {error}")
            continue
        same_url = url == replica.url
        replicas.append(replica if same_url else msgspec.structs.replace(replica, url=url))
    return msgspec.structs.replace(document, replicas=tuple(replicas)), tuple(faults)


@lru_cache(maxsize=16_384)
def _normal(url: str) -> str:
    return parse_base_url(url)[0]


def standing(document: Document) -> frozenset[tuple[str, int | None, str, str | None]]:
    """What of a document is told at once when it changes: who is there, and in which state."""
    return frozenset((r.url, r.dp_rank, r.state, r.boot_id) for r in document.replicas)
