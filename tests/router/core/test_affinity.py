"""Keys and their homes: the three tiers and the dwell, to the edge.

Statistical tests draw from seeded dice and allow 4 standard deviations.
"""

from collections.abc import Mapping
from math import nextafter, sqrt
from random import Random

import pytest

from homes import EQUAL, KEY, RULES, SIDECAR, A, Asked, B, at_home, spread, where
from mission import BY_SCORE
from snapshots import document, fleet_with, snapshot
from ullage_router.core.affinity import Move
from ullage_router.core.breaker import BreakerPolicy, Event, after
from ullage_router.core.decision import Why
from ullage_router.core.fleet import Fleet, fleet_of, hear, with_breaker
from ullage_router.core.policy import AffinityPolicy, Policy, Way
from ullage_router.core.rules import Rules
from ullage_shared.snapshot import State

pytestmark = pytest.mark.slow


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
    rules = Rules(choose=Policy(Way.WEIGHTED, floor=0.5), affinity=affinity)
    assert stays(nextafter(0.6, 1.0), rules) == TIERS
    assert stays(0.6, rules) == 0
    assert stays(0.3, Rules(BY_SCORE, affinity=AffinityPolicy(stay_above=0.0))) == TIERS


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
    assert {(d.why, where(d)) for d in decisions} == {
        (Why.AFFINITY_BY_CHANCE, A),
        (Why.KEY_SPILLED, B),
    }
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
    asked = Asked(Rules(BY_SCORE, affinity=AffinityPolicy(enabled=False)))
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
    assert {asked.send(fleet).why for _ in range(50)} == {Why.AFFINITY_BY_CHANCE, Why.KEY_SPILLED}
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
    asked = Asked(Rules(BY_SCORE, affinity=AffinityPolicy(dwell_s=1_000.0)))
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
