"""Fleets to choose from, and what is drawn of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import sqrt
from random import Random

import pytest

from ullage_router.core import decide as code
from ullage_router.core.affinity import Memory
from ullage_router.core.decision import Decision, Need
from ullage_router.core.fleet import Fleet
from ullage_router.core.inflight import InFlight
from ullage_router.core.lineup import line_up, seed_of
from ullage_router.core.odds import Odds
from ullage_router.core.policy import Policy, Way
from ullage_router.core.prefixes import Prefixes
from ullage_router.core.rules import Rules
from ullage_router.core.selection import MOST_AT_ONCE
from ullage_shared.snapshot import RequestClass

A, B, C = (f"http://{name}:8000" for name in "abc")
EVERY_WAY = pytest.mark.parametrize("way", list(Way))
KEYED = pytest.mark.parametrize("keyed", [False, True], ids=["no key", "new keys"])
SIZES = [1, 2, MOST_AT_ONCE, MOST_AT_ONCE + 1, 300]


def choose(
    odds: Odds, keys: Sequence[int], now_s: float, rng: Random, rules: Rules, memory: Memory
) -> Decision:
    need = Need(keys=tuple(keys))
    return code.choose(odds, need, now_s, rng, rules, memory, Prefixes(1))


def names(count: int) -> list[str]:
    return [f"http://r{i}:8000" for i in range(count)]


def odds_of(fleet: Fleet, rules: Rules, load: InFlight | None = None, now_s: float = 0.0) -> Odds:
    return Odds(line_up(fleet, None, RequestClass.MIXED, now_s, rules), load or InFlight())


def rules_for(way: Way, **choosing: object) -> Rules:
    return Rules(choose=Policy(way=way, **choosing))  # type: ignore[arg-type]


def key_of(rng: Random, *, keyed: bool) -> tuple[int, ...]:
    return (rng.getrandbits(64),) if keyed else ()


def drawn(
    fleet: Fleet,
    draws: int,
    *,
    way: Way = Way.WEIGHTED,
    keyed: bool = False,
    seed: int = 7,
    load: InFlight | None = None,
) -> Counter[str]:
    """How often each is chosen for new requests, each of which ends before the next."""
    rules, rng, load = rules_for(way), Random(seed), load or InFlight()
    odds = odds_of(fleet, rules, load)
    counts = Counter(dict.fromkeys(fleet.replicas, 0))
    for _ in range(draws):
        keys = key_of(rng, keyed=keyed)
        decision = choose(odds, keys, 0.0, rng, rules, Memory(1))
        assert decision.replica is not None
        load.last_seed = seed_of(decision.replica.key)
        counts[decision.replica.key] += 1
    return counts


def assert_shares(counts: Counter[str], shares: Mapping[str, float]) -> None:
    total = counts.total()
    for key, share in shares.items():
        deviation = sqrt(total * share * (1.0 - share))
        assert abs(counts[key] - total * share) <= 4.0 * deviation, (key, share, counts)
