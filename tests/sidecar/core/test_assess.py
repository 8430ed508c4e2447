"""From signals to capacity: exact when all is known, and unknown by name when not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage_shared.snapshot import RequestClass, State
from ullage_sidecar.core.assess import assess
from ullage_sidecar.core.engine import Engine
from ullage_sidecar.core.fold import fold
from ullage_sidecar.core.health import Probe
from ullage_sidecar.core.reading import Hello, Reading
from ullage_sidecar.core.settings import Settings
from ullage_sidecar.core.signals import Signals
from ullage_sidecar.core.warmup import Phase, Progress

SETTINGS = Settings()
T = 1000.0
HELLO = Hello(1, "vllm", "boot-1", 1, started_s=T - 500.0, max_num_seqs=8)
STEP = Reading(1, 5, T - 3.0, 2, 1, 0.4)
WARM = Progress("boot-1", Phase.WARM)


def engine_after(*events):
    engine = Engine("vllm", 0, T - 400.0, Signals.of(SETTINGS))
    for event in (Probe(None), *events):
        engine = fold(engine, event, T)
    return engine


def steps(levels, rate_hz, hello=HELLO):
    """One level of (running, waiting, kv_usage) per second, until T, told `rate_hz` times each."""
    engine, start_s = engine_after(), T - len(levels)
    engine = fold(engine, hello, start_s)
    for tick in range(len(levels) * rate_hz):
        at_s = start_s + tick / rate_hz
        engine = fold(engine, Reading(1, tick + 1, at_s, *levels[tick // rate_hz]), at_s)
    return engine


def test_a_steady_engine_scores_by_the_formula():
    judged = assess(engine_after(HELLO, STEP), SETTINGS, T)
    assert judged.capacity == pytest.approx(0.5 * 0.6 + 0.3 * 0.75 + 0.2 * 0.9)
    assert (judged.state, judged.reason) == (State.SERVING, "")
    assert (judged.terms.free, judged.terms.running, judged.terms.waiting) == (
        pytest.approx(0.6),
        pytest.approx(0.75),
        pytest.approx(0.9),
    )


def test_score_penalty_and_warm_up_are_multiplied():
    judged = assess(engine_after(HELLO, STEP._replace(waiting=3), WARM), SETTINGS, T)
    assert judged.state is State.RAMPING
    assert judged.capacity == pytest.approx((0.5 * 0.6 + 0.3 * 0.75 + 0.2 * 0.7) * 0.25 * 0.5)


def test_penalty_and_warm_up_are_the_same_for_every_class():
    judged = assess(engine_after(HELLO, STEP._replace(waiting=3), WARM), SETTINGS, T)
    assert judged.capacities == pytest.approx(
        {
            RequestClass.SHORT: (0.3 * 0.6 + 0.5 * 0.75 + 0.2 * 0.7) * 0.25 * 0.5,
            RequestClass.MIXED: (0.5 * 0.6 + 0.3 * 0.75 + 0.2 * 0.7) * 0.25 * 0.5,
            RequestClass.LONG: (0.65 * 0.6 + 0.15 * 0.75 + 0.2 * 0.7) * 0.25 * 0.5,
        }
    )


def test_few_free_blocks_and_few_running_leave_least_room_for_a_long_prompt():
    capacities = assess(engine_after(HELLO, STEP._replace(kv_usage=0.9)), SETTINGS, T).capacities
    long, mixed, short = (
        capacities[cls] for cls in (RequestClass.LONG, RequestClass.MIXED, RequestClass.SHORT)
    )
    assert long < mixed < short


def test_many_running_and_many_free_blocks_leave_least_room_for_a_short_prompt():
    busy = STEP._replace(running=8, kv_usage=0.1)
    capacities = assess(engine_after(HELLO, busy), SETTINGS, T).capacities
    long, mixed, short = (
        capacities[cls] for cls in (RequestClass.LONG, RequestClass.MIXED, RequestClass.SHORT)
    )
    assert short < mixed < long


@pytest.mark.parametrize(
    ("events", "later_s", "state"),
    [
        ((replace(HELLO, started_s=T - 10.0), STEP), 0.0, State.WARMING),
        ((HELLO, STEP, Probe("Connection refused", gone=True)), 0.0, State.DOWN),
        ((HELLO, STEP._replace(at_s=T - 31.0)), 0.0, State.HUNG),
        ((HELLO, STEP, Probe("Connection refused", gone=True)), 10.0, State.DOWN),
    ],
)
def test_a_state_that_serves_nothing_scores_0_in_every_class(events, later_s, state):
    judged = assess(engine_after(*events), SETTINGS, T + later_s)
    assert judged.state is state
    assert judged.capacities == dict.fromkeys(RequestClass, 0.0)


@pytest.mark.parametrize("rate_hz", [1, 10, 1000])
def test_reporting_rate_does_not_change_the_score(rate_hz):
    levels = [(1, 0, 0.1), (8, 4, 0.9), (3, 1, 0.5), (3, 1, 0.55), (6, 2, 0.8)]
    at_one_hz = assess(steps(levels, 1), SETTINGS, T).capacity
    assert assess(steps(levels, rate_hz), SETTINGS, T).capacity == pytest.approx(at_one_hz)


def test_a_fall_counts_before_the_blocks_are_gone():
    falling = steps([(4, 0, usage) for usage in (0.1, 0.2, 0.3, 0.4, 0.5)], 10)
    judged = assess(falling, SETTINGS, T)
    assert judged.levels.free == pytest.approx(0.7, abs=0.02)
    assert judged.levels.effective_free == pytest.approx(0.2, abs=0.03)
    assert judged.levels.exhaustion_s == pytest.approx(5.0, abs=0.3)


def test_blocks_freed_at_once_do_not_make_the_score_jump():
    busy = steps([(4, 0, 0.9)] * 10, 10)
    before = assess(busy, SETTINGS, T).capacity
    freed = fold(busy, Reading(1, 101, T, 4, 0, 0.1), T)
    assert assess(freed, SETTINGS, T + 0.1).capacity == pytest.approx(before, abs=0.02)


@pytest.mark.parametrize(
    ("hello", "step", "named"),
    [
        (HELLO, STEP._replace(kv_usage=None), "kv_usage"),
        (HELLO, STEP._replace(running=None), "running / max_num_seqs"),
        (HELLO, STEP._replace(waiting=None), "waiting"),
        (replace(HELLO, max_num_seqs=None), STEP._replace(waiting=0), "running / max_num_seqs"),
        (replace(HELLO, max_num_seqs=0), STEP, "running / max_num_seqs"),
    ],
)
def test_an_unknown_signal_makes_the_score_unknown_and_is_named(hello, step, named):
    judged = assess(engine_after(hello, step), SETTINGS, T)
    assert (judged.capacity, judged.capacities) == (None, {})
    assert judged.reason == f"unknown: {named}"
    assert judged.state is State.SERVING


def test_hidden_steps_make_the_score_unknown_and_say_why():
    judged = assess(engine_after(replace(HELLO, unstepped=1)), SETTINGS, T)
    assert (judged.state, judged.capacity) == (State.SERVING, None)
    assert "--disable-log-stats" in judged.reason


def test_a_silent_plugin_makes_every_signal_unknown():
    engine = engine_after(HELLO, STEP)
    assert assess(engine, SETTINGS, T + 3.0).capacity is not None
    judged = assess(engine, SETTINGS, T + 3.1)
    assert judged.capacity is None
    assert judged.reason == "its plugin is silent"
    assert judged.levels.free is None


def test_a_plugin_never_heard_of_is_said_so():
    judged = assess(engine_after(), SETTINGS, T)
    assert judged.capacity is None
    assert judged.reason == "its plugin was never heard of"


def test_a_state_that_serves_nothing_scores_0_even_when_signals_are_unknown():
    down = fold(engine_after(HELLO, STEP), Probe("Connection refused", gone=True), T)
    judged = assess(down, SETTINGS, T + 10.0)
    assert judged.capacity == 0.0
    assert judged.reason == "/health: Connection refused"


def test_idle_for_hours_is_empty_as_long_as_heartbeats_come():
    idle = STEP._replace(running=0, waiting=0, kv_usage=0.0)
    engine = fold(engine_after(HELLO, idle), idle, T + 7200.0)
    assert assess(engine, SETTINGS, T + 7200.0).capacity == 1.0


@given(
    st.integers(0, 16), st.integers(0, 40), st.floats(0.0, 1.0), st.floats(0.0, 1.0),
    st.sampled_from(["running", "waiting", "kv_usage"]),
)  # fmt: skip
def test_a_newest_reading_of_more_load_never_raises_the_score(running, waiting, one, other, signal):
    low, high = sorted((one, other))
    loads = {
        "running": (int(low * 20), int(high * 20)),
        "waiting": (int(low * 20), int(high * 20)),
        "kv_usage": (low, high),
    }
    base = engine_after(HELLO, STEP)
    scores = []
    for load in loads[signal]:
        values = {"running": running, "waiting": waiting, "kv_usage": 0.5, signal: load}
        newest = STEP._replace(seq=6, at_s=T, **values)
        scores.append(assess(fold(base, newest, T), SETTINGS, T + 1.0).capacity)
    assert scores[1] <= scores[0] + 1e-12
