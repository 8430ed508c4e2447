"""All that compete, by name: the rivals, the bound, and what ships in several settings."""

from collections.abc import Mapping
from typing import Final

from ullage_router.core.policy import Policy, Way
from ullage_router.core.rules import Rules
from ullage_tune.grid import OURS
from ullage_tune.ours import Feed, Ours
from ullage_tune.policy import MakePolicy
from ullage_tune.rivals import RIVALS


def by_way(way: Way) -> Ours:
    """What ships, with another `choose.way`."""
    return Ours(rules=Rules(choose=Policy(way=way)))


def fed(interval_s: float) -> Ours:
    """What ships, polled every so many seconds."""
    return Ours(feed=Feed(interval_s=interval_s, pushed=False))


VARIANTS: Final[Mapping[str, MakePolicy]] = {
    OURS: Ours(),
    "ullage_weighted": by_way(Way.WEIGHTED),
    "ullage_least_wait": by_way(Way.LEAST_WAIT),
    "ullage_unstreamed": Ours(streamed=False),
    "ullage_polled_100ms": fed(0.1),
    "ullage_polled_500ms": fed(0.5),
    "ullage_polled_1s": fed(1.0),
    "ullage_polled_2s": fed(2.0),
}
"""What ships; the mission's literal policy; the same for answers in one piece; the
same fed by snapshots of some age."""

POLICIES: Final[Mapping[str, MakePolicy]] = {**VARIANTS, **RIVALS}
"""By name."""
