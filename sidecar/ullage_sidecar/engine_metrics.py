"""What `/metrics` says of each engine: rows of a name, a meaning and a value, and the families.

Label `engine` is the engine's name within the node, with its rank where there are several: bounded
by the configuration. Label `class` is one of the three classes of request; `model` is what vLLM was
told to serve its model as. A value that is unknown has no series: 0 would mean something else.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ullage_shared.snapshot import RequestClass, State
from ullage_sidecar.core.assess import Assessment
from ullage_sidecar.core.engine import Engine
from ullage_sidecar.core.reading import PLUGIN, SCRAPE
from ullage_sidecar.core.render import free_blocks, identity, label, source_of
from ullage_sidecar.core.score import ScoreSettings, ScoreTerms, Weights

PREFIX: Final = "ullage_sidecar_"

Judged = tuple[Engine, Assessment]
Row = tuple[str, str, Callable[[Engine, Assessment], float | None]]
"""Name without prefix, help, value."""

GAUGES: Final[Sequence[Row]] = (
    ("capacity_score", "Headroom for mixed requests: 0 full, 1 empty.", lambda _, a: a.capacity),
    (
        "score_free_term",
        "Room left by the KV blocks, 0 to 1, before weighting.",
        lambda _, a: a.terms.free if a.terms else None,
    ),
    (
        "score_running_term",
        "Room left by the running sequences, 0 to 1, before weighting.",
        lambda _, a: a.terms.running if a.terms else None,
    ),
    (
        "score_waiting_term",
        "Room left by the waiting queue, 0 to 1, before weighting.",
        lambda _, a: a.terms.waiting if a.terms else None,
    ),
    ("penalty_factor", "Factor on the score for a queue, 0 to 1.", lambda _, a: a.penalty),
    ("warm_up_factor", "Factor on the score for the state, 0 to 1.", lambda _, a: a.warm_up),
    (
        "smoothed_free_block_ratio",
        "Free share of the KV blocks, smoothed.",
        lambda _, a: a.levels.free,
    ),
    (
        "predicted_free_block_ratio",
        "Free share of the KV blocks expected shortly.",
        lambda _, a: a.levels.predicted,
    ),
    (
        "exhaustion_seconds",
        "When no KV block will be free; absent while they do not fall.",
        lambda _, a: a.levels.exhaustion_s,
    ),
    ("free_blocks", "Free KV blocks, as last reported.", free_blocks),
    (
        "kv_cache_usage_ratio",
        "Share of the KV blocks in use, 0 to 1, as last reported.",
        lambda e, a: _latest(_used(e.signals.free.value), a),
    ),
    (
        "running_requests",
        "Running sequences, as last reported.",
        lambda e, a: _latest(e.signals.running.value, a),
    ),
    (
        "waiting_requests",
        "Waiting requests, as last reported.",
        lambda e, a: _latest(e.signals.waiting.value, a),
    ),
    (
        "total_blocks",
        "KV blocks of the engine.",
        lambda e, _: e.hello.total_blocks if e.hello else None,
    ),
    (
        "block_size_tokens",
        "Tokens per KV block.",
        lambda e, _: e.hello.block_size if e.hello else None,
    ),
    (
        "max_running_requests",
        "Most sequences that the engine runs at once.",
        lambda e, _: e.max_num_seqs,
    ),
    (
        "max_running_requests_estimated",
        "1 if that is an estimate: nobody tells it, it was learned from the queue.",
        lambda e, _: None if e.max_num_seqs is None else float(e.estimates_seqs),
    ),
    (
        "step_seconds",
        "Duration of a decode step, as learned; absent until then.",
        lambda e, _: e.speeds.learned.step_s,
    ),
    (
        "decode_tokens_per_second",
        "Tokens that all sequences together get in a second of decode steps, as learned.",
        lambda e, _: e.speeds.learned.decode_tokens_per_s,
    ),
    (
        "prefill_tokens_per_second",
        "Uncached prompt tokens computed in a second, as learned.",
        lambda e, _: e.speeds.learned.prefill_tokens_per_s,
    ),
    (
        "drained",
        "1 while its operator has taken it out of service.",
        lambda e, _: float(e.drain is not None),
    ),
    ("senders", "API processes that speak for the engine.", lambda e, _: len(e.senders)),
)

COUNTERS: Final[Sequence[Row]] = (
    ("readings_received", "Engine steps received.", lambda e, _: e.counts.received),
    ("readings_lost", "Engine steps missed, by their numbers.", lambda e, _: e.counts.lost),
    ("heartbeats", "Repeated last steps received.", lambda e, _: e.counts.heartbeats),
    ("prompt_tokens", "Prompt tokens processed.", lambda e, _: e.counts.prompt_tokens),
    ("generated_tokens", "Tokens generated.", lambda e, _: e.counts.generated_tokens),
    ("preemptions", "Requests preempted.", lambda e, _: e.counts.preemptions),
    (
        "prefix_cache_queried_tokens",
        "Tokens looked up in the prefix cache.",
        lambda e, _: e.counts.prefix_queries,
    ),
    (
        "prefix_cache_hit_tokens",
        "Tokens found in the prefix cache.",
        lambda e, _: e.counts.prefix_hits,
    ),
)


TERMS: Final[Sequence[tuple[str, Callable[[ScoreTerms], float], Callable[[Weights], float]]]] = (
    ("free", lambda terms: terms.free, lambda weights: weights.free_weight),
    ("running", lambda terms: terms.running, lambda weights: weights.running_weight),
    ("waiting", lambda terms: terms.waiting, lambda weights: weights.waiting_weight),
)
"""The score's terms: their names, the room each leaves, and what it weighs."""


def families(
    engines: Sequence[Judged], now_s: float, node: str, score: ScoreSettings
) -> Iterator[Metric]:
    """Everything about these engines of a node, judged at `now_s` by `score`."""
    yield from _per_engine(engines)
    yield _parts(engines, score)
    yield _weights(score)
    yield _names(engines, node)
    yield _capacities(engines)
    yield _states(engines)
    yield _sources(engines)
    yield _ages(engines, now_s)
    yield _models(engines)


def _sources(engines: Sequence[Judged]) -> Metric:
    family = GaugeMetricFamily(
        f"{PREFIX}source",
        "1 for who tells how the engine stands: its plugin, a scrape of its /metrics, or nobody.",
        labels=("engine", "source"),
    )
    for engine, judged in engines:
        present = source_of(engine, judged) or "none"
        for source in (PLUGIN, SCRAPE, "none"):
            family.add_metric((label(engine), source), float(source == present))
    return family


def _per_engine(engines: Sequence[Judged]) -> Iterator[Metric]:
    for kind, rows in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
        for name, meaning, value_of in rows:
            family = kind(PREFIX + name, meaning, labels=("engine",))
            for engine, judged in engines:
                value = value_of(engine, judged)
                if value is not None:
                    family.add_metric((label(engine),), value)
            yield family
    dropped = CounterMetricFamily(
        f"{PREFIX}readings_dropped",
        "Datagrams that the engine's present senders could not hand over, by their own count.",
        labels=("engine",),
    )
    for engine, _ in engines:
        dropped.add_metric(
            (label(engine),), sum(sender.dropped for sender in engine.senders.values())
        )
    yield dropped


def _parts(engines: Sequence[Judged], score: ScoreSettings) -> Metric:
    family = GaugeMetricFamily(
        f"{PREFIX}score_part",
        "What a term adds to the score of a mixed request: its room times its weight. The sum, "
        "times penalty and warm-up factor, is the capacity score.",
        labels=("engine", "term"),
    )
    weights = score.weights(RequestClass.MIXED)
    for engine, judged in engines:
        if judged.terms is not None:
            for term, room, weight in TERMS:
                value = room(judged.terms) * weight(weights)
                family.add_metric((label(engine), term), value)
    return family


def _weights(score: ScoreSettings) -> Metric:
    family = GaugeMetricFamily(
        f"{PREFIX}score_weight",
        "What a term weighs in the score of a class of request, as configured.",
        labels=("class", "term"),
    )
    for cls in RequestClass:
        for term, _, weight in TERMS:
            family.add_metric((cls.value, term), weight(score.weights(cls)))
    return family


def _names(engines: Sequence[Judged], node: str) -> Metric:
    family = GaugeMetricFamily(
        f"{PREFIX}replica_info",
        "Always 1; what snapshots and routers call the engine.",
        labels=("engine", "replica"),
    )
    for engine, _ in engines:
        family.add_metric((label(engine), identity(engine, node)), 1)
    return family


def _capacities(engines: Sequence[Judged]) -> Metric:
    family = GaugeMetricFamily(
        f"{PREFIX}capacity_score_by_class",
        "Headroom for requests of a class: short, mixed or long prompts.",
        labels=("engine", "class"),
    )
    for engine, judged in engines:
        for cls, capacity in judged.capacities.items():
            family.add_metric((label(engine), cls.value), capacity)
    return family


def _states(engines: Sequence[Judged]) -> Metric:
    family = GaugeMetricFamily(
        f"{PREFIX}state",
        "1 for the state the engine is in, 0 for others.",
        labels=("engine", "state"),
    )
    for engine, judged in engines:
        for state in State:
            family.add_metric((label(engine), state.value), float(state is judged.state))
    return family


def _ages(engines: Sequence[Judged], now_s: float) -> Metric:
    family = GaugeMetricFamily(
        f"{PREFIX}last_sign_age_seconds",
        "Age of the latest word of the engine, from its plugin or its /metrics.",
        labels=("engine",),
    )
    for engine, _ in engines:
        family.add_metric((label(engine),), engine.age_s(now_s))
    return family


def _models(engines: Sequence[Judged]) -> Metric:
    family = GaugeMetricFamily(
        f"{PREFIX}model_info",
        "Always 1; a name that the engine serves its model by.",
        labels=("engine", "model"),
    )
    for engine, _ in engines:
        for model in engine.hello.models if engine.hello else ():
            family.add_metric((label(engine), model), 1)
    return family


def _used(free_ratio: float | None) -> float | None:
    return None if free_ratio is None else 1.0 - free_ratio


def _latest(value: float | None, judged: Assessment) -> float | None:
    """A reading that still counts."""
    return None if judged.silent else value
