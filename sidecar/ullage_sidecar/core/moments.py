"""What a mean and a trend need to know of many readings, and how two such sums become one.

For readings x_i, read at t_i and held for w_i seconds:

    held_s = Σ w      value = Σ w·x / Σ w      read_s = Σ w·t / Σ w
    spread = Σ w·(t - read_s)²                 rise = Σ w·(t - read_s)·(x - value)

    slope of the weighted least-squares line = rise / spread

Two sums join in constant time, about their common centre (Chan, Golub and LeVeque, 1979). Sums of
squares about zero would not do: of an instant, days since the machine started, they leave no digit
for the seconds between two readings.
"""

import msgspec


class Moments(msgspec.Struct, frozen=True, gc=False):
    """Of one reading or many, in the order of time. A single one has neither spread nor rise."""

    held_s: float
    value: float
    read_s: float
    spread: float
    rise: float
    number: int
    """How many readings, or what was merged into one."""
    first_s: float
    """When the oldest was read."""
    last_s: float
    """When the youngest was read."""


def joined(old: Moments, young: Moments) -> Moments:
    """One for both; what weighs nothing leaves the other's centre as it is."""
    held_s = old.held_s + young.held_s
    share = young.held_s / held_s if held_s > 0.0 else 1.0
    apart_s, apart = young.read_s - old.read_s, young.value - old.value
    weight_s = old.held_s * share
    return Moments(
        held_s,
        old.value + apart * share,
        old.read_s + apart_s * share,
        old.spread + young.spread + weight_s * apart_s * apart_s,
        old.rise + young.rise + weight_s * apart_s * apart,
        old.number + young.number,
        old.first_s,
        young.last_s,
    )
