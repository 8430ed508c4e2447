"""A window's answer is an integral over time: it depends on the signal, not on the reporter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage_sidecar.core.window import SLOTS, Window

values = st.floats(0.0, 1e6)
gaps_s = st.floats(1e-6, 20.0)
histories = st.lists(st.tuples(values | st.none(), gaps_s), min_size=1, max_size=40)


def filled(history, span_s=5.0, start_s=100.0):
    """A window after (value, seconds that it holds) pairs, and the time at their end."""
    window, now_s = Window(span_s), start_s
    for value, held_s in history:
        window = window.push(value, now_s)
        now_s += held_s
    return window, now_s


def test_an_empty_window_is_unknown():
    assert Window(5.0).mean(7.0) is None
    assert Window(5.0).quantile(0.5, 7.0) is None


@pytest.mark.parametrize("now_s", [100.0, 100.001, 104.0, 1e6])
def test_one_reading_is_the_answer_for_ever(now_s):
    window = Window(5.0).push(3.0, 100.0)
    assert window.mean(now_s) == pytest.approx(3.0)
    assert window.quantile(0.5, now_s) == 3.0


def test_the_mean_weighs_by_time_and_not_by_reading():
    window, now_s = filled([(0.0, 4.0), (10.0, 0.5), (10.0, 0.25), (10.0, 0.25)])
    assert window.mean(now_s) == pytest.approx(2.0)


def test_only_the_last_span_counts():
    window, now_s = filled([(100.0, 50.0), (1.0, 2.5), (2.0, 2.5)])
    assert window.mean(now_s) == pytest.approx(1.5)


def test_the_window_moves_while_nobody_reports():
    window, now_s = filled([(0.0, 5.0), (1.0, 0.0)])
    means = [window.mean(now_s + silence_s) for silence_s in (0.0, 1.0, 2.5, 5.0, 1e5)]
    assert means == pytest.approx([0.0, 0.2, 0.5, 1.0, 1.0])


@given(histories, values, st.floats(5.0, 1e6))
def test_after_a_span_of_silence_the_window_is_the_held_value(history, last, silence_s):
    window, now_s = filled(history)
    window = window.push(last, now_s)
    assert window.mean(now_s + silence_s) == pytest.approx(last)
    assert window.quantile(0.5, now_s + silence_s) == last


@pytest.mark.parametrize("rate_hz", [1, 10, 1000])
def test_reporting_rate_does_not_change_the_answer(rate_hz):
    levels = [0.9, 0.9, 0.2, 0.5, 0.5, 0.7]
    window = Window(5.0)
    for tick in range(len(levels) * rate_hz):
        window = window.push(levels[tick // rate_hz], 100.0 + tick / rate_hz)
    now_s = 100.0 + len(levels)
    assert window.mean(now_s) == pytest.approx((0.9 + 0.2 + 0.5 + 0.5 + 0.7) / 5)
    assert window.quantile(0.5, now_s) == 0.5


@pytest.mark.parametrize("rate_hz", [50, 500, 5000])
def test_merging_short_stretches_keeps_the_mean(rate_hz):
    window = Window(5.0)
    for tick in range(5 * rate_hz):
        window = window.push(float(tick % 2), 100.0 + tick / rate_hz)
    assert window.mean(105.0) == pytest.approx(0.5, abs=0.01)


def slots_of(window):
    return [*window.old, *window.young, *filter(None, [window.filling])]


@given(histories)
def test_a_window_never_holds_more_than_twice_its_slots(history):
    window = Window(5.0)
    now_s = 100.0
    for value, gap_s in history * 20:
        window = window.push(value, now_s)
        now_s += gap_s / 1000.0
        assert len(slots_of(window)) <= 2 * SLOTS + 2


@given(histories, st.floats(0.0, 12.0))
def test_sums_kept_at_hand_are_the_sums_over_all_slots(history, later_s):
    """To the last slot that leaves, and whatever the window went through before."""
    window, now_s = Window(5.0), 100.0
    for value, gap_s in history * 3:
        window = window.push(value, now_s)
        now_s += gap_s
        for at_s in (now_s, now_s + later_s):
            slots, read = window._each(at_s), window.moments(at_s)
            assert (read is None) == (not slots) == (window.mean(at_s) is None)
            if read is None:
                continue
            held_s = sum(slot.held_s for slot in slots)
            assert read.number == len(slots)
            assert (read.first_s, read.last_s) == (slots[0].read_s, slots[-1].read_s)
            assert read.held_s == pytest.approx(held_s)
            if held_s > 0.0:
                mean = sum(slot.held_s * slot.value for slot in slots) / held_s
                mean_s = sum(slot.held_s * slot.read_s for slot in slots) / held_s
                moves = [(s.held_s, s.read_s - mean_s, s.value - mean) for s in slots]
                assert read.value == pytest.approx(mean, rel=1e-9, abs=1e-6)
                assert read.read_s == pytest.approx(mean_s, rel=1e-9)
                spread = sum(w * t * t for w, t, _ in moves)
                assert read.spread == pytest.approx(spread, rel=1e-6, abs=1e-9)
                rise = sum(w * t * x for w, t, x in moves)
                assert read.rise == pytest.approx(rise, rel=1e-6, abs=1e-3)


@pytest.mark.parametrize("rate_hz", [3, 30, 300])
def test_a_window_that_was_never_still_forgets_what_has_left_it(rate_hz):
    """No sum has anything taken off it, so nothing of a monstrous value stays behind."""
    window = Window(5.0).push(9e15, 0.0)
    for tick in range(1, 20 * rate_hz):
        window = window.push(tick % 2, tick / rate_hz)
    assert window.mean(20.0) == pytest.approx(0.5, abs=0.05)
    window, now_s = window.push(0.25, 20.0), 26.0
    assert window.mean(now_s) == 0.25


@given(histories, st.floats(0.0, 30.0), st.floats(0.0, 1.0))
def test_every_answer_lies_within_what_was_read(history, later_s, q):
    window, now_s = filled(history)
    known = [value for value, _ in history if value is not None]
    for answer in (window.mean(now_s + later_s), window.quantile(q, now_s + later_s)):
        if history[-1][0] is None:
            assert answer is None
        else:
            assert min(known) - 1e-6 <= answer <= max(known) + 1e-6


@given(histories, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_higher_quantile_is_never_lower(history, one, other):
    window, now_s = filled([*history, (1.0, 0.5)])
    low, high = sorted((one, other))
    assert window.quantile(low, now_s) <= window.quantile(high, now_s)


def test_quantiles_are_shares_of_time():
    window, now_s = filled([(1.0, 1.0), (3.0, 1.0), (2.0, 3.0)])
    answers = [window.quantile(q, now_s) for q in (0.0, 0.2, 0.21, 0.8, 0.81, 1.0)]
    assert answers == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]


def test_unknown_now_is_unknown_and_unknown_before_has_no_weight():
    window, now_s = filled([(4.0, 2.0), (None, 2.0)])
    assert window.mean(now_s) is None
    window = window.push(8.0, now_s)
    assert window.mean(now_s + 1.0) == pytest.approx((4.0 * 2.0 + 8.0 * 1.0) / 3.0)


def test_an_older_reading_changes_nothing():
    window = Window(5.0).push(1.0, 100.0).push(2.0, 101.0)
    assert window.push(9.0, 100.5) is window


def test_of_two_readings_at_one_instant_the_later_to_arrive_holds():
    window = Window(5.0).push(1.0, 100.0).push(2.0, 101.0).push(3.0, 101.0)
    assert window.value == 3.0
    assert window.mean(102.0) == pytest.approx(2.0)


def test_a_clock_set_back_reads_as_no_time_passed():
    window, now_s = filled([(1.0, 2.0), (5.0, 0.0)])
    assert window.mean(now_s - 50.0) == window.mean(now_s) == pytest.approx(1.0)
