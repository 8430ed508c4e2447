"""From a judgement to the snapshot on the wire.

`seq` is the instant of the last change in milliseconds of the node's monotonic clock, and at least
one more than before: it grows with every change, and over restarts of the sidecar too. `ts` is no
change, nor is an age.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from ullage_shared.snapshot import Parts, RequestClass, Scores, Snapshot
from ullage_sidecar.core.assess import Assessment
from ullage_sidecar.core.engine import Engine

DIGITS: Final = 4
"""Of ratios and scores: finer differences are not worth a new snapshot."""


def identity(engine: Engine, node: str) -> str:
    """`node/engine`, with `:rank` behind it when the server has several engines."""
    return f"{node}/{label(engine)}"


def label(engine: Engine) -> str:
    """The engine's name within its node."""
    ranked = engine.hello is not None and engine.hello.data_parallel_size > 1
    return f"{engine.name}:{engine.rank}" if ranked else engine.name


def source_of(engine: Engine, judged: Assessment) -> str:
    """Who tells how it stands: the plugin or a scrape. Empty: nobody."""
    return "" if judged.silent or engine.hello is None else engine.hello.source


def free_blocks(engine: Engine, judged: Assessment) -> int | None:
    """Free KV blocks as last reported. One is vLLM's own: its usage is a share of the others."""
    free, total = engine.signals.free.value, engine.hello.total_blocks if engine.hello else None
    if judged.silent or free is None or total is None:
        return None
    usable = max(0, total - 1)
    return min(usable, round(free * usable))


def render(engine: Engine, judged: Assessment, *, node: str, url: str, wall_s: float) -> Snapshot:
    """One replica's snapshot, its `seq` still 0: see `sequenced`."""
    hello, signals, levels = engine.hello, engine.signals, judged.levels
    learned = engine.speeds.learned
    known = None if judged.silent else signals
    return Snapshot(
        id=identity(engine, node),
        url=url,
        dp_rank=asked_for_as(engine),
        models=hello.models if hello else (),
        state=judged.state,
        reason=judged.reason,
        capacity_score=_ratio(judged.capacity),
        free_block_ratio=_ratio(levels.effective_free),
        waiting_depth=_rounded(levels.waiting, DIGITS),
        running_ratio=_ratio(levels.running),
        free_blocks=free_blocks(engine, judged),
        total_blocks=hello.total_blocks if hello else None,
        block_size=hello.block_size if hello else None,
        running=_whole(known.running.value if known else None),
        max_num_seqs=engine.max_num_seqs,
        waiting=_whole(known.waiting.value if known else None),
        exhaustion_s=_rounded(levels.exhaustion_s, 1),
        boot_id=hello.boot_id if hello else None,
        seq=0,
        age_s=0.0,
        ts=round(wall_s, 3),
        scores=_scores(judged.capacities),
        step_s=learned.step_s,
        decode_tokens_per_s=learned.decode_tokens_per_s,
        prefill_tokens_per_s=learned.prefill_tokens_per_s,
        stalled=judged.stalled,
        parts=_parts(judged),
    )


def sequenced(fresh: Snapshot, last: Snapshot | None, now_s: float) -> Snapshot:
    """Give a fresh snapshot its `seq`: the last one's, unless anything but `ts` differs."""
    now_ms = max(0, int(now_s * 1000.0))
    if last is None:
        return msgspec.structs.replace(fresh, seq=now_ms)
    same = msgspec.structs.replace(fresh, seq=last.seq, ts=last.ts) == last
    seq = last.seq if same else max(now_ms, last.seq + 1)
    return msgspec.structs.replace(fresh, seq=seq)


def asked_for_as(engine: Engine) -> int | None:
    """What its server knows this engine by: its place among the server's own. `None`: it has no
    other, and needs no name."""
    hello = engine.hello
    if hello is None or (hello.ranks_here or hello.data_parallel_size) == 1:
        return None
    return engine.rank - hello.first_rank


def _scores(capacities: Mapping[RequestClass, float]) -> Scores:
    if not capacities:
        return {}
    return {
        "short": _ratio(capacities[RequestClass.SHORT]),
        "long": _ratio(capacities[RequestClass.LONG]),
    }


def _parts(judged: Assessment) -> Parts | None:
    added, penalty = judged.added, judged.penalty
    if added is None or penalty is None:
        return None
    factors = (added.free, added.running, added.waiting, penalty, judged.warm_up)
    return Parts(*(round(min(1.0, max(0.0, factor)), DIGITS) for factor in factors))


def _ratio(value: float | None) -> float | None:
    return None if value is None else round(min(1.0, max(0.0, value)), DIGITS)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(max(0.0, value), digits)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
