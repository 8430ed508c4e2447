"""What a server's own `/metrics` says of its engines: from text to figures, by a table of names.

Law
* A figure is read under the first of its names that the page has: old servers and other products
  differ in names alone. What no name of a figure gives is unknown, and so is a value that is no
  number, is infinite, below 0, or no whole number where one is wanted. Unknown is never 0.
* An engine is a data-parallel rank: label `engine` (vLLM) or `dp_rank` (SGLang); without either it
  is rank 0. A sample without a rank on a page of several engines is nobody's.
* Samples of one figure, engine and model say the same (the ranks of tensor parallelism), or are
  parts beside their sum: the largest counts. Over several models counts add up; KV usage, which
  they share, does not. One unknown sample makes its figure unknown.
* vLLM gives the KV blocks of all its engines as one sum; SGLang those of each.
* To read holds up all that the reader does besides. A page that would take long is refused: for all
  its lines, for those that are wanted, or for one of them. 100 engines of vLLM have less.

Of a page of a thousand lines some twenty are wanted, and only those are given to the parser; their
names and labels once, for only values change from page to page.
Sources: `vllm/v1/metrics/loggers.py` of vLLM 0.11 to 0.32 and SGLang's `metrics/collector.py`.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

MAX_RANKS: Final = 1024
"""Data-parallel engines of one server: a page that has more is no such page."""
MAX_LINES: Final = 2**18
MAX_WANTED: Final = 2**12
"""Lines with figures. vLLM has 11 for each engine and model."""
MAX_WANTED_BYTES: Final = 2**18
"""Of them all. vLLM has 1.2 KB for each engine, and the model's name 10 times more."""
MAX_LINE_BYTES: Final = 2**12
"""Of one of them. vLLM's longest, with its cache's settings, has 1.1 KB."""
PROCESS_START: Final = "process_start_time_seconds"
SERVES_SINCE: Final = "vllm:prompt_tokens_created"
"""vLLM makes its counters once the engines are ready, which may be minutes after the start."""
RANK_LABELS: Final = ("engine", "dp_rank")
MODEL_LABEL: Final = "model_name"

COUNTS: Final[Mapping[str, Sequence[str]]] = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "prompt_tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    "generated_tokens": ("vllm:generation_tokens_total", "sglang:generation_tokens_total"),
    "preemptions": ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
    "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
}
KV_USAGE: Final = (
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",  # before 0.10
    "sglang:token_usage",
)
PULSES: Final = (
    "vllm:iteration_tokens_total_count",
    "sglang:num_used_tokens",
    "sglang:gen_throughput",
)
"""Tell nothing but that the engine moves: SGLang's totals count finished requests only."""


class Capacity(NamedTuple):
    """Where the KV cache's size stands: in labels of `info`, or as gauges of these names."""

    blocks: str
    block_size: str
    info: str = ""
    summed: bool = False
    """Over all engines of the page."""


CAPACITIES: Final = (
    Capacity("num_gpu_blocks", "block_size", info="vllm:cache_config_info", summed=True),
    Capacity("sglang:num_pages", "sglang:page_size"),
    Capacity("num_pages", "page_size", info="sglang:cache_config_info"),  # before 0.5.11
)


class ExpositionError(ValueError):
    """The server's fault: it is no page of metrics, or none of an engine. The message says why."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One engine on the page. `None`: unknown."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """0..1."""
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    preemptions: int | None = None
    prefix_queries: int | None = None
    prefix_hits: int | None = None
    total_blocks: int | None = None
    """Of this engine."""
    block_size: int | None = None
    models: tuple[str, ...] = ()
    pulse: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """What was found."""

    engines: Mapping[int, Figures]
    """By rank; at least one."""
    process_start_s: float | None = None
    """When the process began, by its wall clock. Several API servers have no such line."""
    serves_since_s: float | None = None
    """When its engines were ready, by the same clock."""


def read(body: bytes) -> Page:
    """Read a page. Raises `ExpositionError`."""
    samples = [sample for line in list(_wanted_lines(body)) for sample in _parsed(line)]
    ranks = {_rank(sample) for sample in samples if sample.name in _SHOWS_AN_ENGINE}
    if not ranks:
        raise ExpositionError("no metrics of vLLM or SGLang there; are they switched off?")
    engines = sorted(rank for rank in ranks if rank is not None) or [0]
    found: _Found = defaultdict(list)
    for sample in samples:
        rank = _rank(sample)
        if rank is not None or len(engines) == 1:
            found[sample.name, engines[0] if rank is None else rank].append(sample)
    return Page(
        {rank: _figures(found, rank, len(engines)) for rank in engines},
        _instant(samples, PROCESS_START),
        _instant(samples, SERVES_SINCE),
    )


_Found = defaultdict[tuple[str, int], list[Sample]]
_SHOWS_AN_ENGINE: Final = (*COUNTS["running"], *COUNTS["waiting"], *KV_USAGE)
_WANTED: Final = frozenset(
    (
        PROCESS_START,
        SERVES_SINCE,
        *(name for names in COUNTS.values() for name in names),
        *KV_USAGE,
        *PULSES,
        *(name for at in CAPACITIES for name in (at.info or at.blocks, at.info or at.block_size)),
    )
)
_HEAD_BYTES: Final = min(map(len, _WANTED))
_HEADS: Final = frozenset(name.encode()[:_HEAD_BYTES] for name in _WANTED)
"""How the wanted lines begin: cheap to look up, and few others begin so."""
_EXEMPLAR: Final = b" # {"
"""What follows belongs to OpenMetrics, and is no part of the value."""


def _wanted_lines(body: bytes) -> Iterator[bytes]:
    """Raises `ExpositionError`."""
    if body.count(b"\n") > MAX_LINES:
        raise ExpositionError(f"more than {MAX_LINES} lines")
    wanted = wanted_bytes = 0
    for line in body.split(b"\n"):
        if line[:_HEAD_BYTES] in _HEADS and _name(line) in _WANTED:
            wanted += 1
            wanted_bytes += len(line)
            if len(line) > MAX_LINE_BYTES:
                raise ExpositionError(f"{_name(line)}: a line of more than {MAX_LINE_BYTES} bytes")
            if wanted > MAX_WANTED or wanted_bytes > MAX_WANTED_BYTES:
                most = f"{MAX_WANTED} lines or {MAX_WANTED_BYTES} bytes"
                raise ExpositionError(f"more than {most} of an engine's figures")
            yield line[: line.rfind(_EXEMPLAR)] if _EXEMPLAR in line else line


def _name(line: bytes) -> str:
    return line.partition(b"{")[0].split(None, 1)[0].decode("latin-1")


def _parsed(line: bytes) -> Iterator[Sample]:
    """One line's sample. (Python alone takes `1_0` for a number.)"""
    end = line.rfind(b"}") + 1 or len(_name(line))
    try:
        value, *_ = map(float, line[end:].decode("ascii").replace("_", "?").split())
        for sample in _series(line[:end]):
            yield sample._replace(value=value)
    except (ValueError, ArithmeticError, LookupError) as error:
        raise ExpositionError(f"{_name(line)}: a line that cannot be read") from error


@lru_cache(maxsize=1024)
def _series(text: bytes) -> tuple[Sample, ...]:
    families = text_string_to_metric_families(f"{text.decode()} 0")
    return tuple(sample for family in families for sample in family.samples)


def _instant(samples: Sequence[Sample], name: str) -> float | None:
    """The first of that name: several engines of one process say nearly the same."""
    return next((_finite(sample) for sample in samples if sample.name == name), None)


def _rank(sample: Sample) -> int | None:
    text = next(filter(None, map(sample.labels.get, RANK_LABELS)), None)
    if text is None:
        return None
    rank = _digits(text)
    if rank is None or rank >= MAX_RANKS:
        raise ExpositionError(f"{sample.name}: wanted an engine of 0 to {MAX_RANKS - 1}")
    return rank


def _figures(found: _Found, rank: int, engines: int) -> Figures:
    def under(names: Sequence[str]) -> list[Sample]:
        return next((found[name, rank] for name in names if (name, rank) in found), [])

    counts = {figure: _sum(under(names)) for figure, names in COUNTS.items()}
    blocks, block_size = _capacity(found, rank, engines)
    shown = [sample for name in _SHOWS_AN_ENGINE for sample in found.get((name, rank), ())]
    moving = [sample for name in PULSES for sample in found.get((name, rank), ())]
    return Figures(
        **counts,
        kv_usage=_largest([_ratio(sample) for sample in under(KV_USAGE)]),
        total_blocks=blocks,
        block_size=block_size,
        models=tuple(sorted({_model(sample) for sample in shown} - {""})),
        pulse=tuple(map(_finite, moving)),
    )


def _sum(samples: Iterable[Sample]) -> int | None:
    by_model: defaultdict[str, list[int | None]] = defaultdict(list)
    for sample in samples:
        by_model[_model(sample)].append(_whole(sample))
    largest = [_largest(counts) for counts in by_model.values()]
    known = [count for count in largest if count is not None]
    return sum(known) if known and len(known) == len(largest) else None


def _capacity(found: _Found, rank: int, engines: int) -> tuple[int | None, int | None]:
    for at in CAPACITIES:
        share = engines if at.summed else 1
        for sample in found.get((at.info or at.blocks, rank), ()):
            if at.info:
                blocks, size = (_digits(sample.labels.get(x)) for x in (at.blocks, at.block_size))
            else:
                sizes = found.get((at.block_size, rank))
                blocks, size = _whole(sample), _whole(sizes[0]) if sizes else None
            return blocks // share if blocks else None, size or None
    return None, None


def _model(sample: Sample) -> str:
    return sample.labels.get(MODEL_LABEL, "")


_Number = TypeVar("_Number", int, float)


def _largest(values: Sequence[_Number | None]) -> _Number | None:
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


def _finite(sample: Sample) -> float | None:
    value = sample.value
    return float(value) if 0.0 <= value < math.inf else None


def _ratio(sample: Sample) -> float | None:
    value = sample.value
    return float(value) if 0.0 <= value <= 1.0 else None


def _whole(sample: Sample) -> int | None:
    value = sample.value
    return int(value) if 0.0 <= value < 2**53 and value == int(value) else None


def _digits(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 15 else None
