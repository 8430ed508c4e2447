"""The dice of one generated workload, and what it is called.

Seeded with its name and the caller's seed: two workloads of one seed have nothing in common, and
what comes does not depend on when.
"""

import math
from dataclasses import dataclass, field
from random import Random

from ullage_tune.workload import Request, Workload


@dataclass(frozen=True, slots=True)
class Dice:
    """For `n` requests at this rate. `ValueError`: the rate is not > 0, or n not ≥ 0."""

    name: str
    rate_per_s: float
    n: int
    seed: int
    when: Random = field(init=False)
    """For instants."""
    what: Random = field(init=False)
    """For contents."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.rate_per_s) and self.rate_per_s > 0.0):
            raise ValueError(f"{self.name}: rate_per_s={self.rate_per_s} must be > 0")
        if self.n < 0:
            raise ValueError(f"{self.name}: n={self.n} must be ≥ 0")
        object.__setattr__(self, "when", Random(f"{self.name} {self.seed} when"))
        object.__setattr__(self, "what", Random(f"{self.name} {self.seed} what"))

    def workload(self, requests: tuple[Request, ...]) -> Workload:
        """These requests under its name."""
        source = f"{self.name} at {self.rate_per_s:g} requests/s, seed {self.seed}"
        return Workload(self.name, requests, source)
