"""Snapshots, documents and fleets as a test wants them: sound, but for what it names."""

from collections.abc import Mapping
from typing import Any

import msgspec

from ullage_router.core.fleet import Fleet, fleet_of, hear
from ullage_shared.snapshot import SCHEMA, Document, Snapshot, State

_SOUND = Snapshot(
    id="node/engine",
    url="http://127.0.0.1:8000",
    dp_rank=None,
    models=("tiny",),
    state=State.SERVING,
    reason="",
    capacity_score=0.5,
    free_block_ratio=0.5,
    waiting_depth=0.0,
    running_ratio=0.5,
    free_blocks=500,
    total_blocks=1000,
    block_size=16,
    running=8,
    max_num_seqs=16,
    waiting=0,
    exhaustion_s=None,
    boot_id="boot",
    seq=1,
    age_s=0.0,
    ts=0.0,
)


def snapshot(url: str, score: float | None = 0.5, **changes: Any) -> Snapshot:
    """A serving replica's snapshot; `changes` are fields by name."""
    sound = {"id": url.removeprefix("http://"), "url": url, "capacity_score": score}
    return msgspec.structs.replace(_SOUND, **(sound | changes))


def document(*replicas: Snapshot, node: str = "node") -> Document:
    """What one sidecar publishes."""
    return Document(schema=SCHEMA, node=node, replicas=replicas)


def fleet_with(
    scores: Mapping[str, float | None], *, silent: tuple[str, ...] = (), now_s: float = 0.0
) -> Fleet:
    """A fleet in which each URL of `scores` was heard at `now_s`, and `silent` ones are listed."""
    heard = document(*(snapshot(url, score) for url, score in scores.items()))
    return hear(fleet_of(silent), "http://sidecar:9400", heard, now_s)[0]
