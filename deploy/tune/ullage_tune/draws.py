"""What lengths and pauses are drawn from: frozen values, called with the dice.

    Uniform      every value between two alike
    LogUniform   every factor between two alike: as many between 200 and 400 as between 400 and 800
    LogNormal    exp(ln median + sigma · N(0, 1)), drawn again while outside its bounds: nothing
                 piles up at a bound
    Exponential  a mean, no memory
    Quantiles    the values of a sample at `LEVELS`, straight lines between them

The median, not the mean, names a log-normal: it is what a reader can picture. Its mean, without
bounds, is `median · exp(sigma²/2)`.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Final

Draw = Callable[[Random], float]
"""One value, by these dice."""

LEVELS: Final = (0.0, 0.01, *(k / 20 for k in range(1, 20)), 0.98, 0.99, 0.999, 1.0)
"""Shares of a sample: every twentieth, and finer where the tails are."""


@dataclass(frozen=True, slots=True)
class Uniform:
    """Between two values."""

    least: float
    most: float

    @property
    def mean(self) -> float:
        """The middle."""
        return (self.least + self.most) / 2.0

    def __call__(self, rng: Random) -> float:
        """Draw."""
        return rng.uniform(self.least, self.most)


@dataclass(frozen=True, slots=True)
class LogUniform:
    """Between two values, both > 0, their logarithm uniform."""

    least: float
    most: float

    def __call__(self, rng: Random) -> float:
        """Draw."""
        return self.least * math.exp(rng.random() * math.log(self.most / self.least))


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Around a median, within bounds that hold the median."""

    median: float
    sigma: float
    """Of the logarithm: 0.5 is narrow, 1 wide, 1.5 has a long tail."""
    least: float
    most: float

    def __call__(self, rng: Random) -> float:
        """Draw."""
        while True:
            value = self.median * math.exp(self.sigma * rng.gauss(0.0, 1.0))
            if self.least <= value <= self.most:
                return value


@dataclass(frozen=True, slots=True)
class Exponential:
    """Above 0, without memory."""

    mean: float

    def __call__(self, rng: Random) -> float:
        """Draw."""
        return rng.expovariate(1.0) * self.mean


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A sample, as its values at `LEVELS`."""

    values: tuple[float, ...]
    """One per level, none less than the one before."""

    def __post_init__(self) -> None:
        if len(self.values) != len(LEVELS):
            raise ValueError(f"values: {len(self.values)} of them, wanted {len(LEVELS)}")
        if any(b < a for a, b in pairwise(self.values)):
            raise ValueError(f"values={self.values} must not fall")

    def at(self, level: float) -> float:
        """The value that this share of the sample, 0..1, does not exceed."""
        k = min(bisect_right(LEVELS, level), len(LEVELS) - 1)
        low, high = self.values[k - 1], self.values[k]
        return low + (high - low) * (level - LEVELS[k - 1]) / (LEVELS[k] - LEVELS[k - 1])

    def __call__(self, rng: Random) -> float:
        """Draw."""
        return self.at(rng.random())


def tokens(draw: Draw, rng: Random) -> int:
    """A number of tokens: what is drawn, rounded, and at least 1."""
    return max(1, round(draw(rng)))
