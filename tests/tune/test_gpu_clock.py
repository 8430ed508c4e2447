"""The time line of a live twin."""

import random

import pytest

from ullage_tune.live.gpu_clock import GpuClock


def test_a_first_step_takes_its_time_from_now() -> None:
    assert GpuClock().due_s(0.02, now_s=100.0) == 100.02


def test_what_the_engine_does_between_two_steps_is_within_the_second_one() -> None:
    clock = GpuClock()
    clock.due_s(0.02, now_s=100.0)
    assert clock.due_s(0.02, now_s=100.025) == pytest.approx(100.04)


def test_after_idling_a_step_begins_when_it_is_asked_for() -> None:
    clock = GpuClock()
    clock.due_s(0.02, now_s=100.0)
    clock.idle()
    assert clock.due_s(0.02, now_s=100.025) == pytest.approx(100.045)


def test_late_wake_ups_do_not_add_up() -> None:
    clock, dice, now_s = GpuClock(), random.Random(5), 0.0
    for _ in range(1000):
        now_s = clock.due_s(0.02, now_s) + dice.uniform(0.0, 0.02)
    assert clock.due_s(0.02, now_s) == pytest.approx(1001 * 0.02)
    assert clock.told() == {"steps": 1001, "busy_s": 20.02, "overruns": 0, "lost_s": 0.0}


def test_an_engine_slower_than_the_step_is_an_overrun_and_owes_nothing() -> None:
    clock = GpuClock()
    clock.due_s(0.02, now_s=100.0)
    assert clock.due_s(0.02, now_s=100.07) == 100.07
    assert clock.told() == {"steps": 2, "busy_s": 0.04, "overruns": 1, "lost_s": 0.03}
    assert clock.due_s(0.02, now_s=100.07) == pytest.approx(100.09)


def test_one_that_asks_just_as_the_step_would_end_has_lost_nothing() -> None:
    clock = GpuClock()
    clock.due_s(0.5, now_s=1.0)
    assert clock.due_s(0.5, now_s=2.0) == 2.0
    assert clock.overruns == 0
