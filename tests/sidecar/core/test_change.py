"""What is worth telling at once: each rule at its edges."""

import timeit
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage_sidecar.core.change import has_only_stepped, may_move, moved
from ullage_sidecar.core.engine import Drain, Engine, Undrain
from ullage_sidecar.core.fold import fold, fold_steps
from ullage_sidecar.core.health import Probe
from ullage_sidecar.core.reading import Hello, Reading
from ullage_sidecar.core.settings import Settings
from ullage_sidecar.core.signals import Signals

T = 1000.0
HELLO = Hello(1, "vllm", "boot-1", 11, started_s=T - 500.0, max_num_seqs=256)


def heard(hello=HELLO):
    engine = Engine("vllm", 0, T, Signals.of(Settings()))
    return fold(fold(engine, Probe(None), T), hello, T)


def stepped(engine, running=100, waiting=0, kv_usage=0.5, seq=1):
    return fold(engine, Reading(1, seq, T + seq, running, waiting, kv_usage), T + seq)


def is_told(before, after):
    """Is the step from one reading to the other told? Values by name."""
    engine = stepped(heard(), **before)
    return moved(engine, stepped(engine, **before | after, seq=2))


def test_the_same_again_is_no_change():
    assert not is_told({}, {})


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [(100, 112, False), (100, 113, True), (100, 88, False), (100, 87, True)],
)
def test_running_is_told_from_a_twentieth_of_the_most_on(then, now, told):
    assert is_told({"running": then}, {"running": now}) is told


@pytest.mark.parametrize("most", [8, 1, None])
def test_of_a_small_or_unknown_most_every_request_is_told(most):
    engine = stepped(heard(replace(HELLO, max_num_seqs=most)), running=3)
    assert moved(engine, stepped(engine, running=4, seq=2))


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [
        (0, 1, True),
        (1, 0, True),
        (4, 5, True),
        (5, 6, False),
        (5, 7, True),
        (40, 41, False),
        (40, 49, False),
        (40, 50, True),
        (40, 30, True),
    ],
)
def test_waiting_is_told_by_how_much_longer_the_queue_is(then, now, told):
    assert is_told({"waiting": then}, {"waiting": now}) is told


@pytest.mark.parametrize(
    ("now", "told"), [(0.519, False), (0.521, True), (0.481, False), (0.479, True)]
)
def test_free_blocks_are_told_from_a_fiftieth_of_the_pool_on(now, told):
    assert is_told({"kv_usage": 0.5}, {"kv_usage": now}) is told


def test_small_steps_add_up():
    engine = first = stepped(heard(), running=0)
    for seq in range(2, 14):
        engine = stepped(engine, running=seq - 1, seq=seq)
        assert not moved(first, engine)
    assert moved(first, stepped(engine, running=13, seq=14))


@pytest.mark.parametrize("signal", ["running", "waiting", "kv_usage"])
def test_what_becomes_known_or_unknown_is_told(signal):
    engine = stepped(heard())
    unknown = stepped(engine, **{signal: None}, seq=2)
    assert moved(engine, unknown)
    assert moved(unknown, stepped(unknown, seq=3))
    assert not moved(unknown, stepped(unknown, **{signal: None}, seq=3))


def test_what_changes_a_state_at_once_is_told():
    engine = stepped(heard())
    drained = fold(engine, Drain(), T)
    assert moved(engine, drained)
    assert moved(drained, fold(drained, Undrain(), T))
    down = fold(engine, Probe("refused"), T)
    assert moved(engine, down)
    assert moved(down, fold(down, Probe(None), T))
    reborn = replace(HELLO, boot_id="boot-2", started_s=T + 1.0)
    assert moved(engine, fold(engine, reborn, T + 2.0))
    unheard = Engine("vllm", 0, T, Signals.of(Settings()))
    assert moved(unheard, fold(unheard, HELLO, T))


def test_what_repeats_itself_is_not_told():
    engine = stepped(heard())
    for event in (HELLO, Probe(None), Undrain()):
        assert not moved(engine, fold(engine, event, T + 5.0))
    down = fold(engine, Probe("refused"), T)
    assert not moved(down, fold(down, Probe("refused"), T + 1.0))


@pytest.mark.parametrize(
    ("gauges", "told"),
    [
        ({}, False),
        ({"running": 112}, False),
        ({"running": 113}, True),
        ({"running": None}, True),
        ({"waiting": 1}, True),
        ({"kv_usage": 0.519}, False),
        ({"kv_usage": 0.521}, True),
        ({"kv_usage": None}, True),
    ],
)
def test_of_a_step_that_has_only_come_it_is_known_whether_it_may_be_told(gauges, told):
    engine = stepped(heard())
    step = Reading(1, 2, T + 2.0, **{"running": 100, "waiting": 0, "kv_usage": 0.5} | gauges)
    assert may_move(engine, step) is told


def test_the_first_step_of_an_engine_that_has_not_answered_yet_may_be_told():
    unanswered = Engine("vllm", 0, T, Signals.of(Settings()))
    assert may_move(fold(unanswered, HELLO, T), Reading(1, 1, T, None, None, None))


some_steps = st.lists(
    st.builds(
        Reading,
        sender=st.integers(1, 3),
        seq=st.integers(0, 9),
        at_s=st.floats(T - 5.0, T + 5.0),
        running=st.none() | st.integers(85, 115),
        waiting=st.none() | st.integers(0, 2),
        kv_usage=st.none() | st.floats(0.47, 0.53),
    ),
    max_size=9,
)


@given(some_steps, some_steps, some_steps, st.floats(T, T + 9.0))
def test_steps_none_of_which_may_be_told_do_not_move_an_engine(before, first, later, now_s):
    then = fold(heard(), replace(HELLO, sender=2), T)
    for step in before:
        then = fold(then, step, T)
    engine = then
    for steps in (first, later):
        for sender in (1, 2, 3):
            said = [step for step in steps if step.sender == sender]
            said = [step for step in said if not may_move(then, step)]
            engine = fold_steps(engine, said, now_s)
    assert not moved(then, engine)
    assert has_only_stepped(then, engine)


@pytest.mark.parametrize("ask", [moved, has_only_stepped])
def test_it_costs_next_to_nothing(ask):
    """It is asked at every step; the limit is ten times what it takes."""
    engine = stepped(heard())
    now = stepped(engine, seq=2)
    calls = 2000
    assert min(timeit.repeat(lambda: ask(engine, now), number=calls, repeat=5)) / calls < 10e-6
