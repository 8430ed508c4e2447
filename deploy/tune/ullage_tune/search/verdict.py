"""Whether a setting is better than the default, by draws that the search has not seen.

What a search finds best is so on its own draws in part by luck: of many trials the luckiest leads.
So it is run once more, with the default, on other seeds.

    overall   seed by seed: exp of the mean over cells of the log ratio; then median and interval
    better    all of the interval is on the better side of 1, at `CONFIDENCE` or more

The interval is that of `compare`. Fewer than `LEAST_SEEDS` cannot reach that confidence.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from ullage_tune.compare import CONFIDENCE, Comparison, Spread, compare, interval, spread
from ullage_tune.grid import Cell, Grid
from ullage_tune.search.objective import Aim, log_ratio, loss

LEAST_SEEDS: Final = next(n for n in count(1) if interval(n)[1] >= CONFIDENCE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a setting gains. Ratios are the setting's ÷ the default's."""

    aim: Aim
    overall: Spread
    cells: tuple[Comparison, ...]

    @property
    def better(self) -> bool:
        """Surely."""
        return self.overall.confidence >= CONFIDENCE and self._surely(self.overall)

    @property
    def worse_in(self) -> Sequence[Comparison]:
        """Cells in which it is surely worse."""
        return [c for c in self.cells if c.confidence >= CONFIDENCE and self._surely(c, worse=True)]

    def _surely(self, found: Spread | Comparison, *, worse: bool = False) -> bool:
        below = self.aim.statistic.lower_is_better != worse
        return found.high < 1.0 if below else found.low > 1.0


def judge(grid: Grid, cells: Sequence[Cell], aim: Aim, policy: str, against: str) -> Verdict:
    """Of runs on the same seeds in each cell. Raises `PairError` where one is missing."""
    compared = tuple(compare(grid, cell, aim.statistic, policy, against) for cell in cells)
    sign = 1.0 if aim.statistic.lower_is_better else -1.0
    ratios = []
    for seed in grid.seeds(cells[0], policy):
        logs = [
            log_ratio(aim, grid.seeds(cell, policy)[seed], grid.seeds(cell, against)[seed])
            for cell in cells
        ]
        ratios.append(math.exp(sign * loss(logs)))
    return Verdict(aim, spread(ratios), compared)
