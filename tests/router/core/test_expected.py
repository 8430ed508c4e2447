"""Whom a request looks at, in small fleets and large ones, and rows that follow what is sent.

Edges: one replica; as many as are looked at, and one more; none that knows the prompt, one, all;
one that knows it but has no room, or has gone.
"""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshots import fleet_with
from ullage_router.core.affinity import Memory
from ullage_router.core.decide import choose
from ullage_router.core.decision import Decision, Need, Why
from ullage_router.core.detail import candidates
from ullage_router.core.expected import MOST_AT_ONCE, MOST_KNOWING
from ullage_router.core.fleet import Fleet
from ullage_router.core.inflight import Hold, InFlight
from ullage_router.core.lineup import line_up
from ullage_router.core.odds import Odds
from ullage_router.core.policy import Policy, Way
from ullage_router.core.prefixes import Prefixes
from ullage_router.core.rules import Rules
from ullage_shared.snapshot import RequestClass

A, B, C = "http://a:8000", "http://b:8000", "http://c:8000"
MANY = [f"http://r{i}:8000" for i in range(100)]
RULES = Rules(Policy(Way.LEAST_WAIT, temperature=0.0))
NEED = Need(keys=(1, 2, 3), shares=(0.1, 0.8, 1.0), prompt_tokens=1_000)


def odds_of(fleet: Fleet, load: InFlight | None = None) -> Odds:
    return Odds(line_up(fleet, None, RequestClass.MIXED, 0.0, RULES), load or InFlight())


def decided(odds: Odds, prefixes: Prefixes, need: Need = NEED, seed: int = 1) -> Decision:
    return choose(odds, need, 0.0, Random(seed), RULES, Memory(1), prefixes)


def a_need(*keys: int) -> Need:
    """Of which each key covers as much more."""
    shares = tuple((level + 1) / len(keys) for level in range(len(keys)))
    return Need(keys=keys, shares=shares, prompt_tokens=1_000)


def some_keys(count: int) -> list[int]:
    rng = Random(5)
    return [rng.getrandbits(64) for _ in range(count)]


def looked_at(decision: Decision) -> int:
    return sum(row.wait_s is not None for row in candidates(decision))


def known_to(fleet: Fleet, *who: str) -> Prefixes:
    prefixes = Prefixes(100)
    for key in who:
        prefixes.keep((1, 2), fleet.replicas[key])
    return prefixes


@pytest.mark.parametrize("size", [1, 2, MOST_AT_ONCE])
def test_a_small_fleet_is_looked_at_whole(size: int) -> None:
    fleet = fleet_with(dict.fromkeys(MANY[:size], 0.9))
    assert looked_at(decided(odds_of(fleet), Prefixes(1))) == size


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("size", [MOST_AT_ONCE + 1, 100])
def test_of_a_large_one_some_are_looked_at_and_each_as_often(size: int, keyed: bool) -> None:
    odds = odds_of(fleet_with(dict.fromkeys(MANY[:size], 0.9)))
    draws = 2_000
    seen: Counter[str] = Counter()
    for key in some_keys(draws):
        decision = decided(odds, Prefixes(1), a_need(key) if keyed else Need(), seed=key)
        rows = [row.replica for row in candidates(decision) if row.wait_s is not None]
        assert len(rows) == MOST_AT_ONCE
        seen.update(rows)
    share = MOST_AT_ONCE / size
    assert len(seen) == size
    allowed = 4 * (draws * share * (1 - share)) ** 0.5
    assert all(abs(count - draws * share) <= allowed for count in seen.values())


def test_who_knows_most_of_the_prompt_is_always_looked_at() -> None:
    fleet = fleet_with(dict.fromkeys(MANY, 0.9))
    odds, prefixes = odds_of(fleet), known_to(fleet, MANY[7])
    for seed in range(50):
        decision = decided(odds, prefixes, seed=seed)
        assert (decision.replica, decision.why) == (fleet.replicas[MANY[7]], Why.AFFINITY)
        assert decision.uncached == 200


def test_those_that_know_the_longest_part_come_before_those_that_know_less() -> None:
    fleet = fleet_with(dict.fromkeys(MANY, 0.9))
    prefixes = Prefixes(1_000)
    for key in MANY:
        prefixes.keep((1,), fleet.replicas[key])
    prefixes.keep((1, 2, 3), fleet.replicas[MANY[7]])
    odds = odds_of(fleet)
    for seed in range(50):
        decision = decided(odds, prefixes, seed=seed)
        assert decision.replica is fleet.replicas[MANY[7]]
        assert looked_at(decision) <= MOST_AT_ONCE + MOST_KNOWING


def test_what_all_know_is_a_reason_to_look_at_no_more_than_a_few_others() -> None:
    fleet = fleet_with(dict.fromkeys(MANY, 0.9))
    odds, prefixes = odds_of(fleet), known_to(fleet, *MANY)
    seen: set[str] = set()
    for key in some_keys(200):
        decision = decided(odds, prefixes, a_need(1, 2, key))
        assert MOST_AT_ONCE <= looked_at(decision) <= MOST_AT_ONCE + MOST_KNOWING
        assert decision.uncached == 334
        assert decision.replica is not None
        seen.add(decision.replica.key)
    assert len(seen) > 50


def test_one_that_knows_it_and_has_no_room_or_has_gone_is_not_looked_at() -> None:
    fleet = fleet_with(dict.fromkeys(MANY, 0.9) | {MANY[7]: 0.1})
    prefixes = known_to(fleet, MANY[7], MANY[8])
    without = fleet_with(dict.fromkeys((*MANY[:8], *MANY[9:]), 0.9) | {MANY[7]: 0.1})
    decision = decided(odds_of(without), prefixes)
    assert decision.why is Why.WAIT
    assert looked_at(decision) == MOST_AT_ONCE


def test_nobody_is_looked_at_twice() -> None:
    fleet = fleet_with(dict.fromkeys(MANY[: MOST_AT_ONCE + 1], 0.9))
    prefixes = known_to(fleet, *MANY[: MOST_AT_ONCE + 1])
    for seed in range(20):
        waits = decided(odds_of(fleet), prefixes, seed=seed).look.waits  # type: ignore[union-attr]
        assert waits is not None
        assert len(set(waits.places)) == len(waits.places)


def test_those_that_have_left_or_started_anew_take_nobodys_place_among_who_knows_it() -> None:
    """A prompt that everybody uses has been known to each pod of each roll-out."""
    prefixes, key = Prefixes(100), MANY[7]
    for roll_out in range(3):
        for replica in fleet_with(dict.fromkeys(MANY, 0.9)).replicas.values():
            prefixes.keep((1, 2), replace(replica, boot_id=f"boot {roll_out}"))
    for pod in range(100):
        (gone,) = fleet_with({f"http://pod-{pod}:8000": 0.9}).replicas.values()
        prefixes.keep((1, 2), gone)
        prefixes.left(gone.key)
    fleet = fleet_with(dict.fromkeys(MANY, 0.9))
    for replica in fleet.replicas.values():
        prefixes.keep((9,), replica)
    prefixes.keep((1, 2), fleet.replicas[key])
    odds = odds_of(fleet)
    for seed in range(50):
        decision = decided(odds, prefixes, seed=seed)
        assert decision.replica is fleet.replicas[key]
        waits = decision.look.waits  # type: ignore[union-attr]
        assert waits is not None
        assert len(set(waits.places)) == len(waits.places)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["hold", "begun", "release", "look"]),
            st.sampled_from([A, B, C]),
            st.integers(0, 5_000),
        ),
        max_size=40,
    )
)
def test_rows_that_are_kept_up_are_those_made_anew(
    history: list[tuple[str, str, int]],
) -> None:
    fleet, load = fleet_with({A: 0.9, B: 0.5, C: 0.2}), InFlight()
    odds = Odds(line_up(fleet, None, RequestClass.MIXED, 0.0, RULES), load)
    holds: list[Hold] = []
    for what, key, number in history:
        if what == "hold":
            holds.append(load.hold(key, number / 50_000, number))
        elif what == "look":
            odds.catch_up()
            odds.expected().rows(range(len(odds.seats)))
        elif holds:
            hold = holds[number % len(holds)]
            hold.begun() if what == "begun" else hold.release()
    odds.catch_up()
    mean, load.mean_tokens = load.mean_tokens, 0.0  # Which all rows would have to follow.
    anew = Odds(line_up(fleet, None, RequestClass.MIXED, 0.0, RULES), load)
    seats = range(len(odds.seats))
    assert odds.expected().rows(seats) == anew.expected().rows(seats)
    assert mean >= 0.0
