import logging
import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage_sidecar.channel import decode
from ullage_sidecar.core.reading import Reading
from ullage_sidecar.stats import StepEncoder

FIELD_OF = {
    "num_running_reqs": "running",
    "num_waiting_reqs": "waiting",
    "num_skipped_waiting_reqs": "waiting",
    "kv_cache_usage": "kv_usage",
    "prefix_cache_stats.queries": "prefix_queries",
    "prefix_cache_stats.hits": "prefix_hits",
    "num_prompt_tokens": "prompt_tokens",
    "num_generation_tokens": "generated_tokens",
    "num_preempted_reqs": "preemptions",
}
NONSENSE = [None, math.nan, math.inf, -1, "7", b"7", [], {}, 2**70, 10**5000, 1j, object()]


class Raising:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __get__(self, *_: object) -> object:
        raise self.error


def scheduler_stats(**changed: object) -> SimpleNamespace:
    usual: dict[str, object] = {
        "num_running_reqs": 5,
        "num_waiting_reqs": 2,
        "num_skipped_waiting_reqs": 1,
        "kv_cache_usage": 0.25,
        "prefix_cache_stats": SimpleNamespace(queries=100, hits=60),
    }
    return SimpleNamespace(**(usual | changed))


def iteration_stats(**changed: object) -> SimpleNamespace:
    usual: dict[str, object] = {
        "num_prompt_tokens": 40,
        "num_generation_tokens": 5,
        "num_preempted_reqs": 1,
    }
    return SimpleNamespace(**(usual | changed))


def spoil(path: str, value: object = ...) -> tuple[Any, Any]:
    """Both stats objects with the attribute at `path` replaced, or removed."""
    scheduler, iteration = scheduler_stats(), iteration_stats()
    owner_path, _, name = path.rpartition(".")
    owner = iteration if hasattr(iteration, name) else scheduler
    owner = getattr(owner, owner_path) if owner_path else owner
    if value is ...:
        delattr(owner, name)
    else:
        setattr(owner, name, value)
    return scheduler, iteration


def read(encoder: StepEncoder, scheduler: object, iteration: object) -> Reading:
    reading = decode(encoder.step(scheduler, iteration, 17.5))
    assert isinstance(reading, Reading)
    return reading


WHOLE = Reading(
    sender=42,
    seq=1,
    at_s=17.5,
    running=5,
    waiting=3,
    kv_usage=0.25,
    prompt_tokens=40,
    generated_tokens=5,
    preemptions=1,
    prefix_queries=100,
    prefix_hits=60,
)


def as_dict(reading: Reading, without: str = "") -> dict[str, object]:
    return {name: getattr(reading, name) for name in reading.__slots__ if name != without}


def test_a_step_says_what_vllm_said_and_skipped_requests_wait_too() -> None:
    assert read(StepEncoder(42), scheduler_stats(), iteration_stats()) == WHOLE


def test_a_vllm_that_never_had_skipped_requests_is_whole_and_nothing_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler, iteration = spoil("num_skipped_waiting_reqs")

    reading = read(StepEncoder(42), scheduler, iteration)

    assert reading.waiting == 2
    assert as_dict(reading, "waiting") == as_dict(WHOLE, "waiting")
    assert not caplog.records


def test_deltas_become_totals_since_the_start() -> None:
    encoder = StepEncoder(42)
    for _ in range(9):
        encoder.step(scheduler_stats(), iteration_stats(), 1.0)

    tenth = read(encoder, scheduler_stats(), iteration_stats())

    assert (tenth.seq, tenth.prompt_tokens, tenth.generated_tokens) == (10, 400, 50)
    assert (tenth.preemptions, tenth.prefix_queries, tenth.prefix_hits) == (10, 1000, 600)


def test_a_step_without_tokens_leaves_the_totals() -> None:
    encoder = StepEncoder(42)
    encoder.step(scheduler_stats(), iteration_stats(), 1.0)

    assert read(encoder, scheduler_stats(), None).generated_tokens == 5


def test_tokens_of_a_step_whose_stats_went_elsewhere_are_in_the_next_total() -> None:
    encoder = StepEncoder(42)
    encoder.count(iteration_stats())
    encoder.count(None)

    reading = read(encoder, scheduler_stats(), iteration_stats())

    assert (reading.seq, reading.prompt_tokens, reading.generated_tokens) == (1, 80, 10)


@pytest.mark.parametrize("path", sorted(FIELD_OF.keys() - {"num_skipped_waiting_reqs"}))
def test_a_lost_field_is_unknown_and_the_others_stay(path: str) -> None:
    scheduler, iteration = spoil(path)

    reading = read(StepEncoder(42), scheduler, iteration)

    assert getattr(reading, FIELD_OF[path]) is None
    assert as_dict(reading, FIELD_OF[path]) == as_dict(WHOLE, FIELD_OF[path])


@pytest.mark.parametrize("value", NONSENSE, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("path", FIELD_OF)
def test_a_field_that_makes_no_sense_is_unknown_and_the_others_stay(
    path: str, value: object
) -> None:
    scheduler, iteration = spoil(path, value)

    reading = read(StepEncoder(42), scheduler, iteration)

    assert getattr(reading, FIELD_OF[path]) is None
    assert as_dict(reading, FIELD_OF[path]) == as_dict(WHOLE, FIELD_OF[path])


def test_both_cache_totals_are_unknown_without_prefix_cache_stats() -> None:
    reading = read(StepEncoder(42), scheduler_stats(prefix_cache_stats=None), iteration_stats())

    assert (reading.running, reading.prefix_queries, reading.prefix_hits) == (5, None, None)


def test_an_attribute_that_raises_is_unknown() -> None:
    class Broken:
        num_running_reqs = Raising(RuntimeError("no"))
        num_waiting_reqs = 2
        num_skipped_waiting_reqs = 1
        kv_cache_usage = 0.25
        prefix_cache_stats = SimpleNamespace(queries=100, hits=60)

    assert as_dict(read(StepEncoder(42), Broken(), iteration_stats()), "running") == as_dict(
        WHOLE, "running"
    )


@pytest.mark.parametrize(
    ("usage", "known"),
    [(0.0, True), (1.0, True), (0, True), (1, True), (-1e-9, False), (1.0 + 1e-9, False)],
)
def test_usage_is_known_from_0_to_1(usage: float, known: bool) -> None:
    reading = read(StepEncoder(42), scheduler_stats(kv_cache_usage=usage), None)

    assert reading.kv_usage == (usage if known else None)


def test_usage_is_known_again_after_one_bad_step() -> None:
    encoder = StepEncoder(42)
    encoder.step(scheduler_stats(kv_cache_usage=None), iteration_stats(), 1.0)

    reading = read(encoder, scheduler_stats(), iteration_stats())

    assert (reading.kv_usage, reading.generated_tokens) == (0.25, 10)


def test_a_total_that_missed_a_part_stays_unknown() -> None:
    encoder = StepEncoder(42)
    encoder.step(scheduler_stats(), iteration_stats(num_prompt_tokens=None), 1.0)

    reading = read(encoder, scheduler_stats(), iteration_stats())

    assert (reading.prompt_tokens, reading.generated_tokens) == (None, 10)


def test_a_total_too_large_to_count_by_ones_is_unknown() -> None:
    encoder = StepEncoder(42)
    for _ in range(3):
        encoder.step(scheduler_stats(), iteration_stats(num_prompt_tokens=2**52), 1.0)

    assert read(encoder, scheduler_stats(), iteration_stats()).prompt_tokens is None


def test_an_unknown_field_is_named_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    encoder = StepEncoder(42)
    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            encoder.step(*spoil("kv_cache_usage"), 1.0)
            encoder.step(*spoil("num_running_reqs", "five"), 1.0)

    assert [record.getMessage() for record in caplog.records] == [
        "Ullage: vLLM's stats.kv_cache_usage is not there; it is reported as unknown",
        "Ullage: vLLM's stats.num_running_reqs is not a number from 0 to 9.0072e+15; "
        "it is reported as unknown",
    ]


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.complex_numbers(),
    st.lists(st.integers()),
    st.builds(object),
)
NAMES = [path for path in FIELD_OF if "." not in path]


def namespaces(names: list[str], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(st.sampled_from(names), values).map(lambda d: SimpleNamespace(**d))


PREFIX = namespaces(["queries", "hits"], ANYTHING)
STATS = namespaces([*NAMES, "prefix_cache_stats"], ANYTHING | PREFIX) | ANYTHING


@given(steps=st.lists(st.tuples(STATS, STATS), max_size=5))
def test_whatever_the_stats_are_each_step_is_a_datagram_that_decodes(
    steps: list[tuple[object, object]],
) -> None:
    encoder = StepEncoder(42)
    for seq, (scheduler, iteration) in enumerate(steps, start=1):
        assert read(encoder, scheduler, iteration).seq == seq
