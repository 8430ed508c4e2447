"""One policy against another, on the same seeds.

    ratio      the median over seeds of  statistic(policy) ÷ statistic(against)
    interval   from the k-th smallest ratio to the k-th greatest, with the greatest k for which
               1 − 2·Σ_{i<k} C(n, i)/2ⁿ  ≥  `CONFIDENCE`

The interval is the sign test's, turned round: it holds the true median of the ratios with at least
that probability, whatever their distribution (Conover, Practical Nonparametric Statistics, 3.2).
Not a bootstrap, which promises more than five values can tell. Few seeds make it wide: five give
it from the least ratio to the greatest, at 94 %; four or fewer cannot reach 90 %, and then the
confidence that they do reach (88, 75, 50, 0 %) is what `Comparison.confidence` says.

Never against never is a tie (1), as is nothing against nothing. A comparison that lacks one side of
a pair is refused by name: what happens to be missing is seldom missing at random.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from ullage_tune.grid import Cell, Grid, PairError, Statistic
from ullage_tune.measure import Summary

CONFIDENCE: Final = 0.90
"""As much is wanted."""


class Spread(NamedTuple):
    """What several ratios tell."""

    ratio: float
    """Their median."""
    low: float
    high: float
    confidence: float
    """With which `low` to `high` holds the true median, 0..1."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A policy ÷ another one."""

    cell: Cell
    statistic: Statistic
    policy: str
    against: str
    ratio: float
    """≥ 0; `math.inf`: never, against something."""
    low: float
    high: float
    confidence: float
    """With which `low` to `high` holds the true median, 0..1."""
    pairs: int


def compare(grid: Grid, cell: Cell, statistic: Statistic, policy: str, against: str) -> Comparison:
    """Pair by seed. Raises `PairError` where a side of a pair is missing, or measured nothing."""
    ours, theirs = grid.seeds(cell, policy), grid.seeds(cell, against)
    for name, missing in ((policy, theirs.keys() - ours), (against, ours.keys() - theirs)):
        if missing:
            seeds = ", ".join(map(str, sorted(missing)))
            raise PairError(f"{cell}: {name}: no result for seed {seeds}")

    def value(name: str, seed: int, summary: Summary) -> float:
        known = statistic.of(summary)
        if known is None:
            raise PairError(f"{cell}: {name}, seed {seed}: no {statistic.title}: nothing measured")
        return known

    ratios = [
        _ratio(value(policy, seed, ours[seed]), value(against, seed, theirs[seed])) for seed in ours
    ]
    return Comparison(cell, statistic, policy, against, *spread(ratios), len(ratios))


def spread(ratios: Sequence[float]) -> Spread:
    """Median and interval of at least one ratio."""
    ordered = sorted(ratios)
    rank, confidence = interval(len(ordered))
    return Spread(median(ordered), ordered[rank - 1], ordered[-rank], confidence)


def hardest(
    grid: Grid, cell: Cell, statistic: Statistic, policy: str, rivals: Sequence[str]
) -> Comparison | None:
    """Against the rival that `policy` does worst against; `None`: there is none.

    The worst of many ratios is unlucky besides: whoever meets a limit here meets it everywhere.
    """
    found = [compare(grid, cell, statistic, policy, rival) for rival in rivals]
    if statistic.lower_is_better:
        return max(found, key=lambda c: c.ratio, default=None)
    return min(found, key=lambda c: c.ratio, default=None)


def interval(pairs: int) -> tuple[int, float]:
    """The rank from either end at which the interval begins, and its confidence. `pairs` ≥ 1."""
    rank, confidence, beyond = 1, 1.0 - 2.0 / 2**pairs, 1
    while rank < pairs // 2:
        beyond += math.comb(pairs, rank)
        inner = 1.0 - 2.0 * beyond / 2**pairs
        if inner < CONFIDENCE:
            break
        rank, confidence = rank + 1, inner
    return rank, confidence


def _ratio(ours: float, theirs: float) -> float:
    if ours == theirs:
        return 1.0
    return ours / theirs if theirs else math.inf
