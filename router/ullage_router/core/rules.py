"""All rules by which a replica is chosen, in one value."""

from typing import NamedTuple

from ullage_router.core.breaker import BreakerPolicy
from ullage_router.core.policy import AffinityPolicy, Policy


class Rules(NamedTuple):
    """What the operator has set, and how many share the work."""

    choose: Policy = Policy()
    affinity: AffinityPolicy = AffinityPolicy()
    breaker: BreakerPolicy = BreakerPolicy()
    workers: int = 1
    """Processes of this router; each sees its part of the requests."""

    @property
    def hot_per_s(self) -> float:
        """The rate above which a key is hot, of what this process sees."""
        return self.affinity.hot_per_s / (self.affinity.routers * self.workers)
