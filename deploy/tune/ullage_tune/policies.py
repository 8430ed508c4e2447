"""All that compete, by name: the rivals, the bound, and what ships in several settings."""

from collections.abc import Mapping
from typing import Final

from ullage_router.core.policy import Policy, Way
from ullage_router.core.rules import Rules
from ullage_sidecar.core.depletion import DepletionSettings
from ullage_sidecar.core.warmup import WarmUpSettings
from ullage_tune.grid import OURS
from ullage_tune.ours import Feed, Ours
from ullage_tune.policy import MakePolicy
from ullage_tune.rivals import RIVALS

WEIGHTED: Final = Rules(choose=Policy(way=Way.WEIGHTED))


def fed(interval_s: float) -> Ours:
    """What ships, polled every so many seconds."""
    return Ours(feed=Feed(interval_s=interval_s, pushed=False))


VARIANTS: Final[Mapping[str, MakePolicy]] = {
    OURS: Ours(),
    "ullage_least_wait": Ours(rules=Rules(choose=Policy(way=Way.LEAST_WAIT))),
    # Without a floor, nobody is refused because all are full.
    "ullage_floor_0": Ours(rules=Rules(choose=Policy(floor=0.0))),
    # Answers in one piece.
    "ullage_unstreamed": Ours(streamed=False),
    # A fresh replica is believed at once, as empty as it looks.
    "ullage_cold": Ours(
        sidecar={"warm_up": WarmUpSettings(rounds=0, zero_until_s=0.0, ramp_until_s=0.0)}
    ),
    "ullage_polled_100ms": fed(0.1),
    "ullage_polled_500ms": fed(0.5),
    "ullage_polled_1s": fed(1.0),
    "ullage_polled_2s": fed(2.0),
    # The mission's literal policy, and what its forecast gives.
    "ullage_weighted": Ours(rules=WEIGHTED),
    "ullage_weighted_no_forecast": Ours(
        rules=WEIGHTED, sidecar={"depletion": DepletionSettings(ahead_s=0.0)}
    ),
}
"""What ships, in several settings."""

POLICIES: Final[Mapping[str, MakePolicy]] = {**VARIANTS, **RIVALS}
"""By name."""
