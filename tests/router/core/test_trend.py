"""Trend (mission R6): each rule at its edges, then what holds after any history on any clock."""

from math import inf, nextafter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from snapshots import document, snapshot
from ullage_router.core.fleet import Fleet, fleet_of, hear, vouch
from ullage_router.core.trend import (
    AHEAD_S,
    FLAT,
    HELD_S,
    LEAST,
    STEP_S,
    Trend,
    factor,
    follow,
    held,
)

INTERVAL_S = 0.5
A, SIDECAR = "http://a:8000", "http://sidecar:9400"


def after(*scores: float | None, interval_s: float = INTERVAL_S) -> Trend:
    """Snapshots with these scores have come, one per interval."""
    trend = FLAT
    for number, score in enumerate(scores):
        trend = follow(trend, score, 100.0 + number * interval_s)
    return trend


def test_a_replica_of_which_little_was_heard_is_not_weighted_down() -> None:
    assert factor(FLAT) == factor(after(0.4)) == 1.0


def test_one_fall_is_noise_and_two_are_a_trend() -> None:
    assert factor(after(0.8, 0.6)) == 1.0
    assert factor(after(0.8, 0.7, 0.6)) < 1.0


def test_the_factor_leads_to_where_the_score_will_be_in_a_second() -> None:
    falling = after(0.9, 0.85, 0.8)  # 0.1 a second: 0.7 in a second.
    assert 0.8 * factor(falling) == pytest.approx(0.8 - 0.1 * AHEAD_S)


def test_a_longer_run_is_judged_by_its_mean_fall() -> None:
    falling = after(0.9, 0.8, 0.79, 0.78)  # 0.12 in 1.5 s.
    assert 0.78 * factor(falling) == pytest.approx(0.78 - 0.08 * AHEAD_S)


def test_how_often_snapshots_come_does_not_change_the_answer() -> None:
    seldom = after(0.9, 0.8, 0.7, interval_s=1.0)
    often = after(0.9, 0.85, 0.8, 0.75, 0.7, interval_s=0.5)
    assert factor(seldom) == pytest.approx(factor(often))


def test_what_is_pushed_all_the_time_is_judged_as_what_is_asked_for() -> None:
    asked = after(0.9, 0.8, 0.7, interval_s=0.5)
    pushed = after(*(0.9 - 0.004 * n for n in range(51)), interval_s=0.02)
    assert factor(pushed) == pytest.approx(factor(asked), abs=0.02)


def test_falls_in_quick_succession_are_one_fall_and_rises_end_nothing() -> None:
    assert factor(after(0.9, 0.8, 0.7, 0.6, interval_s=0.02)) == 1.0
    trend = after(0.9, 0.8, 0.7)
    assert follow(trend, 0.71, trend.to_s + STEP_S / 2.0) is trend
    assert factor(follow(trend, 0.71, trend.to_s + STEP_S)) == 1.0


@pytest.mark.parametrize(("later_s", "falls"), [(STEP_S, 1), (nextafter(STEP_S, 0.0), 0)])
def test_a_step_is_a_quarter_of_a_second_or_more(later_s: float, falls: int) -> None:
    assert follow(Trend(0, 0.7, 0.0, 0.7, 0.0), 0.6, later_s).falls == falls


def test_a_replica_is_weighted_down_before_it_is_full() -> None:
    falling = after(0.7, 0.6, 0.5)
    assert falling.to_score == 0.5
    assert 0.5 * factor(falling) == pytest.approx(0.3)


def test_the_steepest_fall_halves_a_score_and_no_more() -> None:
    assert factor(after(1.0, 0.6, 0.2)) == LEAST == 0.5


def test_of_a_score_of_nothing_there_is_nothing_to_take() -> None:
    assert factor(after(1.0, 0.6, 0.0)) == 1.0


@pytest.mark.parametrize(("first", "counts"), [(0.04, True), (nextafter(0.04, 0.0), False)])
def test_falls_count_once_they_have_come_to_a_fiftieth(first: float, counts: bool) -> None:
    assert (factor(after(first, 0.03, 0.02)) < 1.0) == counts


@pytest.mark.parametrize("then", [0.5, nextafter(0.5, 1.0), 0.9])
def test_a_score_that_stays_or_rises_ends_the_run_at_once(then: float) -> None:
    trend = after(0.7, 0.6, 0.5, then)
    assert factor(trend) == 1.0
    assert factor(follow(trend, then - 0.1, 200.0)) == 1.0  # The next fall is the first one again.


def test_an_unknown_score_begins_anew() -> None:
    assert factor(after(0.7, 0.6, None, 0.5)) == 1.0
    assert factor(after(0.7, 0.6, None, 0.5, 0.4)) == 1.0
    assert factor(after(0.7, 0.6, None, 0.5, 0.4, 0.3)) < 1.0


@pytest.mark.parametrize("now_s", [101.0, nextafter(101.0, 0.0), 0.0])
def test_a_clock_that_stands_or_was_set_back_begins_anew(now_s: float) -> None:
    trend = after(0.7, 0.6, 0.5)  # The last one came at 101.0.
    assert follow(trend, 0.4, now_s) == Trend(0, 0.4, now_s, 0.4, now_s)


SCORES = st.one_of(st.none(), st.floats(0.0, 1.0), st.sampled_from([0.0, 5e-324, 0.02, 0.5, 1.0]))
MOMENTS = st.one_of(st.floats(-1e12, 1e12), st.sampled_from([0.0, 5e-324, 1e-300, 1.0]))


@settings(deadline=None, max_examples=200)
@example([(1.0, 0.0), (0.5, 5e-324), (5e-324, 1e-323)])
@given(st.lists(st.tuples(SCORES, MOMENTS), max_size=12))
def test_after_any_history_the_factor_is_between_a_half_and_one(
    history: list[tuple[float | None, float]],
) -> None:
    trend = FLAT
    for score, now_s in history:
        trend = follow(trend, score, now_s)
        for later in (trend, held(trend, now_s + 1.0), held(trend, now_s - 1.0)):
            assert LEAST <= factor(later) <= 1.0  # NaN is not.


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12))
def test_a_replica_that_does_not_fall_is_never_weighted_down(scores: list[float]) -> None:
    assert factor(after(*sorted(scores))) == 1.0


def heard(score: float, seq: int, now_s: float, fleet: Fleet, boot_id: str = "boot") -> Fleet:
    published = document(snapshot(A, score, seq=seq, boot_id=boot_id))
    after, faults = hear(fleet, SIDECAR, published, now_s)
    assert faults == ()
    return after


def falling_fleet() -> Fleet:
    fleet = fleet_of([A])
    for seq, score in enumerate([0.7, 0.6, 0.5], start=1):
        fleet = heard(score, seq, float(seq), fleet)
    return fleet


def test_the_fleet_follows_each_replicas_score() -> None:
    assert factor(falling_fleet().replicas[A].trend) < 1.0


def test_a_new_incarnation_begins_anew() -> None:
    fleet = heard(0.4, 1, 4.0, falling_fleet(), boot_id="next")
    assert factor(fleet.replicas[A].trend) == 1.0
    assert fleet.replicas[A].trend.falls == 0


@pytest.mark.parametrize("unchanged", ["same document", "not modified"])
def test_a_picture_looked_at_twice_does_not_end_a_fall(unchanged: str) -> None:
    """An aggregator reports every second (mission R7), and routers ask it every half second."""
    fleet = fleet_of([A])
    for seq, score in enumerate([0.7, 0.6, 0.5, 0.4], start=1):
        fleet = heard(score, seq, float(seq), fleet)
        if unchanged == "same document":
            fleet = heard(score, seq, seq + 0.5, fleet)
        else:
            fleet = vouch(fleet, SIDECAR, seq + 0.5)
    assert factor(fleet.replicas[A].trend) < 1.0


@pytest.mark.parametrize(
    ("later_s", "falls"), [(0.0, 2), (HELD_S, 2), (nextafter(HELD_S, inf), 0), (-0.1, 0)]
)
def test_a_run_ends_once_the_same_picture_has_stood_for_too_long(
    later_s: float, falls: int
) -> None:
    trend = Trend(2, 0.7, -1.0, 0.5, 0.0)
    assert held(trend, later_s).falls == falls
    assert held(trend, later_s).to_score == 0.5


def test_a_score_that_no_longer_falls_is_soon_whole_again() -> None:
    fleet = vouch(vouch(falling_fleet(), SIDECAR, 4.0), SIDECAR, 6.0)
    assert factor(fleet.replicas[A].trend) == 1.0
