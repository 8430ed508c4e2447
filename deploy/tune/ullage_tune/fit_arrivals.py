"""How a trace's arrivals swing.

`cv² − 1/mean` of their counts, in windows of several widths, is a sum over swings of known memory
(see `arrivals`): the swings' variances are the least squares, none below 0.

Windows of less than two ticks of the recorder's clock would measure the clock.
"""

import math
from collections.abc import Sequence
from itertools import product
from typing import Final

import numpy as np

from ullage_tune.arrivals import Swing, dispersion
from ullage_tune.shape import counts

FAST_S: Final = 1.0
SLOW_S: Final = 300.0
"""Memories of the two swings: seconds, as people see a burst, and minutes, as they see a trend."""
WINDOWS_S: Final = (0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0)
TICKED_S: Final = (6.0, 12.0, 30.0, 60.0, 120.0)
"""For a clock with ticks of 3 s: whole ticks, two at least."""


def swings(instants_s: Sequence[float], windows_s: Sequence[float]) -> tuple[Swing, ...]:
    """Those that such arrivals have; none for plain Poisson."""
    memories_s = (FAST_S, SLOW_S)
    seen = []
    for window_s in windows_s:
        n = counts(instants_s, window_s, instants_s[-1])
        seen.append(float(np.var(n)) / float(np.mean(n)) ** 2 - 1.0 / float(np.mean(n)))
    unit = [Swing(math.sqrt(math.log(2.0)), memory_s) for memory_s in memories_s]
    shares = np.array([[dispersion(swing, w) for swing in unit] for w in windows_s])
    variances = _least_squares(shares, np.array(seen))
    return tuple(
        Swing(figures(math.sqrt(math.log1p(variance))), memory_s)
        for variance, memory_s in zip(variances, memories_s, strict=True)
        if variance > 0.0
    )


def _least_squares(
    shares: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]",
    seen: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]",
) -> list[float]:
    """The non-negative solution: of all subsets of columns the best whose solution is."""
    columns = shares.shape[1]
    best = [0.0] * columns
    least = float(np.sum(seen**2))
    for used in product((False, True), repeat=columns):
        chosen = [k for k in range(columns) if used[k]]
        if not chosen:
            continue
        solved, *_ = np.linalg.lstsq(shares[:, chosen], seen, rcond=None)
        error = float(np.sum((shares[:, chosen] @ solved - seen) ** 2))
        if solved.min() >= 0.0 and error < least:
            least = error
            best = [0.0] * columns
            for k, value in zip(chosen, solved, strict=True):
                best[k] = float(value)
    return best


def figures(value: float) -> float:
    """Four significant figures: more would claim what a sample cannot know."""
    return float(f"{value:.4g}")
