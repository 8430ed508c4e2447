"""Policies are compared on the same seeds, or not at all."""

import math
from itertools import combinations_with_replacement
from random import Random
from statistics import median

import pytest

from synthetic_runs import summary
from ullage_tune.compare import CONFIDENCE, compare, hardest, interval
from ullage_tune.grid import GOODPUT, TTFT_P99, Cell, Grid, Measured, PairError, in_full

CELL = Cell("chat", load=0.85)


def grid(**ttfts: list[float | None]) -> Grid:
    """Of each policy: a run per TTFT, whose seed is its place."""
    return Grid(
        Measured(CELL, policy, seed, summary(value))
        for policy, values in ttfts.items()
        for seed, value in enumerate(values)
    )


def test_the_ratio_is_the_median_of_the_pairs_ratios_and_not_the_ratio_of_medians():
    table = grid(a=[1.0, 20.0, 3.0], b=[2.0, 10.0, 4.0])
    found = compare(table, CELL, TTFT_P99, "a", "b")
    assert (found.ratio, found.low, found.high, found.pairs) == (0.75, 0.5, 2.0, 3)


@pytest.mark.parametrize(
    ("pairs", "rank", "confidence"),
    [
        (1, 1, 0.0),
        (2, 1, 0.5),
        (3, 1, 0.75),
        (4, 1, 0.875),
        (5, 1, 0.9375),
        (7, 1, 1 - 2 / 128),
        (8, 2, 1 - 18 / 256),
        (11, 3, 1 - 134 / 2048),
    ],
)
def test_the_interval_is_the_sign_tests(pairs, rank, confidence):
    assert interval(pairs) == (rank, pytest.approx(confidence))


def test_the_interval_is_the_narrowest_that_keeps_the_confidence_that_is_wanted():
    for pairs in range(5, 60):
        rank, confidence = interval(pairs)
        assert confidence >= CONFIDENCE
        inner = 1 - 2 * sum(math.comb(pairs, i) for i in range(rank + 1)) / 2**pairs
        assert inner < CONFIDENCE
        assert 1 <= rank <= (pairs + 1) // 2


def test_the_interval_holds_the_median_as_often_as_it_says():
    dice, trials, pairs = Random(5), 4000, 8
    rank, confidence = interval(pairs)
    held = 0
    for _ in range(trials):
        ratios = sorted(dice.lognormvariate(0.0, 1.0) for _ in range(pairs))  # Their median is 1.
        held += ratios[rank - 1] <= 1.0 <= ratios[-rank]
    sigma = math.sqrt(confidence * (1 - confidence) / trials)
    assert abs(held / trials - confidence) < 4 * sigma


def test_a_missing_pair_is_an_error_that_names_cell_policy_and_seed():
    with pytest.raises(PairError, match=r"chat, 85% load: b: no result for seed 1, 2"):
        compare(grid(a=[1.0, 1.0, 1.0], b=[1.0]), CELL, TTFT_P99, "a", "b")
    with pytest.raises(PairError, match=r"chat, 85% load: a: no result for seed 1"):
        compare(grid(a=[1.0], b=[1.0, 1.0]), CELL, TTFT_P99, "a", "b")


def test_a_policy_that_was_not_measured_is_an_error_that_names_it():
    with pytest.raises(PairError, match=r"chat, 85% load: c: not measured"):
        compare(grid(a=[1.0]), CELL, TTFT_P99, "a", "c")
    with pytest.raises(PairError, match=r"long, 100% load: a: not measured"):
        compare(grid(a=[1.0]), Cell("long"), TTFT_P99, "a", "a")


def test_a_pair_in_which_nothing_was_measured_is_an_error():
    table = Grid(
        [Measured(CELL, "a", 0, summary(1.0)), Measured(CELL, "b", 0, summary())],
    )
    with pytest.raises(PairError, match=r"b, seed 0: no TTFT p99: nothing measured"):
        compare(table, CELL, TTFT_P99, "a", "b")


def test_two_results_for_one_place_are_an_error():
    row = Measured(CELL, "a", 4, summary(1.0))
    with pytest.raises(PairError, match=r"a, seed 4: there twice"):
        Grid([row, row])


@pytest.mark.parametrize(
    ("ours", "theirs", "ratio"),
    [
        (None, None, 1.0),
        (None, 2.0, math.inf),
        (2.0, None, 0.0),
        (0.0, 0.0, 1.0),
        (1.0, 0.0, math.inf),
    ],
)
def test_never_against_never_is_a_tie(ours, theirs, ratio):
    assert compare(grid(a=[ours], b=[theirs]), CELL, TTFT_P99, "a", "b").ratio == ratio


def test_the_hardest_rival_is_the_one_that_ours_does_worst_against():
    table = grid(ullage=[2.0, 6.0], near=[2.5, 6.5], far=[9.0, 9.0])
    found = hardest(table, CELL, TTFT_P99, "ullage", ["far", "near"])
    assert found is not None
    assert found.against == "near"
    assert hardest(table, CELL, TTFT_P99, "ullage", []) is None


def test_of_a_figure_that_should_be_high_the_hardest_rival_has_most():
    table = grid(ullage=[1.0], good=[1.0], bad=[9.0])  # Above 5 s is not good.
    found = hardest(table, CELL, GOODPUT, "ullage", ["bad", "good"])
    assert found is not None
    assert (found.against, found.ratio) == ("good", 1.0)


def test_comparing_is_antisymmetric_for_any_odd_number_of_pairs():
    for ours in combinations_with_replacement([1.0, 2.0, 8.0], 3):
        table = grid(a=list(ours), b=[4.0, 1.0, 2.0])
        there = compare(table, CELL, TTFT_P99, "a", "b")
        back = compare(table, CELL, TTFT_P99, "b", "a")
        assert there.ratio == pytest.approx(1 / back.ratio)
        assert (there.low, there.high) == (
            pytest.approx(1 / back.high),
            pytest.approx(1 / back.low),
        )


def test_rivals_are_all_but_ours_its_kin_and_the_bound():
    table = grid(ullage=[1.0], ullage_weighted=[1.0], omniscient=[1.0], b=[1.0], a=[1.0])
    assert table.rivals(CELL) == ["a", "b"]
    assert table.policies == ["ullage", "a", "b", "ullage_weighted", "omniscient"]


def test_the_median_of_seeds_is_of_all_of_them_or_of_none():
    table = grid(a=[1.0, 9.0, 2.0], b=[1.0, None])
    assert table.median(CELL, "a", TTFT_P99) == median([1.0, 9.0, 2.0])
    assert table.median(CELL, "b", TTFT_P99) == math.inf
    rows = [Measured(CELL, "a", 0, summary(1.0)), Measured(CELL, "a", 1, summary())]
    assert Grid(rows).median(CELL, "a", TTFT_P99) is None


def test_what_an_interrupted_run_can_show_is_where_every_policy_has_run():
    rows = [
        Measured(CELL, "a", 0, summary(1.0)),
        Measured(CELL, "a", 1, summary(1.0)),
        Measured(CELL, "b", 0, summary(1.0)),
    ]
    assert in_full(rows, ["a", "b"]) == (rows[0], rows[2])
    assert in_full([], ["a"]) == ()
