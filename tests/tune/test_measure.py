"""A run in figures, at its edges."""

import math
from random import Random

import numpy as np
import pytest

from synthetic_runs import outcome, run_of, summary
from ullage_tune.measure import CURVE_PER_MILLE, Slo, quantile, summarise

SLO = Slo(ttft_s=2.0, tpot_s=0.1)


@pytest.mark.parametrize(
    ("values", "per_mille", "wanted"),
    [
        ([], 500, None),
        ([7.0], 0, 7.0),
        ([7.0], 500, 7.0),
        ([7.0], 1000, 7.0),
        ([1.0, 2.0], 500, 1.0),
        ([1.0, 2.0], 501, 2.0),
        ([1.0, 2.0], 990, 2.0),
        ([1.0, 2.0, 3.0], 500, 2.0),
        (list(range(1, 101)), 990, 99),
        (list(range(1, 101)), 70, 7),  # 0.07 · 100 is more than 7 in floats.
        (list(range(1, 102)), 990, 100),
    ],
)
def test_a_quantile_is_the_least_value_that_its_share_does_not_exceed(values, per_mille, wanted):
    assert quantile(values, per_mille) == wanted


def test_quantiles_are_numpys_inverted_cdf():
    dice = Random(3)
    for size in (1, 2, 5, 16, 333):
        values = sorted(dice.lognormvariate(0.0, 2.0) for _ in range(size))
        for per_mille in (125, 250, 500, 875, 1000):  # Exact in floats, as numpy has them.
            known = np.quantile(values, per_mille / 1000, method="inverted_cdf")
            assert quantile(values, per_mille) == known


def test_no_requests_measure_nothing():
    empty = summary()
    assert empty.requests == empty.refused == empty.failed == 0
    assert empty.ttft_p50_s is empty.e2e_p99_s is empty.tpot_p50_s is None
    assert empty.goodput is empty.hit_rate is None
    assert empty.finished_per_s == 0.0
    assert empty.ttft_curve_s == ()


def test_one_request_is_all_its_quantiles():
    one = summarise(run_of(outcome(1.5, 0.05, output_tokens=11)), SLO)
    assert one.ttft_p50_s == one.ttft_p90_s == one.ttft_p99_s == 1.5
    assert one.tpot_p50_s == one.tpot_p99_s == pytest.approx(0.05)
    assert one.e2e_p50_s == one.e2e_p99_s == pytest.approx(2.0)
    assert one.goodput == 1.0
    assert one.finished_per_s == 0.1
    assert one.ttft_curve_s == (1.5,) * len(CURVE_PER_MILLE)


def test_of_two_requests_the_median_is_the_faster_and_all_above_it_the_slower():
    two = summary(1.0, 3.0)
    assert (two.ttft_p50_s, two.ttft_p90_s, two.ttft_p99_s) == (1.0, 3.0, 3.0)


def test_where_all_failed_everything_is_never_and_nothing_good():
    lost = summarise(run_of(outcome(None), outcome(None, replica=None)), SLO)
    assert (lost.requests, lost.refused, lost.failed) == (2, 1, 1)
    for value in (lost.ttft_p50_s, lost.ttft_p99_s, lost.tpot_p50_s, lost.e2e_p50_s):
        assert value == math.inf
    assert lost.goodput == 0.0
    assert lost.hit_rate is None
    assert set(lost.ttft_curve_s) == {math.inf}


def test_refusing_the_slow_ones_makes_no_quantile_better():
    fast = [1.0] * 98
    served, refusing = summary(*fast, 9.0, 9.0), summary(*fast, None, None)
    assert served.ttft_p99_s == 9.0
    assert refusing.ttft_p99_s == math.inf
    assert refusing.goodput == served.goodput == 0.98


def test_an_answer_that_broke_off_has_its_ttft_and_never_ended():
    broken = summarise(run_of(outcome(1.0, None)), SLO)
    assert broken.ttft_p50_s == 1.0
    assert broken.e2e_p50_s == broken.tpot_p50_s == math.inf
    assert (broken.failed, broken.goodput) == (1, 0.0)


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "tokens", "good"),
    [
        (2.0, 0.0625, 3, 1.0),
        (2.0, 0.0, 1, 1.0),  # One token: no TPOT, and no fault in it.
        (2.0001, 0.05, 3, 0.0),
        (1.0, 0.125, 3, 0.0),
        (None, None, 3, 0.0),
        (1.0, None, 1, 0.0),
    ],
)
def test_a_request_is_good_up_to_the_slo_and_not_beyond(ttft_s, tpot_s, tokens, good):
    run = run_of(outcome(ttft_s, tpot_s, output_tokens=tokens))
    assert summarise(run, SLO).goodput == good


def test_one_token_answers_have_no_tpot():
    assert summarise(run_of(outcome(1.0, 0.0, output_tokens=1)), SLO).tpot_p50_s is None


def test_hits_are_a_share_of_the_tokens_that_were_served():
    run = run_of(
        outcome(prompt_tokens=100, cached_tokens=80),
        outcome(prompt_tokens=300, cached_tokens=0),
        outcome(None, prompt_tokens=1000),
    )
    assert summarise(run, SLO).hit_rate == 0.2


@pytest.mark.parametrize(
    ("busy_s", "imbalance"),
    [((4.0, 4.0), 1.0), ((8.0, 0.0), 2.0), ((3.0, 2.0, 1.0), 1.5), ((0.0, 0.0), None), ((), None)],
)
def test_imbalance_is_the_busiest_replica_over_their_mean(busy_s, imbalance):
    assert summarise(run_of(outcome(), busy_s=busy_s), SLO).imbalance == imbalance


@pytest.mark.parametrize("name", ["ttft_s", "tpot_s"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_an_slo_that_nothing_can_keep_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=rf"slo\.{name} = .*wanted a number > 0"):
        Slo(**{name: value})
