"""How fast requests end, and the Retry-After that follows."""

from math import exp, inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage_router.core.drain import DrainRate, retry_after_s

SECONDS = st.floats(-1e6, 1e6)


def steady(per_s: float, for_s: float, begin_s: float = 100.0) -> DrainRate:
    rate = DrainRate()
    for n in range(int(per_s * for_s) + 1):
        rate.ended(begin_s + n / per_s)
    return rate


@pytest.mark.parametrize("for_s", [2.0, 10.0, 100.0])
def test_a_steady_rate_is_known_within_seconds_and_stays_known(for_s: float) -> None:
    assert steady(100.0, for_s).per_s(100.0 + for_s) == pytest.approx(100.0, rel=0.01)


def test_random_ends_are_known_as_well_as_ten_seconds_of_them_allow() -> None:
    """A decayed count over tau has the spread of 2·tau·rate Poisson events; 4 σ."""
    rng, rate, now_s = Random(5), DrainRate(), 0.0
    while now_s < 200.0:
        now_s += rng.expovariate(50.0)
        rate.ended(now_s)
    assert rate.per_s(now_s) == pytest.approx(50.0, abs=4 * 50.0 / (2 * 10.0 * 50.0) ** 0.5)


def test_the_rate_follows_a_change_with_a_time_constant_of_ten_seconds() -> None:
    rate = steady(100.0, 100.0)
    for n in range(1, 101):
        rate.ended(200.0 + n / 10.0)
    assert rate.per_s(210.0) == pytest.approx(10.0 + 90.0 * exp(-1.0), rel=0.02)


@pytest.mark.parametrize(
    ("ahead", "per_s", "wait_s"),
    [(0, 10.0, 1), (9, 10.0, 1), (10, 10.0, 2), (255, 10.0, 26), (299, 10.0, 30), (0, 0.05, 20)],
)
def test_retry_after_is_those_ahead_and_oneself_over_the_rate(
    ahead: int, per_s: float, wait_s: int
) -> None:
    assert retry_after_s(ahead, per_s) == wait_s


@pytest.mark.parametrize(
    ("ahead", "per_s", "wait_s"),
    [(0, 1e9, 1), (0, inf, 1), (300, 10.0, 30), (10**9, 10.0, 30), (0, 1 / 31, 30), (0, 0.0, 30)],
)
def test_it_is_never_less_than_a_second_nor_more_than_thirty(
    ahead: int, per_s: float, wait_s: int
) -> None:
    assert retry_after_s(ahead, per_s) == wait_s


def test_before_anything_has_ended_it_is_thirty_seconds() -> None:
    assert DrainRate().per_s(0.0) == 0.0
    assert retry_after_s(0, 0.0) == 30


def test_the_first_end_counts_as_one_a_second() -> None:
    rate = DrainRate()
    rate.ended(5.0)
    assert rate.per_s(5.0) == pytest.approx(1.0, rel=0.06)


def test_two_ends_at_once_are_no_rate_of_thousands() -> None:
    rate = DrainRate()
    rate.ended(5.0)
    rate.ended(5.0005)
    assert rate.per_s(5.0005) == pytest.approx(2.0, rel=0.06)


def test_after_thirty_seconds_of_silence_nothing_is_known_whatever_was_before() -> None:
    rate = steady(1_000.0, 10.0)
    assert rate.per_s(140.0) > 0.0
    assert rate.per_s(140.001) == 0.0


def test_an_idle_night_does_not_make_the_morning_look_slow() -> None:
    rate = steady(100.0, 60.0)
    for n in range(201):
        rate.ended(40_000.0 + n / 100.0)
    assert rate.per_s(40_002.0) == pytest.approx(100.0, rel=0.01)


def test_a_clock_set_back_begins_anew() -> None:
    rate = steady(100.0, 60.0)
    assert rate.per_s(50.0) == 0.0
    rate.ended(50.0)
    assert rate.per_s(50.0) == pytest.approx(1.0, rel=0.06)


@given(st.lists(SECONDS, max_size=50), SECONDS, st.integers(0, 10_000))
def test_whatever_the_clock_says_it_is_one_to_thirty_seconds(
    ends_s: list[float], now_s: float, ahead: int
) -> None:
    rate = DrainRate()
    for end_s in ends_s:
        rate.ended(end_s)
    assert 1 <= retry_after_s(ahead, rate.per_s(now_s)) <= 30


@given(st.integers(0, 10_000), st.floats(0.0, 1e9))
def test_with_more_ahead_or_a_slower_rate_it_is_never_sooner(ahead: int, per_s: float) -> None:
    wait_s = retry_after_s(ahead, per_s)
    assert wait_s <= retry_after_s(ahead + 1, per_s)
    assert wait_s <= retry_after_s(ahead, per_s / 2)
