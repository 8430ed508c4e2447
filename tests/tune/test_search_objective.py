"""A setting's worth on one draw, and what never counts for."""

import math
from itertools import pairwise

import pytest

from synthetic_runs import summary
from ullage_tune.search.objective import AIMS, NEVER, cost, log_ratio, loss

P99, P50, E2E, GOODPUT = (AIMS[name] for name in ("ttft_p99", "ttft_p50", "e2e_p99", "goodput"))
NEVER_AT_ALL = summary(None, None)


@pytest.mark.parametrize("aim", [P99, P50])
def test_twice_as_late_and_half_as_late_cancel_out(aim):
    once, twice = summary(1.0), summary(2.0)
    assert log_ratio(aim, twice, once) == pytest.approx(math.log(2.0))
    assert loss([log_ratio(aim, twice, once), log_ratio(aim, once, twice)]) == pytest.approx(0.0)
    assert log_ratio(aim, once, once) == 0.0


def test_of_goodput_more_is_better():
    good, half = summary(1.0, 1.0), summary(1.0, 99.0)
    assert log_ratio(GOODPUT, good, half) == pytest.approx(-math.log(2.0))
    assert log_ratio(GOODPUT, half, good) == pytest.approx(math.log(2.0))


def test_a_setting_that_never_serves_loses_by_ten_and_is_finite():
    assert log_ratio(P99, NEVER_AT_ALL, summary(3.0)) == pytest.approx(math.log(NEVER))
    assert log_ratio(GOODPUT, summary(99.0), summary(1.0)) == pytest.approx(math.log(NEVER))


def test_nothing_is_worse_than_never():
    default = summary(1.0)
    worse = [log_ratio(P99, summary(ttft_s), default) for ttft_s in (2.0, 9.0, 11.0, None)]
    assert all(a <= b for a, b in pairwise(worse))
    assert worse[-2] == worse[-1]


def test_where_the_default_never_serves_the_faster_of_two_that_do_is_better():
    default = summary(*[1.0] * 97, None, None, None)  # Its p97 is 1 s, its p99 never.
    slow, fast = (log_ratio(P99, summary(ttft_s), default) for ttft_s in (4.0, 2.0))
    assert slow == pytest.approx(math.log(4.0 / NEVER))
    assert fast == pytest.approx(math.log(2.0 / NEVER))
    assert log_ratio(P99, NEVER_AT_ALL, default) == 0.0


@pytest.mark.parametrize("aim", AIMS.values())
def test_never_against_never_is_a_tie_and_nothing_is_ever_infinite(aim):
    runs = (summary(1.0), summary(1.0, None), NEVER_AT_ALL, summary(99.0))
    for ours in runs:
        for theirs in runs:
            assert math.isfinite(log_ratio(aim, ours, theirs))
        assert log_ratio(aim, ours, ours) == 0.0


@pytest.mark.parametrize("aim", AIMS.values())
def test_one_draw_on_which_it_never_serves_is_not_outweighed_by_nine_of_a_fifth_less(aim):
    worse = log_ratio(aim, NEVER_AT_ALL, summary(1.0))
    assert loss([worse, *[math.log(0.8)] * 9]) > 0.0


def test_a_run_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="TTFT p99: nothing measured"):
        cost(P99.statistic, summary())
