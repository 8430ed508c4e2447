"""Keys that are hot just now, as far as the latest decisions tell.

A key that comes so often that several replicas share it is among the last 256 decisions, as long as
a router decides less than some thousands a second. To look at all that are remembered would hold
up requests.
"""

from ullage_router.core.affinity import homes_for
from ullage_router.router import Router


def hot_keys(router: Router) -> int:
    """How many of the latest decisions' keys need more than one replica now. `least_wait` has no
    homes, and so no hot keys."""
    now_s, most_per_s = router.now_s(), router.rules.hot_per_s
    known = (decided.decision.known for decided in router.recent)
    placed = {id(one.placed): one.placed for one in known if one is not None}
    return sum(homes_for(one, most_per_s, now_s) > 1 for one in placed.values())
