"""Seconds of a step from rows: least squares, none negative, that outliers cannot bend.

    minimise  Σ ρ( (seconds - X·model) / X·model )          X: steps, tokens, sequences, context

Errors are relative, so that short and long rows count alike. ρ is Huber's: a square up to `BEND`
times the usual error (1.48 times the median), linear beyond. Rows that are off by more than
`FAR` and by more than `BEND_OUT` usual errors are left out: a stall, a compilation, a clock that
jumped. It is solved by reweighting; each time the best of all sets of parameters that may be 0
is taken, which with four of them is exact (Lawson and Hanson's problem, by enumeration).

A parameter is told by the rows if
* its column varies on its own: what the others do not explain of it is at least `OWN` of it; and
* it is at least `SURE` times its standard error, or so small that even with twice that error it
  stays below `LITTLE` of the rows' seconds.
What is not told is not given as 0, nor anything else: whoever has it from elsewhere may fix it.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ullage_tune.fit.rows import Row
from ullage_tune.gpu import StepModel

LEAST_ROWS: Final = 30
BEND: Final = 1.5
FAR: Final = 0.25
BEND_OUT: Final = 4.0
OWN: Final = 0.02
SURE: Final = 4.0
LITTLE: Final = 0.01
_ROUNDS: Final = 50

Array = NDArray[np.float64]


class Solution(NamedTuple):
    """What the rows say."""

    model: StepModel
    error: StepModel
    """Standard error of each parameter, as if only chance were wrong; infinite: not told at all."""
    untold: tuple[str, ...]
    """Parameters that these rows do not tell."""
    median_error: float
    """Of the rows' seconds, relative, over all rows but outliers."""
    p90_error: float
    kept: tuple[bool, ...]
    """Which rows were no outliers."""


def solve(rows: Sequence[Row], fixed: Mapping[str, float]) -> Solution:
    """Fit. At least as many rows as parameters. `fixed`: parameters that are known, in seconds."""
    names = StepModel._fields
    seconds = np.array([row.seconds for row in rows])
    columns = np.array([row[1:] for row in rows], dtype=np.float64)
    free = [place for place, name in enumerate(names) if name not in fixed]
    known = np.array([fixed.get(name, 0.0) for name in names])
    model = known.copy()
    weights = 1.0 / np.maximum(seconds, np.median(seconds) * 0.01)
    kept = np.ones(len(rows), dtype=bool)
    for _ in range(_ROUNDS):
        scaled = columns[:, free] * weights[:, None]
        found = _least(scaled, (seconds - columns @ known) * weights)
        before, model = model, known.copy()
        model[free] = found
        fitted = np.maximum(columns @ model, 1e-12)
        off = seconds / fitted - 1.0
        usual = max(1.4826 * float(np.median(np.abs(off))), 1e-9)
        size = np.abs(off)
        kept = size <= max(FAR, BEND_OUT * usual)
        bent = np.sqrt(np.minimum(1.0, BEND * usual / np.maximum(size, 1e-12)))
        weights = np.where(kept, bent / fitted, 0.0)
        if np.allclose(before, model, rtol=1e-6, atol=0.0):
            break
    error, own = _errors(columns[:, free] * weights[:, None], off, kept, len(free))
    errors = np.zeros(len(names))
    errors[free] = error
    share = columns[kept].mean(axis=0) / seconds[kept].mean()
    untold = tuple(
        names[place]
        for place, alone in zip(free, own, strict=True)
        if alone < OWN
        or not (
            model[place] >= SURE * errors[place]
            or (model[place] + 2.0 * errors[place]) * share[place] < LITTLE
        )
    )
    return Solution(
        StepModel(*map(float, model)),
        StepModel(*map(float, errors)),
        untold,
        float(np.median(size[kept])),
        float(np.quantile(size[kept], 0.9)),
        tuple(map(bool, kept)),
    )


def _least(columns: Array, wanted: Array) -> Array:
    """The least squares with no negative parameter. Of equals that with the fewest."""
    count = columns.shape[1]
    best, least = np.zeros(count), float(wanted @ wanted)
    for size in range(1, count + 1):
        for places in map(list, combinations(range(count), size)):
            found = np.linalg.lstsq(columns[:, places], wanted, rcond=None)[0]
            rest = wanted - columns[:, places] @ found
            if (found >= 0.0).all() and float(rest @ rest) < least * (1.0 - 1e-9):
                least = float(rest @ rest)
                best = np.zeros(count)
                best[places] = found
    return best


def _errors(columns: Array, off: Array, kept: Any, free: int) -> tuple[Array, Array]:
    """Standard errors, and what share of each column the others do not explain."""
    lengths = np.linalg.norm(columns, axis=0)
    error, own = np.full(free, np.inf), np.zeros(free)
    spread = np.sqrt(float((off[kept] ** 2).sum()) / max(int(kept.sum()) - free, 1))
    for place in range(free):
        others = np.delete(columns, place, axis=1)
        column = columns[:, place]
        rest = column - others @ np.linalg.lstsq(others, column, rcond=None)[0]
        length = float(np.linalg.norm(rest))
        if lengths[place] > 0.0 and length > 1e-9 * lengths[place]:
            own[place] = length / lengths[place]
            error[place] = spread / length
    return error, own
