"""A router that decides where keys are at home, without sockets or clock."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random
from types import MappingProxyType

from mission import AS_ASKED
from snapshots import fleet_with
from ullage_router.core.affinity import Memory
from ullage_router.core.decide import decide
from ullage_router.core.decision import Decision, Need, Why
from ullage_router.core.fleet import Fleet
from ullage_router.core.inflight import InFlight
from ullage_router.core.rules import Rules

A, B, C = (f"http://{name}:8000" for name in "abc")
SIDECAR = "http://sidecar:9400"
KEY = 7
SYSTEM = 1
RULES = AS_ASKED
EIGHT = [f"http://r{i}:8000" for i in range(8)]
EQUAL = fleet_with(dict.fromkeys(EIGHT, 0.9))


class Asked:
    """A router that decides, and remembers where keys are at home. No request lasts."""

    def __init__(self, rules: Rules = RULES, seed: int = 1, max_keys: int = 10_000) -> None:
        self.rules = rules
        self.memory = Memory(max_keys)
        self.load = InFlight()
        self.rng = Random(seed)

    def send(self, fleet: Fleet, keys: Sequence[int] = (KEY,), now_s: float = 0.0) -> Decision:
        need = Need(keys=tuple(keys))
        decision = decide(fleet, need, now_s, self.rng, self.rules, self.load, self.memory)
        replica = decision.replica
        if keys and replica is not None:
            self.memory.keep(keys, decision.known, replica.key, decision.move, now_s)
        return decision

    def home(self, key: int = KEY) -> str:
        known = self.memory.find((key,))
        assert known is not None
        return known.placed.home


def at_home(at: str, fleet: Fleet, now_s: float = 0.0, *, rules: Rules = RULES) -> Asked:
    """A router in which `KEY` was placed at that replica."""
    asked = Asked(rules)
    alone = replace(fleet, replicas=MappingProxyType({at: fleet.replicas[at]}))
    assert asked.send(alone, now_s=now_s).why is Why.NEW_KEY
    assert asked.home() == at
    return asked


def where(decision: Decision) -> str | None:
    return decision.replica.key if decision.replica else None


def spread(decisions: Iterable[Decision]) -> Counter[str | None]:
    return Counter(where(decision) for decision in decisions)
