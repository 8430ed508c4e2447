"""What a setting is worth on one draw of a workload, and on several.

    log ratio   ln(cost of the setting ÷ cost of the default), both on the same requests
    loss        the mean of it over all cells and seeds; below 0 is better than the default

The cost is the statistic that is aimed at; of one that should be high, goodput, its reciprocal.

The mean is one of logarithms because ratios multiply: half and twice as late cancel out, a workload
with long waits counts for no more than one with short ones, and it does not matter which of the two
is called the default. Pairing on one draw takes away what the draw does to both.

What never comes (TTFT p99, where more than 1 % are refused) is infinite, and a mean cannot hold
that. It counts as `NEVER` times the latest that the default was seen to serve on that draw: its own
figure, or where that is infinite too, the greatest finite one beside it. What is later still counts
as that much: nothing is worse than never. So a setting that refuses loses wherever the default does
not; of two settings that do not refuse where the default does, the faster one is better; and no
draw outweighs all the others.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from ullage_tune.grid import GOODPUT, STATISTICS, TTFT_P50, TTFT_P99, Statistic
from ullage_tune.measure import Summary

NEVER: Final = 10.0
_LEAST: Final = 1e-9
"""No cost is less: logarithms end at 0."""


class Aim(NamedTuple):
    """What a search makes better."""

    statistic: Statistic
    seen: Callable[[Summary], Sequence[float | None]]
    """Costs beside the statistic's, some of them finite, should that be infinite."""


_E2E_P99: Final = next(s for s in STATISTICS if s.name == "e2e_p99_s")

AIMS: Final[Mapping[str, Aim]] = {
    "ttft_p99": Aim(TTFT_P99, lambda summary: summary.ttft_curve_s),
    "ttft_p50": Aim(TTFT_P50, lambda summary: summary.ttft_curve_s),
    "e2e_p99": Aim(_E2E_P99, lambda summary: (summary.e2e_p50_s,)),
    "goodput": Aim(GOODPUT, lambda summary: (summary.requests,)),
}
"""By name."""


def cost(statistic: Statistic, summary: Summary) -> float:
    """Lower is better, `math.inf` never. `ValueError`: there was nothing to measure."""
    value = statistic.of(summary)
    if value is None:
        raise ValueError(f"{statistic.title}: nothing measured")
    if statistic.lower_is_better:
        return max(_LEAST, value)
    return 1.0 / value if value else math.inf


def log_ratio(aim: Aim, setting: Summary, default: Summary) -> float:
    """Of two runs of the same requests. Finite; 0: they are alike."""
    ours, theirs = cost(aim.statistic, setting), cost(aim.statistic, default)
    if ours == theirs:
        return 0.0
    seen = theirs
    if theirs == math.inf:
        finite = (c for c in aim.seen(default) if c is not None and 0.0 < c < math.inf)
        seen = max(finite, default=ours)
    never = NEVER * seen
    return math.log(min(ours, never) / min(theirs, never))


def loss(log_ratios: Sequence[float]) -> float:
    """Of at least one."""
    return math.fsum(log_ratios) / len(log_ratios)
