"""What lengths are drawn from."""

import math
from random import Random
from statistics import mean, median

import pytest

from ullage_tune.draws import (
    LEVELS,
    Draw,
    Exponential,
    LogNormal,
    LogUniform,
    Quantiles,
    Uniform,
    tokens,
)

N = 20_000


def drawn(draw: Draw) -> list[float]:
    rng = Random(11)
    return [draw(rng) for _ in range(N)]


def test_a_uniform_has_its_bounds_and_its_mean() -> None:
    values = drawn(Uniform(20, 200))
    assert 20 <= min(values) < 21
    assert 199 < max(values) <= 200
    assert mean(values) == pytest.approx(Uniform(20, 200).mean, abs=4 * 52 / math.sqrt(N))  # 4σ


def test_a_log_uniform_has_as_many_below_its_geometric_mean_as_above() -> None:
    values = drawn(LogUniform(200, 4_000))
    assert min(values) >= 200
    assert max(values) <= 4_000
    assert median(values) == pytest.approx(math.sqrt(200 * 4_000), rel=0.04)


def test_a_log_normal_has_its_median_and_nothing_piles_up_at_its_bounds() -> None:
    values = drawn(LogNormal(median=300, sigma=0.6, least=100, most=900))
    assert min(values) >= 100
    assert max(values) <= 900
    assert median(values) == pytest.approx(300, rel=0.02)
    assert sum(value in (100, 900) for value in values) == 0


def test_an_exponential_has_its_mean() -> None:
    assert mean(drawn(Exponential(20.0))) == pytest.approx(20.0, abs=4 * 20 / math.sqrt(N))  # 4σ


def test_quantiles_are_met_at_their_levels_and_straight_between() -> None:
    values = tuple(float(k * k) for k in range(len(LEVELS)))
    sample = Quantiles(values)
    assert [sample.at(level) for level in LEVELS] == pytest.approx(values)
    middle = (LEVELS[4] + LEVELS[5]) / 2.0
    assert sample.at(middle) == pytest.approx((values[4] + values[5]) / 2.0)


def test_a_sample_of_one_value_is_that_value() -> None:
    assert set(drawn(Quantiles((7.0,) * len(LEVELS)))) == {7.0}


def test_quantiles_that_fall_or_are_too_few_are_refused() -> None:
    with pytest.raises(ValueError, match=f"values: 2 of them, wanted {len(LEVELS)}"):
        Quantiles((1.0, 2.0))
    with pytest.raises(ValueError, match="must not fall"):
        Quantiles((1.0,) * (len(LEVELS) - 1) + (0.5,))


@pytest.mark.parametrize(("value", "wanted"), [(0.2, 1), (-5.0, 1), (7.4, 7), (7.6, 8)])
def test_tokens_are_whole_and_at_least_one(value: float, wanted: int) -> None:
    assert tokens(lambda _: value, Random(0)) == wanted
