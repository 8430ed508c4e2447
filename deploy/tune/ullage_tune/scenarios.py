"""What may befall a cluster, by name: what `ullage-tune run --scenario` offers.

A scenario is made for so many engines and so long a workload, so that what happens in it happens in
its midst.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from ullage_tune.gpu import Engine, slowed
from ullage_tune.plan import SCENARIO_NAMES
from ullage_tune.world import Joining, Loss, Scenario

COLD_S: Final = 15.0
"""What a fresh server's first steps take beyond what they should: compiling and capturing graphs at
its first batches. An assumption: nothing was measured."""


class Kind(NamedTuple):
    """An entry of the registry."""

    make: Callable[[Engine, int, float], Scenario]
    """By engine, number of replicas, and seconds of the workload."""
    says: str


def plain(engine: Engine, replicas: int, duration_s: float) -> Scenario:
    """Nothing happens."""
    del duration_s
    return Scenario(engines=(engine,) * replicas)


def slow(engine: Engine, replicas: int, duration_s: float) -> Scenario:
    """The last one is at half speed."""
    scenario = plain(engine, replicas, duration_s)
    return replace(scenario, engines=(*scenario.engines[:-1], slowed(engine, 2.0)))


def lost(engine: Engine, replicas: int, duration_s: float) -> Scenario:
    """One dies after two fifths; a fresh one joins after three."""
    events = (Loss(0.4 * duration_s, 0), Joining(0.6 * duration_s, engine, COLD_S))
    return replace(plain(engine, replicas, duration_s), events=events)


_KINDS: Final = (
    Kind(plain, "nothing happens"),
    Kind(slow, "one replica at half speed"),
    Kind(lost, "one replica dies, a fresh one joins later"),
)
SCENARIOS: Final[Mapping[str, Kind]] = dict(zip(SCENARIO_NAMES, _KINDS, strict=True))
"""By name."""
