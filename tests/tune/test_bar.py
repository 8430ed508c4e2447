"""Where the bar is met, missed, and not sure to be."""

import pytest

from synthetic_runs import summary
from ullage_tune.bar import BARS, Mark, judge
from ullage_tune.grid import Cell, Grid, Measured

CELL = Cell("chat", load=0.85)


def marks(cell: Cell = CELL, **ttfts: list[float]) -> dict[tuple[str, bool], Mark]:
    """How ours stands, by statistic and whether against the bound."""
    grid = Grid(
        Measured(cell, policy, seed, summary(value))
        for policy, values in ttfts.items()
        for seed, value in enumerate(values)
    )
    return {(v.bar.statistic.title, v.bar.bound): v.mark for v in judge(grid, cell)}


def test_better_than_every_rival_and_as_good_as_the_bound_meets_all_bars():
    found = marks(ullage=[1.0] * 5, rival=[2.0] * 5, omniscient=[1.0] * 5)
    assert set(found.values()) == {Mark.MET}
    assert len(found) == len(BARS)


def test_a_tie_with_a_rival_is_enough():
    assert set(marks(ullage=[1.0] * 5, rival=[1.0] * 5).values()) == {Mark.MET}


def test_worse_than_one_of_many_rivals_on_every_seed_is_missed():
    found = marks(ullage=[1.0] * 5, bad=[9.0] * 5, good=[0.9] * 5)
    assert found["TTFT p99", False] is Mark.MISSED
    assert found["TTFT p50", False] is Mark.MISSED


def test_worse_by_the_median_and_better_on_one_seed_is_unsure():
    found = marks(ullage=[1.0] * 5, rival=[0.9, 0.9, 0.9, 0.9, 1.5])
    assert found["TTFT p99", False] is Mark.UNSURE


@pytest.mark.parametrize(
    ("routers", "ours_s", "mark"),
    [
        (1, 1.10, Mark.MET),
        (1, 1.11, Mark.MISSED),
        (4, 1.11, Mark.MET),
        (4, 1.25, Mark.MET),
        (4, 1.26, Mark.MISSED),
    ],
)
def test_the_bound_may_be_missed_by_more_where_several_routers_share(routers, ours_s, mark):
    cell = Cell("chat", routers, load=0.85)
    found = marks(cell, ullage=[ours_s] * 5, omniscient=[1.0] * 5)
    assert found["TTFT p99", True] is mark


@pytest.mark.parametrize(("good", "mark"), [(98, Mark.MET), (97, Mark.MISSED)])
def test_two_per_cent_less_goodput_is_allowed_and_not_three(good, mark):
    late_s = 9.0  # Above 5 s is not good.
    ours = summary(*[1.0] * good, *[late_s] * (100 - good))
    rows = [Measured(CELL, "ullage", 0, ours), Measured(CELL, "rival", 0, summary(*[1.0] * 100))]
    found = {v.bar.statistic.title: v.mark for v in judge(Grid(rows), CELL)}
    assert found["goodput"] is mark


def test_alone_there_is_nothing_to_miss():
    assert set(marks(ullage=[1.0]).values()) == {Mark.MET}
