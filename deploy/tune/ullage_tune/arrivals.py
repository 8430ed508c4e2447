"""When requests come: Poisson with a rate that changes in steps.

    P(none for t seconds at `per_s`) = exp(−per_s · t)

A rate is a stream of pieces: so long, so many per second. `arrivals` uses up one unit-mean
exponential after the other along them, which is exact for any such stream, and gives the same
requests in the same order at twice the rate in half the time.

    steady     one piece that never ends
    on_off     two rates in turn, each for half to one and a half times its mean time: bursts
    swinging   per_s · exp(Σ (xᵢ(t) − sᵢ²/2)), each xᵢ an Ornstein–Uhlenbeck process with standard
               deviation sᵢ and memory τᵢ: the rate wanders, and returns to its mean. Such arrivals
               are over-dispersed as real ones are: their counts in windows of w seconds have
               cv² = 1/mean + Σ (exp(sᵢ²) − 1) · g(w/τᵢ), about, with g(u) = 2 (u − 1 + exp(−u))/u²
               (the variance of an average of such a process; `fit_arrivals` reads it backwards).
"""

import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final, NamedTuple

STEPS: Final = 5
"""A swinging rate is constant over a fifth of its shortest memory; finer changes no statistic."""


class Piece(NamedTuple):
    """A time in which the rate is constant."""

    lasts_s: float
    """Above 0; may be infinite."""
    per_s: float
    """Arrivals per second, above 0."""


class Swing(NamedTuple):
    """One of the wanderings of a rate."""

    sigma: float
    """Standard deviation of the rate's logarithm; 0: it does not wander."""
    memory_s: float
    """The time constant τ, above 0."""


def arrivals(pieces: Iterator[Piece], rng: Random, since_s: float = 0.0) -> Iterator[float]:
    """Instants in seconds, rising, from `since_s` on; without end if the pieces have none."""
    now_s = since_s
    ends_s = since_s
    wanted = rng.expovariate(1.0)
    for piece in pieces:
        ends_s += piece.lasts_s
        while now_s + wanted / piece.per_s <= ends_s:
            now_s += wanted / piece.per_s
            yield now_s
            wanted = rng.expovariate(1.0)
        wanted -= (ends_s - now_s) * piece.per_s
        now_s = ends_s


def steady(per_s: float) -> Iterator[Piece]:
    """Plain Poisson."""
    yield Piece(math.inf, per_s)


def on_off(per_s: float, times: float, on_s: float, off_s: float, rng: Random) -> Iterator[Piece]:
    """Bursts: `times` the rate for `on_s` seconds in the mean, then the rate for `off_s`.

    `per_s` is the mean over both. It begins between two bursts.
    """
    calm = per_s * (on_s + off_s) / (times * on_s + off_s)
    while True:
        yield Piece(off_s * rng.uniform(0.5, 1.5), calm)
        yield Piece(on_s * rng.uniform(0.5, 1.5), calm * times)


def swinging(per_s: float, swings: Sequence[Swing], rng: Random) -> Iterator[Piece]:
    """A rate that wanders about `per_s`, from somewhere on its way."""
    wandering = [swing for swing in swings if swing.sigma > 0.0]
    if not wandering:
        yield from steady(per_s)
        return
    step_s = min(swing.memory_s for swing in wandering) / STEPS
    kept = [math.exp(-step_s / swing.memory_s) for swing in wandering]
    at = [rng.gauss(0.0, swing.sigma) for swing in wandering]
    level = per_s * math.exp(-sum(swing.sigma**2 for swing in wandering) / 2.0)
    while True:
        yield Piece(step_s, level * math.exp(sum(at)))
        at = [
            x * keep + swing.sigma * math.sqrt(1.0 - keep * keep) * rng.gauss(0.0, 1.0)
            for x, keep, swing in zip(at, kept, wandering, strict=True)
        ]


def dispersion(swing: Swing, window_s: float) -> float:
    """What it adds to the squared coefficient of variation of counts in such windows."""
    u = window_s / swing.memory_s
    return math.expm1(swing.sigma**2) * 2.0 * (u - 1.0 + math.exp(-u)) / (u * u)
