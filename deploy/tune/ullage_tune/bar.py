"""The bar, and whether it is met.

    statistic   against                     limit on the ratio
    TTFT p99    every rival                 ≤ 1
    TTFT p99    omniscient                  ≤ 1.10 with one router, ≤ 1.25 with several
    TTFT p50    every rival                 ≤ 1.02
    goodput     every rival                 ≥ 0.98

Ratios are paired medians (`compare`). `MISSED`: they miss it, all of the interval does; `UNSURE`:
the median does, and the interval reaches to where it would be met; `MET`: the median meets it. Of
the rivals it is the hardest that decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from ullage_tune.compare import Comparison, compare, hardest
from ullage_tune.grid import GOODPUT, OMNISCIENT, OURS, TTFT_P50, TTFT_P99, Cell, Grid, Statistic


class Bar(NamedTuple):
    """One thing to keep."""

    statistic: Statistic
    bound: bool
    """Against the omniscient; else against every rival."""
    limit: float
    """Of the ratio: at most where lower is better, else at least."""
    limit_several: float
    """The same with several routers."""


BARS: Final = (
    Bar(TTFT_P99, bound=False, limit=1.0, limit_several=1.0),
    Bar(TTFT_P99, bound=True, limit=1.10, limit_several=1.25),
    Bar(TTFT_P50, bound=False, limit=1.02, limit_several=1.02),
    Bar(GOODPUT, bound=False, limit=0.98, limit_several=0.98),
)


class Mark(Enum):
    """How it stands with a bar, and the sign for it."""

    MET = ""
    UNSURE = "?"
    MISSED = "✗"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One bar in one cell."""

    bar: Bar
    comparison: Comparison | None
    """`None`: there was nobody to compare with."""
    limit: float
    mark: Mark


def judge(grid: Grid, cell: Cell) -> Sequence[Verdict]:
    """All of `BARS`, in their order. Raises `PairError` where ours was not measured in full."""
    verdicts = []
    for bar in BARS:
        limit = bar.limit if cell.routers == 1 else bar.limit_several
        if not bar.bound:
            found = hardest(grid, cell, bar.statistic, OURS, grid.rivals(cell))
        elif OMNISCIENT in grid.in_cell(cell):
            found = compare(grid, cell, bar.statistic, OURS, OMNISCIENT)
        else:
            found = None
        mark = Mark.MET if found is None else _mark(found, limit)
        verdicts.append(Verdict(bar, found, limit, mark))
    return verdicts


def _mark(found: Comparison, limit: float) -> Mark:
    if found.statistic.lower_is_better:
        missed, surely = found.ratio > limit, found.low > limit
    else:
        missed, surely = found.ratio < limit, found.high < limit
    if not missed:
        return Mark.MET
    return Mark.MISSED if surely else Mark.UNSURE
