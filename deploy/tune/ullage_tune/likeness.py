"""How like a trace its stand-in is: the figures of `shape`, side by side.

Sharing grows with what a cache has seen, so it is also measured over slices of the lengths that are
run: each begins with an empty cache. The stand-in's figures are means over seeds.
"""

from collections.abc import Iterable
from random import Random
from typing import Final

import numpy as np

from ullage_tune.shape import Shape, shape
from ullage_tune.standins import Chained, Independent, stand_in
from ullage_tune.workload import Workload

SLICES: Final = (1200, 4000)
"""Requests."""


def compare(trace: Workload, fit: Chained | Independent, seeds: int) -> list[tuple[str, str, str]]:
    """Rows of measure, the trace's value, the stand-in's."""
    real = shape(trace)
    alike = [shape(_draw(fit, real.requests, seed)) for seed in range(seeds)]
    rows = [
        (name, _show(_figures(real, name)), _show(_mean(_figures(one, name) for one in alike)))
        for name in Shape._fields
    ]
    for size in SLICES:
        slices = [
            Workload("slice", trace.requests[k : k + size])
            for k in range(0, real.requests - size + 1, size)
        ]
        if slices:
            found = _mean([shape(part).found] for part in slices)
            mine = _mean([shape(_draw(fit, size, seed)).found] for seed in range(seeds))
            rows.append((f"found in {size} requests", _show(found), _show(mine)))
    return rows


def _draw(fit: Chained | Independent, n: int, seed: int) -> Workload:
    return Workload("stand-in", stand_in(fit, n, Random(seed)))


def _figures(one: Shape, name: str) -> list[float]:
    value = getattr(one, name)
    return list(value) if isinstance(value, tuple) else [value]


def _mean(rows: Iterable[list[float]]) -> list[float]:
    return [float(mean) for mean in np.mean(list(rows), axis=0)]


def _show(values: Iterable[float]) -> str:
    return " / ".join(f"{value:.4g}" for value in values)
