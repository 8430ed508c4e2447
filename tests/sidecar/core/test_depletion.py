"""A fall counts ahead of time, exactly on a line; a rise waits for the smoothed ratio."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage_sidecar.core.depletion import effective, exhaustion_s, predicted, slope_per_s
from ullage_sidecar.core.window import Window


def line(slope, rate_hz, seconds=4.0, start=0.9, span_s=5.0, repeat=1):
    """A free ratio on a line, each value reported `repeat` times before the next."""
    window = Window(span_s)
    for tick in range(int(seconds * rate_hz) + 1):
        for again in range(repeat):
            at_s = 100.0 + (tick + again / repeat) / rate_hz
            window = window.push(start + slope * tick / rate_hz, at_s)
    return window, 100.0 + seconds


@pytest.mark.parametrize("rate_hz", [1, 10, 1000])
@pytest.mark.parametrize("slope", [-0.2, -0.01, 0.02])
def test_the_slope_of_a_line_is_exact_at_any_reporting_rate(rate_hz, slope):
    window, now_s = line(slope, rate_hz)
    assert slope_per_s(window, now_s) == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("repeat", [1, 10, 100])
def test_repeating_a_value_does_not_change_the_slope(repeat):
    window, now_s = line(-0.1, rate_hz=2, repeat=repeat)
    assert slope_per_s(window, now_s) == pytest.approx(-0.1)


@pytest.mark.parametrize("rate_hz", [10, 1000])
def test_the_slope_is_near_exact_when_the_line_began_before_the_window(rate_hz):
    window, now_s = line(-0.02, rate_hz, seconds=20.0)
    assert slope_per_s(window, now_s) == pytest.approx(-0.02, rel=0.02)


@pytest.mark.parametrize("readings", [0, 1, 2])
def test_fewer_than_three_readings_have_no_slope(readings):
    window = Window(5.0)
    for number in range(readings):
        window = window.push(0.9 - 0.3 * number, 100.0 + number)
    assert slope_per_s(window, 103.0) is None


def test_three_readings_within_a_moment_are_noise_and_no_trend():
    window = Window(5.0)
    for number in range(3):
        window = window.push(0.9 - 0.01 * number, 100.0 + 0.01 * number)
    assert slope_per_s(window, 100.03) is None
    window = window.push(0.8, 101.5)
    assert slope_per_s(window, 101.5) is not None


def test_a_single_drop_is_not_extrapolated():
    window = Window(5.0).push(1.0, 90.0).push(0.5, 100.0)
    assert slope_per_s(window, 101.0) is None


def test_an_unknown_ratio_has_no_slope():
    window, now_s = line(-0.1, rate_hz=10)
    assert slope_per_s(window.push(None, now_s + 1.0), now_s + 2.0) is None


def test_a_fall_counts_as_far_ahead_as_asked():
    assert predicted(0.5, -0.1, 3.0) == pytest.approx(0.2)
    assert predicted(0.5, -0.3, 3.0) == 0.0
    assert predicted(0.5, None, 3.0) == 0.5
    assert predicted(0.9, 0.3, 3.0) == 1.0
    assert predicted(None, None, 3.0) is None


def test_a_finished_request_does_not_make_the_ratio_jump():
    """Its blocks are free at once: the latest ratio is 0.9, the smoothed one still 0.3."""
    assert effective(smoothed=0.3, ahead=predicted(0.9, 0.2, 3.0)) == 0.3


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(-10.0, 10.0) | st.none())
def test_the_effective_ratio_is_never_above_the_smoothed_one(smoothed, latest, slope):
    assert 0.0 <= effective(smoothed, predicted(latest, slope, 3.0)) <= smoothed


@pytest.mark.parametrize(
    ("latest", "slope", "expected"),
    [
        (0.5, -0.1, 5.0),
        (0.0, -0.1, 0.0),
        (0.5, 0.0, None),
        (0.5, 0.1, None),
        (0.5, None, None),
        (None, None, None),
        (0.5, -1e-300, None),
    ],
)
def test_exhaustion_is_foreseen_only_when_blocks_fall(latest, slope, expected):
    assert exhaustion_s(latest, slope) == (None if expected is None else pytest.approx(expected))


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(1e-3, 3.0)), min_size=3, max_size=60))
def test_a_newest_reading_with_more_free_blocks_never_predicts_fewer(history):
    window, now_s = Window(5.0), 100.0
    for value, gap_s in history:
        window = window.push(value, now_s)
        now_s += gap_s
    outlooks = []
    for latest in (0.2, 0.7):
        last = window.push(latest, now_s)
        outlooks.append(predicted(latest, slope_per_s(last, now_s + 0.5), 3.0))
    assert outlooks[0] <= outlooks[1] + 1e-9
