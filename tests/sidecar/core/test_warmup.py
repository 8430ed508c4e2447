"""A fresh server is held back until its warm-up has ended, or by its own uptime."""

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage_shared.snapshot import State
from ullage_sidecar.core.warmup import (
    MOST_ADAPTERS,
    Past,
    Phase,
    Progress,
    WarmUp,
    WarmUpSettings,
    after,
    broken_off,
    is_due,
    judge,
    settled,
)

DEFAULT = WarmUpSettings()
BY_UPTIME = WarmUpSettings(rounds=0)
MUCH = DEFAULT.most_tokens + 1
T = 1000.0
FRESH = Past(0.0, 0, seen=True)


def standing(phase, for_s=0.0, up_s=5.0, generated=0, settings=DEFAULT, seen=False):
    warmth = judge(WarmUp(phase, T - for_s), Past(up_s, generated, seen), settings, T)
    return warmth.state, warmth.factor


@pytest.mark.parametrize(
    ("up_s", "state", "factor"),
    [
        (0.0, State.WARMING, 0.0),
        (math.nextafter(30.0, 0.0), State.WARMING, 0.0),
        (30.0, State.RAMPING, 0.5),
        (math.nextafter(60.0, 0.0), State.RAMPING, 0.5),
        (60.0, State.SERVING, 1.0),
        (1e9, State.SERVING, 1.0),
    ],
)
def test_without_dummies_a_server_scores_nothing_for_30_s_half_until_60_s_then_all(
    up_s, state, factor
):
    for phase in Phase:
        assert standing(phase, up_s=up_s, settings=BY_UPTIME) == (state, factor)


def test_the_thresholds_are_the_operators():
    settings = WarmUpSettings(rounds=0, zero_until_s=0.0, ramp_until_s=5.0, ramp_factor=0.25)
    assert standing(Phase.UNTRIED, up_s=0.0, settings=settings) == (State.RAMPING, 0.25)
    assert standing(Phase.UNTRIED, up_s=5.0, settings=settings) == (State.SERVING, 1.0)


# Up for less than a minute, or watched all along? Has it generated more than a warm-up may?
@pytest.mark.parametrize(
    ("up_s", "generated", "seen", "due"),
    [
        (0.0, 0, False, True),
        (math.nextafter(60.0, 0.0), MUCH - 1, False, True),
        (60.0, 0, False, False),
        (0.0, MUCH, False, False),
        (3600.0, 0, True, True),  # it was drained since
        (3600.0, MUCH, True, False),
    ],
)
def test_an_engine_that_serves_already_is_not_warmed_up(up_s, generated, seen, due):
    expected = (State.WARMING, 0.0) if due else (State.SERVING, 1.0)
    assert standing(Phase.UNTRIED, up_s=up_s, generated=generated, seen=seen) == expected
    assert is_due(WarmUp(), Past(up_s, generated, seen), DEFAULT) == due


def test_a_warm_up_with_adapters_is_not_taken_for_traffic_by_the_next_sidecar():
    dummies = 1 + MOST_ADAPTERS + 2 * DEFAULT.rounds * DEFAULT.concurrency
    assert is_due(WarmUp(), Past(30.0, dummies * DEFAULT.generated_tokens, False), DEFAULT)


def test_a_drain_breaks_off_what_runs_and_nothing_else():
    assert broken_off(WarmUp(Phase.RUNNING, T, "status 500")) == WarmUp()
    for phase in set(Phase) - {Phase.RUNNING}:
        assert broken_off(WarmUp(phase, T)) == WarmUp(phase, T)


def test_dummies_are_due_once():
    for phase in set(Phase) - {Phase.UNTRIED}:
        assert not is_due(WarmUp(phase), FRESH, DEFAULT)
    assert not is_due(WarmUp(), FRESH, BY_UPTIME)


def test_its_own_dummies_do_not_make_it_count_as_serving():
    assert standing(Phase.RUNNING, up_s=100.0, generated=10 * MUCH) == (State.WARMING, 0.0)


@pytest.mark.parametrize(
    ("for_s", "state", "factor"),
    [
        (0.0, State.RAMPING, 0.5),
        (9.999, State.RAMPING, 0.5),
        (10.0, State.SERVING, 1.0),
        (-5.0, State.RAMPING, 0.5),  # the clock went back
    ],
)
def test_behind_a_warm_up_comes_half_the_score_for_10_s(for_s, state, factor):
    assert standing(Phase.WARM, for_s=for_s) == (state, factor)


@pytest.mark.parametrize(
    ("ramp", "factors"),
    [
        ({"ramp": "linear"}, (0.5, 0.75, 0.9)),
        ({"ramp": "linear", "ramp_factor": 0.0}, (0.0, 0.5, 0.8)),
        ({"ramp": "envoy", "ramp_factor": 0.1}, (0.1, 0.5, 0.8)),
        ({"ramp": "envoy", "ramp_factor": 0.1, "ramp_aggression": 2.0}, (0.1, 0.5**0.5, 0.8**0.5)),
    ],
)
def test_the_other_ramps_rise(ramp, factors):
    settings = WarmUpSettings(**ramp)
    for for_s, factor in zip((0.0, 5.0, 8.0), factors, strict=True):
        state, found = standing(Phase.WARM, for_s=for_s, settings=settings)
        assert (state, pytest.approx(found)) == (State.RAMPING, factor)
    assert standing(Phase.WARM, for_s=10.0, settings=settings) == (State.SERVING, 1.0)


def test_a_ramp_of_no_seconds_is_none():
    settings = WarmUpSettings(ramp="envoy", ramp_s=0.0)
    assert standing(Phase.WARM, settings=settings) == (State.SERVING, 1.0)


@given(
    ramp=st.sampled_from(["step", "linear", "envoy"]),
    factor=st.floats(0.0, 1.0),
    aggression=st.floats(0.001, 10.0),
    instants=st.lists(st.floats(0.0, 12.0), min_size=2, max_size=2).map(sorted),
)
def test_no_ramp_ever_falls_or_leaves_its_bounds(ramp, factor, aggression, instants):
    settings = WarmUpSettings(ramp=ramp, ramp_factor=factor, ramp_aggression=aggression)
    early, late = (standing(Phase.WARM, for_s=at_s, settings=settings)[1] for at_s in instants)
    assert factor <= early <= late <= 1.0


def test_what_is_not_done_in_120_s_is_given_up_and_comes_back_by_the_ramp():
    assert standing(Phase.RUNNING, for_s=120.0, up_s=130.0) == (State.WARMING, 0.0)
    assert standing(Phase.RUNNING, for_s=121.0, up_s=131.0) == (State.RAMPING, 0.5)
    assert standing(Phase.RUNNING, for_s=130.0, up_s=140.0) == (State.SERVING, 1.0)


def test_given_up_at_once_it_is_judged_by_uptime():
    assert standing(Phase.GIVEN_UP, for_s=1.0, up_s=2.0) == (State.WARMING, 0.0)
    assert standing(Phase.GIVEN_UP, for_s=39.0, up_s=40.0) == (State.RAMPING, 0.5)
    assert standing(Phase.GIVEN_UP, for_s=61.0, up_s=62.0) == (State.SERVING, 1.0)
    assert standing(Phase.GIVEN_UP, for_s=1.0, up_s=62.0) == (State.RAMPING, 0.5)


def test_what_was_given_up_says_why_for_good():
    warm_up = WarmUp(Phase.GIVEN_UP, T, "status 401")
    for later_s in (0.0, 50.0, 1e6):
        reason = judge(warm_up, Past(later_s, 0, False), DEFAULT, T + later_s).reason
        assert reason == "warm-up given up: status 401"
    old = Past(500.0, 0, False)
    slow = judge(WarmUp(Phase.RUNNING, T, "status 500"), old, DEFAULT, T + 500.0)
    assert slow.reason == "warm-up given up: not done within 120 s: status 500"
    mute = judge(WarmUp(Phase.RUNNING, T), old, DEFAULT, T + 500.0)
    assert mute.reason == "warm-up given up: not done within 120 s"


def test_everything_but_serving_says_why():
    for phase, for_s, up_s in product(Phase, (0.0, 5.0, 20.0, 125.0), (0.0, 40.0, 200.0)):
        warmth = judge(WarmUp(phase, T - for_s), Past(up_s, 0, False), DEFAULT, T)
        assert warmth.reason or warmth.state is State.SERVING


@pytest.mark.parametrize(
    ("rounds_s", "enough"),
    [
        ((), False),
        ((1.0, 1.0), False),  # fewer than three
        ((9.0, 1.0, 0.7), False),  # faster still
        ((9.0, 1.0, 0.8), True),
        ((9.0, 1.0, 5.0), True),  # slower is not faster
        ((9.0, 4.0, 2.0, 1.0, 0.9), True),
        ((0.0, 0.0, 0.0), True),
    ],
)
def test_enough_is_three_rounds_and_one_no_faster_than_the_one_before(rounds_s, enough):
    assert settled(rounds_s, DEFAULT) == enough


def test_one_round_is_never_enough():
    assert not settled((1.0,), WarmUpSettings(rounds=1))
    assert settled((1.0, 1.0), WarmUpSettings(rounds=1))


# What is left of each phase (row) by word of each (column).
TABLE = {
    Phase.UNTRIED: (Phase.UNTRIED, Phase.RUNNING, Phase.WARM, Phase.GIVEN_UP),
    Phase.RUNNING: (Phase.UNTRIED, Phase.RUNNING, Phase.WARM, Phase.GIVEN_UP),
    Phase.WARM: (Phase.WARM,) * 4,
    Phase.GIVEN_UP: (Phase.GIVEN_UP,) * 4,
}


def test_every_phase_has_its_row():
    assert set(TABLE) == set(Phase)
    assert all(len(row) == len(Phase) for row in TABLE.values())


@pytest.mark.parametrize(("phase", "word"), list(product(Phase, Phase)))
def test_what_has_ended_stays_so_and_a_fault_does_not_begin_it_anew(phase, word):
    found = after(WarmUp(phase, T, "before"), Progress("boot", word, "now"), T + 1.0)
    assert found.phase is TABLE[phase][list(Phase).index(word)]
    assert found.since_s == (T if found.phase is phase else T + 1.0)
    ended = phase in (Phase.WARM, Phase.GIVEN_UP)
    assert found.fault == ("before" if ended else "now")
