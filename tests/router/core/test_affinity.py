"""Keys and their homes: the tiers and the dwell to the edge, chains, hot keys, the memory's bounds.

Statistical tests draw from seeded dice and allow 4 standard deviations.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil, exp, inf, nextafter, sqrt
from random import Random
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshots import document, fleet_with, snapshot
from ullage_router.core.affinity import RATE_S, Memory, Move, Placed, homes_for
from ullage_router.core.breaker import BreakerPolicy, Event, after
from ullage_router.core.decide import Decision, Need, Why, decide
from ullage_router.core.fleet import Fleet, fleet_of, hear, with_breaker
from ullage_router.core.inflight import InFlight
from ullage_router.core.policy import AffinityPolicy, Policy
from ullage_router.core.rules import Rules
from ullage_shared.snapshot import State

pytestmark = pytest.mark.slow

A, B, C = (f"http://{name}:8000" for name in "abc")
SIDECAR = "http://sidecar:9400"
KEY = 7
RULES = Rules()
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


# The three tiers (mission R4)

TIERS = 2_000


def stays(home_score: float, rules: Rules = RULES) -> int:
    """Of `TIERS` requests of a key, how many go to its home at that score."""
    fleet = fleet_with({A: home_score, B: 1.0})
    count = 0
    rng = Random(5)
    for _ in range(TIERS):
        asked = Asked(rules)
        asked.rng = rng
        asked.memory.keep((KEY,), None, A, Move.STAY, 0.0)
        count += where(asked.send(fleet)) == A
    return count


def test_just_above_the_upper_bound_a_key_always_stays() -> None:
    assert stays(nextafter(0.3, 1.0)) == TIERS


@pytest.mark.parametrize("score", [0.3, 0.2, nextafter(0.15, 1.0)])
def test_from_the_upper_bound_down_to_the_floor_a_key_stays_at_seven_of_ten(score: float) -> None:
    assert abs(stays(score) - 0.7 * TIERS) <= 4 * sqrt(0.7 * 0.3 * TIERS)


@pytest.mark.parametrize("score", [0.15, 0.1, 0.0])
def test_at_the_floor_and_below_a_key_never_stays(score: float) -> None:
    assert stays(score) == 0


def test_the_tiers_are_the_operators_to_set() -> None:
    affinity = AffinityPolicy(stay_above=0.6, stay_chance=0.0)
    rules = Rules(choose=Policy(floor=0.5), affinity=affinity)
    assert stays(nextafter(0.6, 1.0), rules) == TIERS
    assert stays(0.6, rules) == 0
    assert stays(0.3, Rules(affinity=AffinityPolicy(stay_above=0.0))) == TIERS


def test_what_this_router_has_sent_to_the_home_counts_in_the_tiers() -> None:
    fleet = fleet_with({A: 0.5, B: 0.9})
    asked = at_home(A, fleet)
    asked.load.hold(A, 0.19)
    assert asked.send(fleet).why is Why.AFFINITY
    asked.load.hold(A, 0.17)
    assert asked.send(fleet).why is Why.KEY_MOVED


def test_a_spilled_request_leaves_its_key_at_home() -> None:
    fleet = fleet_with({A: 0.2, B: 0.2})
    asked = Asked()
    for key in range(200):
        asked.memory.keep((key,), None, A, Move.STAY, 0.0)
    decisions = [asked.send(fleet, (key,)) for key in range(200)]
    assert {(d.why, where(d)) for d in decisions} == {(Why.AFFINITY, A), (Why.KEY_SPILLED, B)}
    assert {asked.home(key) for key in range(200)} == {A}


def test_at_the_floor_the_request_is_balanced_and_the_key_moves_along() -> None:
    fleet = fleet_with({A: 0.15, B: 0.9})
    asked = at_home(A, fleet_with({A: 0.9}))
    decision = asked.send(fleet)
    assert (decision.why, where(decision), asked.home()) == (Why.KEY_MOVED, B, B)


def test_a_key_whose_home_and_all_others_are_full_is_refused_and_stays() -> None:
    asked = at_home(A, fleet_with({A: 0.9}))
    assert asked.send(fleet_with({A: 0.1, B: 0.1})).why is Why.FULL
    assert asked.home() == A


def test_a_key_whose_home_alone_has_room_stays_and_says_so() -> None:
    fleet = fleet_with({A: 0.2, B: 0.1})
    asked = at_home(A, fleet)
    decisions = [asked.send(fleet) for _ in range(50)]
    assert spread(decisions) == {A: 50}
    assert {decision.why for decision in decisions} == {Why.AFFINITY}


def test_without_affinity_keys_settle_nothing() -> None:
    asked = Asked(Rules(affinity=AffinityPolicy(enabled=False)))
    asked.memory.keep((KEY,), None, A, Move.STAY, 0.0)
    decisions = [asked.send(fleet_with({A: 0.9, B: 0.9})) for _ in range(100)]
    assert {decision.why for decision in decisions} == {Why.SCORE}
    assert spread(decisions).keys() == {A, B}


def test_by_own_counts_a_home_keeps_its_key_until_it_has_clearly_more_than_others() -> None:
    fleet = fleet_of([A, B])
    asked = at_home(A, fleet)
    for _ in range(20):  # (8 + 1) / (8 + 1 + 20) is above 0.3.
        asked.load.hold(A)
    assert {asked.send(fleet).why for _ in range(50)} == {Why.AFFINITY}
    for _ in range(2):
        asked.load.hold(A)
    assert {asked.send(fleet).why for _ in range(50)} == {Why.AFFINITY, Why.KEY_SPILLED}
    assert asked.home() == A


# The dwell

DWELL_S = AffinityPolicy().dwell_s
MOVED_S = 100.0


def moved_to_b() -> Asked:
    """A router in which the key has moved from A to B at `MOVED_S`."""
    asked = at_home(A, fleet_with({A: 0.9}), 99.0)
    fleet = fleet_with({A: 0.1, B: 0.9}, now_s=MOVED_S)
    assert asked.send(fleet, now_s=MOVED_S).why is Why.KEY_MOVED
    return asked


@pytest.mark.parametrize(
    ("now_s", "why", "home"),
    [
        (MOVED_S, Why.KEY_SPILLED, B),
        (MOVED_S + 29.999, Why.KEY_SPILLED, B),
        (nextafter(MOVED_S + DWELL_S, 0.0), Why.KEY_SPILLED, B),
        (MOVED_S + DWELL_S, Why.KEY_MOVED, A),
    ],
)
def test_a_key_that_has_moved_stays_for_the_dwell_and_not_a_moment_longer(
    now_s: float, why: Why, home: str
) -> None:
    asked = moved_to_b()
    decision = asked.send(fleet_with({A: 0.9, B: 0.1}, now_s=now_s), now_s=now_s)
    assert (decision.why, where(decision), asked.home()) == (why, A, home)


def test_the_first_placement_is_no_move() -> None:
    asked = at_home(A, fleet_with({A: 0.9}), MOVED_S)
    fleet = fleet_with({A: 0.1, B: 0.9}, now_s=MOVED_S)
    assert asked.send(fleet, now_s=MOVED_S).why is Why.KEY_MOVED


def test_a_clock_set_back_pins_nothing() -> None:
    asked = moved_to_b()
    now_s = nextafter(MOVED_S, 0.0)
    assert asked.send(fleet_with({A: 0.9, B: 0.1}, now_s=now_s), now_s=now_s).why is Why.KEY_MOVED


def test_a_spilled_request_does_not_prolong_the_dwell() -> None:
    asked = moved_to_b()
    for now_s in (MOVED_S + 10.0, MOVED_S + 20.0):
        asked.send(fleet_with({A: 0.9, B: 0.1}, now_s=now_s), now_s=now_s)
    now_s = MOVED_S + DWELL_S
    assert asked.send(fleet_with({A: 0.9, B: 0.1}, now_s=now_s), now_s=now_s).why is Why.KEY_MOVED


def test_a_conversation_takes_its_dwell_along() -> None:
    asked = moved_to_b()
    fleet = fleet_with({A: 0.9, B: 0.9}, now_s=MOVED_S + 1.0)
    assert where(asked.send(fleet, (KEY, 8), MOVED_S + 1.0)) == B
    full = fleet_with({A: 0.9, B: 0.1}, now_s=MOVED_S + 2.0)
    assert asked.send(full, (KEY, 8, 9), MOVED_S + 2.0).why is Why.KEY_SPILLED
    assert asked.home(9) == B


GONE = [State.DRAINING, State.WARMING, State.DOWN, State.HUNG, State.STARTING]
SOON_S = MOVED_S + 1.0


def states(of: Mapping[str, State]) -> Fleet:
    heard = document(*(snapshot(url, 0.9, state=state) for url, state in of.items()))
    return hear(fleet_of([]), SIDECAR, heard, SOON_S)[0]


@pytest.mark.parametrize("state", GONE)
def test_a_key_leaves_a_replica_that_does_not_serve_at_once(state: State) -> None:
    """Report 11: affinity pins a dead replica."""
    asked = moved_to_b()
    fleet = states({A: State.SERVING, B: state})
    decision = asked.send(fleet, now_s=SOON_S)
    assert (decision.why, where(decision), asked.home()) == (Why.KEY_MOVED, A, A)


def test_a_key_leaves_an_ejected_replica_at_once() -> None:
    """Report 11: affinity pins a dead replica."""
    asked, fleet, policy = moved_to_b(), fleet_with({A: 0.9, B: 0.9}, now_s=SOON_S), BreakerPolicy()
    for _ in range(policy.eject_after):
        breaker = after(fleet.replicas[B].breaker, Event.FAILED, SOON_S, policy)
        fleet = with_breaker(fleet, B, breaker)
    assert asked.send(fleet, now_s=SOON_S).why is Why.KEY_MOVED
    assert asked.home() == A


def test_a_key_leaves_a_removed_replica_at_once() -> None:
    """Report 11: affinity pins a dead replica."""
    asked = moved_to_b()
    assert asked.send(fleet_with({A: 0.9}, now_s=SOON_S), now_s=SOON_S).why is Why.KEY_MOVED


def test_a_key_leaves_a_replica_silent_for_too_long_at_once() -> None:
    """Report 11: affinity pins a dead replica."""
    asked = Asked(Rules(affinity=AffinityPolicy(dwell_s=1_000.0)))
    asked.memory.keep((KEY,), None, B, Move.STAY, 0.0)
    known = asked.memory.find((KEY,))
    assert known is not None
    known.placed.moved_s = 50.0
    lost = hear(fleet_of([]), "http://b:9400", document(snapshot(B, 0.9)), 0.0)[0]
    fleet, _ = hear(lost, "http://a:9400", document(snapshot(A, 0.9)), 61.0)
    assert asked.send(fleet, now_s=61.0).why is Why.KEY_MOVED


def test_a_key_waits_for_a_replica_that_failed_once() -> None:
    asked, fleet = moved_to_b(), fleet_with({A: 0.9, B: 0.9}, now_s=SOON_S)
    struck = after(fleet.replicas[B].breaker, Event.FAILED, SOON_S, BreakerPolicy())
    assert asked.send(with_breaker(fleet, B, struck), now_s=SOON_S).why is Why.KEY_SPILLED
    back = asked.send(with_breaker(fleet, B, struck), now_s=SOON_S + 1.0)
    assert (back.why, where(back)) == (Why.AFFINITY, B)


def test_routers_move_a_key_whose_home_is_gone_to_the_same_replica() -> None:
    """Else each worker moves a session elsewhere, and its cache is computed in each place."""
    fleet = EQUAL
    for key in range(20):
        homes = set()
        for seed in range(4):
            asked = Asked(seed=seed)
            asked.memory.keep((key,), None, "http://gone:8000", Move.STAY, 0.0)
            homes.add(where(asked.send(fleet, (key,))))
        assert len(homes) == 1


# Chains

SYSTEM = 1


def test_the_second_turn_goes_where_the_first_went() -> None:
    fleet = EQUAL
    for conversation in range(50):
        asked = Asked(seed=conversation)
        keys = [SYSTEM, *(1_000 * (conversation + 1) + n for n in range(10))]
        first = asked.send(fleet, keys[:2])
        for turn in range(4, 11, 2):
            then = asked.send(fleet, keys[:turn])
            assert (then.why, where(then)) == (Why.AFFINITY, where(first))


def test_a_new_conversation_goes_where_its_system_prompt_is_known() -> None:
    fleet, asked = fleet_with(dict.fromkeys(EIGHT, 0.9)), Asked()
    first = asked.send(fleet, (SYSTEM, 100))
    others = [asked.send(fleet, (SYSTEM, 200 + n), now_s=float(n)) for n in range(20)]
    assert {where(other) for other in others} == {where(first)}
    assert {other.why for other in others} == {Why.AFFINITY}


def test_the_longest_known_key_wins() -> None:
    asked = Asked()
    asked.memory.keep((SYSTEM,), None, A, Move.STAY, 0.0)
    asked.memory.keep((SYSTEM, 2), asked.memory.find((SYSTEM,)), B, Move.SPILL, 0.0)
    asked.memory.keep((SYSTEM, 2, 3), None, C, Move.STAY, 0.0)
    fleet = fleet_with({A: 0.9, B: 0.9, C: 0.9})
    decision = asked.send(fleet, (SYSTEM, 2, 3, 4))
    assert where(decision) == C
    assert decision.known is not None
    assert decision.known.level == 2


def test_a_conversation_spilled_off_a_full_system_prompt_is_at_home_where_it_went() -> None:
    fleet = fleet_with({A: 0.15, B: 0.9})
    asked = Asked(Rules(affinity=AffinityPolicy(dwell_s=1e9)))
    asked.memory.keep((SYSTEM, 99), None, A, Move.STAY, 0.0)
    placed = asked.memory.find((SYSTEM,))
    assert placed is not None
    placed.placed.moved_s = 0.0
    assert asked.send(fleet, (SYSTEM, 100)).why is Why.KEY_SPILLED
    assert (asked.home(SYSTEM), asked.home(100)) == (A, B)


def test_routers_place_conversations_off_a_full_system_prompt_alike_and_apart() -> None:
    """By what tells them apart: else all would follow the first one to the same replica."""
    homes = []
    for seed in range(2):
        asked = Asked(seed=seed)
        asked.memory.keep((SYSTEM, 99), None, A, Move.STAY, 0.0)
        moved = asked.memory.find((SYSTEM,))
        assert moved is not None
        moved.placed.moved_s = 0.0
        fleet = fleet_with({A: 0.1} | dict.fromkeys(EIGHT, 0.9))
        homes.append([where(asked.send(fleet, (SYSTEM, 100 + n))) for n in range(30)])
    assert homes[0] == homes[1]
    assert len(set(homes[0])) > 4


def test_a_conversation_spilled_off_its_own_home_goes_on_there() -> None:
    asked = Asked()
    asked.memory.keep((SYSTEM, 100), None, A, Move.STAY, 0.0)
    spilled = fleet_with({A: 0.2, B: 0.9})
    for turn in range(1, 20):
        asked.send(spilled, (SYSTEM, *range(100, 100 + 2 * turn)))
    assert asked.home(136) == A


def test_a_long_chain_is_remembered_by_its_ends() -> None:
    asked = Asked()
    asked.memory.keep(range(34), None, A, Move.STAY, 0.0)
    assert len(asked.memory) == 10
    longer = asked.memory.find(range(40))
    assert longer is not None
    assert longer.level == 33


def test_moderate_imbalance_leaves_nine_of_ten_turns_at_home() -> None:
    """Report 13: the load gate throws all locality away."""
    rng, asked = Random(3), Asked()
    scores = {url: rng.uniform(0.3, 0.9) for url in EIGHT}
    fleet, hits, turns = fleet_of([]), 0, 0
    last: dict[int, str | None] = {}
    for step in range(2_000):
        now_s = step / 50
        if step % 25 == 0:  # Every half second each score moves, between 0.25 and 0.9.
            scores = {u: min(0.9, max(0.25, s + rng.gauss(0, 0.05))) for u, s in scores.items()}
            said = (snapshot(url, score, seq=step + 1) for url, score in scores.items())
            fleet, _ = hear(fleet, SIDECAR, document(*said), now_s)
        talk = rng.randrange(100)
        turn = 1 + step // 100
        keys = range(1_000 * talk, 1_000 * talk + 2 * turn)
        to = where(asked.send(fleet, keys, now_s))
        if talk in last:
            turns += 1
            hits += to == last[talk]
        last[talk] = to
    assert turns > 1_500
    assert hits / turns >= 0.9


# Hot keys (mission R5)

HOT_PER_S = AffinityPolicy().hot_per_s


def placed_at(rate_per_s: float) -> Placed:
    return Placed(A, -inf, leaf=True, count=rate_per_s * RATE_S, at_s=0.0)


@pytest.mark.parametrize(
    ("rate_per_s", "homes"),
    [
        (0.0, 1),
        (HOT_PER_S, 1),
        (nextafter(HOT_PER_S, inf), 2),
        (2 * HOT_PER_S, 2),
        (2.5 * HOT_PER_S, 3),
        (7 * HOT_PER_S, 7),
    ],
)
def test_a_key_has_one_home_for_each_hot_rate_that_it_comes_at(
    rate_per_s: float, homes: int
) -> None:
    assert homes_for(placed_at(rate_per_s), HOT_PER_S, 0.0) == homes


@pytest.mark.parametrize("hot_per_s", [5e-324, 1e-300, 1e300, inf])
def test_every_threshold_has_its_number_of_homes(hot_per_s: float) -> None:
    assert homes_for(placed_at(1_000.0), hot_per_s, 0.0) >= 1


@pytest.mark.parametrize(("routers", "workers"), [(1, 1), (4, 1), (1, 8), (4, 8)])
def test_the_threshold_is_the_clusters_and_each_process_sees_its_part(
    routers: int, workers: int
) -> None:
    rules = Rules(affinity=AffinityPolicy(routers=routers), workers=workers)
    assert rules.hot_per_s == HOT_PER_S / (routers * workers)


def stream(
    asked: Asked, fleet: Fleet, rate_per_s: float, seconds: float, from_s: float = 0.0, **kind: bool
) -> list[Decision]:
    """Requests at an even rate: of one key, or each a new conversation behind one."""
    decisions = []
    for n in range(round(rate_per_s * seconds)):
        now_s = from_s + n / rate_per_s
        keys = (SYSTEM, 1_000 + round(now_s * 1_000_000)) if kind.get("new_talks") else (SYSTEM,)
        decisions.append(asked.send(fleet, keys, now_s))
    return decisions


PATIENT = Policy(stale_after_s=1e6, forget_after_s=1e7)
"""The fleet is heard once, and believed."""


@pytest.mark.parametrize("new_talks", [True, False], ids=["system prompt", "single key"])
@pytest.mark.parametrize("times", [2.5, 4.5])
def test_a_hot_key_is_spread_over_as_many_as_its_rate_needs(times: float, new_talks: bool) -> None:
    """Report 12: a hot prefix pins one replica."""
    rules = Rules(choose=PATIENT, affinity=AffinityPolicy(hot_per_s=10.0))
    asked = Asked(rules)
    stream(asked, EQUAL, 10.0 * times, 15.0, new_talks=new_talks)
    then = stream(asked, EQUAL, 10.0 * times, 10.0, 15.0, new_talks=new_talks)
    homes = spread(then)
    assert abs(len(homes) - ceil(times)) <= 1
    assert {decision.why for decision in then} == {Why.HOT_KEY}
    assert max(homes.values()) <= 2 * len(then) / len(homes)


def test_a_key_that_is_not_hot_stays_at_one_home() -> None:
    rules = Rules(choose=PATIENT, affinity=AffinityPolicy(hot_per_s=10.0))
    decisions = stream(Asked(rules), EQUAL, 8.0, 30.0, new_talks=True)
    assert len(spread(decisions)) == 1


def test_a_hot_key_that_cools_down_is_at_its_first_home_again() -> None:
    rules = Rules(choose=PATIENT, affinity=AffinityPolicy(hot_per_s=10.0))
    asked = Asked(rules)
    first = where(asked.send(EQUAL, (SYSTEM,)))
    assert len(spread(stream(asked, EQUAL, 45.0, 15.0))) > 3
    stream(asked, EQUAL, 5.0, 15.0, 15.0)
    cool = stream(asked, EQUAL, 5.0, 10.0, 30.0)
    assert spread(cool).keys() == {first}
    assert {decision.why for decision in cool} == {Why.AFFINITY}


def test_while_a_system_prompt_is_hot_each_conversation_keeps_its_home() -> None:
    rules = Rules(choose=PATIENT, affinity=AffinityPolicy(hot_per_s=10.0))
    asked, rng = Asked(rules), Random(2)
    stream(asked, EQUAL, 45.0, 15.0, new_talks=True)
    homes: dict[int, str | None] = {}
    for n in range(450):
        now_s = 15.0 + n / 45.0
        talk = rng.randrange(100)
        turn = n // 45
        keys = (SYSTEM, *(10**6 * (talk + 1) + m for m in range(2 * turn + 1)))
        decision = asked.send(EQUAL, keys, now_s)
        if talk in homes:
            assert (decision.why, where(decision)) == (Why.AFFINITY, homes[talk])
        homes[talk] = where(decision)
    assert len(set(homes.values())) >= 4


def test_workers_spread_a_hot_system_prompts_conversations_alike() -> None:
    """Each sees a part of the rate, and holds it against a part of the threshold."""
    rules = Rules(choose=PATIENT, affinity=AffinityPolicy(hot_per_s=80.0), workers=4)
    workers = [Asked(rules, seed=seed) for seed in range(4)]
    for n in range(2_500):  # 200 a second of the cluster: three homes.
        worker = workers[n % 4]
        worker.send(EQUAL, (SYSTEM, 10**6 + n), n / 200)
    homes = [
        spread(worker.send(EQUAL, (SYSTEM, 10**9 + n), 12.5) for n in range(50))
        for worker in workers
    ]
    assert all(2 <= len(each) <= 5 for each in homes)
    assert len(set.union(*(set(each) for each in homes))) <= 5


def test_a_full_home_of_a_hot_key_gets_none_of_it() -> None:
    rules = Rules(choose=PATIENT, affinity=AffinityPolicy(hot_per_s=10.0))
    asked = Asked(rules)
    stream(asked, EQUAL, 35.0, 15.0)
    first = asked.home(SYSTEM)
    fleet = fleet_with({url: 0.1 if url == first else 0.9 for url in EIGHT}, now_s=15.0)
    assert spread(stream(asked, fleet, 35.0, 5.0, 15.0))[first] == 0


# Rates


def poisson(rate_per_s: float, seconds: float, rng: Random) -> list[float]:
    moments, now_s = [], rng.expovariate(rate_per_s)
    while now_s < seconds:
        moments.append(now_s)
        now_s += rng.expovariate(rate_per_s)
    return moments


@pytest.mark.parametrize("rate_per_s", [0.8, 10.0, 50.0])
def test_a_rate_is_right_on_average_and_as_noisy_as_stated(rate_per_s: float) -> None:
    """Relative error √(1 / (2 r RATE_S)): its mean within 4 σ, its spread within a fifth."""
    rng, seen = Random(17), []
    runs = 400 if rate_per_s < 20 else 150
    for _ in range(runs):
        memory = Memory(10)
        for now_s in poisson(rate_per_s, 6 * RATE_S, rng):
            memory.keep((KEY,), memory.find((KEY,)), A, Move.STAY, now_s)
        known = memory.find((KEY,))
        seen.append(known.placed.rate_per_s(6 * RATE_S) if known else 0.0)
    mean = sum(seen) / runs
    stated = rate_per_s * sqrt(1.0 / (2.0 * rate_per_s * RATE_S))
    # What an exponential count has not seen of its past: exp(-6), a four-hundredth.
    assert abs(mean - rate_per_s) <= 4 * stated / sqrt(runs) + rate_per_s * exp(-6.0)
    spread_seen = sqrt(sum((rate - mean) ** 2 for rate in seen) / runs)
    assert 0.8 * stated <= spread_seen <= 1.2 * stated


def test_a_rate_decays_and_a_clock_set_back_ages_nothing() -> None:
    placed = placed_at(100.0)
    assert placed.rate_per_s(RATE_S) == pytest.approx(100.0 * exp(-1.0))
    assert placed.rate_per_s(-5.0) == 100.0
    assert placed.rate_per_s(1e12) == 0.0


# The memory's bounds


def flood(memory: Memory, count: int, from_key: int = 10**6) -> None:
    for key in range(from_key, from_key + count):
        memory.keep((key,), None, A, Move.STAY, 0.0)


def test_the_memory_never_holds_more_than_it_may() -> None:
    """Report 4: unbounded prefix table."""
    memory = Memory(100)
    for key in range(1_000):
        chain = range(100 * key, 100 * key + key % 30)
        memory.keep(chain, memory.find(chain), A, Move.STAY, 0.0)
        assert len(memory) <= 100


def test_a_million_distinct_keys_stay_under_the_cap() -> None:
    """Report 4: unbounded prefix table."""
    memory = Memory(200_000)
    flood(memory, 1_000_000)
    assert len(memory) == 200_000
    assert memory.find((10**6 + 800_000 - 1,)) is None
    assert memory.find((10**6 + 800_000,)) is not None


def test_what_was_unused_for_longest_is_forgotten_first() -> None:
    memory = Memory(3)
    flood(memory, 3, from_key=0)
    memory.keep((0,), memory.find((0,)), A, Move.STAY, 1.0)  # Used again.
    flood(memory, 1, from_key=9)
    assert [memory.find((key,)) is not None for key in (0, 1, 2, 9)] == [True, False, True, True]


def test_only_looking_keeps_nothing_alive() -> None:
    memory = Memory(2)
    flood(memory, 2, from_key=0)
    assert memory.find((0,)) is not None
    flood(memory, 1, from_key=9)
    assert memory.find((0,)) is None


def test_a_key_in_use_survives_a_flood_of_keys_used_once() -> None:
    memory = Memory(1_000)
    memory.keep((SYSTEM, 2), None, B, Move.STAY, 0.0)
    for batch in range(20):
        flood(memory, 900, from_key=10**6 * (batch + 1))
        talk = (SYSTEM, 2, 10**9 + batch)
        memory.keep(talk, memory.find(talk), B, Move.STAY, 0.0)
    known = memory.find((SYSTEM,))
    assert known is not None
    assert known.placed.home == B


def test_a_smaller_cap_holds_from_the_next_new_key_on() -> None:
    memory = Memory(1_000)
    flood(memory, 1_000)
    memory.max_keys = 10
    flood(memory, 1, from_key=5)
    assert len(memory) == 10
    assert memory.find((5,)) is not None


@settings(deadline=None, max_examples=100)
@given(
    st.integers(1, 8),
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 12), max_size=14),
            st.sampled_from([A, B, C]),
            st.sampled_from(Move),
            st.floats(-10.0, 100.0),
        ),
        max_size=30,
    ),
)
def test_any_history_leaves_a_bounded_memory_of_sound_entries(
    max_keys: int, history: list[tuple[list[int], str, Move, float]]
) -> None:
    """Even chains that hold a key twice, on a clock that jumps."""
    memory = Memory(max_keys)
    for keys, chosen, move, now_s in history:
        known = memory.find(keys)
        memory.keep(keys, known, chosen, move, now_s)
        assert len(memory) <= max_keys
        found = memory.find(keys)
        if found is not None:
            assert found.placed.rate_per_s(now_s) > 0.0
            assert homes_for(found.placed, HOT_PER_S, now_s) >= 1
