"""Better is what is so on draws that the search has not seen."""

import pytest

from synthetic_runs import summary
from ullage_tune.grid import Cell, Grid, Measured, PairError
from ullage_tune.search.objective import AIMS
from ullage_tune.search.setting import Setting
from ullage_tune.search.told import advice
from ullage_tune.search.verdict import LEAST_SEEDS, judge

A, B = Cell("a"), Cell("b")
SETTING = Setting({"window": {"span_s": 1.0}}, {"choose": {"exponent": 4.0}})


def verdict(aim="ttft_p99", **ttfts):
    """Of the setting's TTFTs in cells a and b, by seed; the default's are all 1 s."""
    rows = []
    for cell, values in ((A, ttfts["a"]), (B, ttfts.get("b", ()))):
        for seed, value in enumerate(values):
            rows.append(Measured(cell, "setting 3", seed, summary(value)))
            rows.append(Measured(cell, "default", seed, summary(1.0)))
    cells = [A, B] if "b" in ttfts else [A]
    return judge(Grid(rows), cells, AIMS[aim], "setting 3", "default")


def told(found):
    return "\n".join(advice(found, SETTING, "the default"))


def test_better_on_every_seed_is_better():
    found = verdict(a=[0.8, 0.7, 0.9, 0.8, 0.75])
    assert found.better
    assert found.overall.ratio == pytest.approx(0.8)
    assert (found.overall.low, found.overall.high) == pytest.approx((0.7, 0.9))
    assert "Better than the default: TTFT p99 0.80 [0.70–0.90]" in told(found)
    assert "[window]\nspan_s = 1.0" in told(found)
    assert "[choose]\nexponent = 4.0" in told(found)


@pytest.mark.parametrize("worst", [1.0, 1.2, None])
def test_where_the_interval_holds_one_it_is_no_better_and_nothing_is_to_be_pasted(worst):
    found = verdict(a=[0.5, 0.5, 0.5, 0.5, worst])
    assert not found.better
    assert told(found).startswith("No better than the default: TTFT p99 0.50 [0.50–")
    assert "span_s" not in told(found)


def test_worse_is_no_better():
    assert not verdict(a=[1.5] * 5).better


def test_too_few_seeds_prove_nothing():
    assert not verdict(a=[0.5] * (LEAST_SEEDS - 1)).better
    assert verdict(a=[0.5] * LEAST_SEEDS).better


def test_cells_count_alike_seed_by_seed():
    found = verdict(a=[0.5] * 5, b=[1.28] * 5)
    assert found.overall.ratio == pytest.approx(0.8)
    assert [c.ratio for c in found.cells] == [0.5, 1.28]


def test_a_workload_that_pays_for_another_is_named():
    found = verdict(a=[0.5] * 5, b=[1.2] * 5)
    assert found.better
    assert "But worse in b, 100% load: 1.20 [1.20–1.20]." in told(found)
    assert found.worse_in == [found.cells[1]]


def test_of_goodput_more_is_better():
    rows = []
    for seed in range(5):
        rows.append(Measured(A, "setting 3", seed, summary(1.0, 1.0)))
        rows.append(Measured(A, "default", seed, summary(1.0, 99.0)))
    found = judge(Grid(rows), [A], AIMS["goodput"], "setting 3", "default")
    assert found.overall.ratio == pytest.approx(2.0)
    assert found.better
    back = judge(Grid(rows), [A], AIMS["goodput"], "default", "setting 3")
    assert not back.better
    assert back.worse_in == list(back.cells)


def test_nothing_to_change_on_one_side_is_said():
    text = "\n".join(advice(verdict(a=[0.5] * 5), Setting({}, {"choose": {"exponent": 4.0}}), "it"))
    assert "# Nothing is to be changed for the sidecar." in text


def test_a_missing_run_is_an_error():
    rows = [Measured(A, "setting 3", 0, summary(1.0))]
    with pytest.raises(PairError, match="default: not measured"):
        judge(Grid(rows), [A], AIMS["ttft_p99"], "setting 3", "default")
