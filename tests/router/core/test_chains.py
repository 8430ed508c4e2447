"""Chains of keys: the longest known one wins, and a conversation keeps its home.

Statistical tests draw from seeded dice and allow 4 standard deviations.
"""

from random import Random

import pytest

from homes import EIGHT, EQUAL, SIDECAR, SYSTEM, A, Asked, B, C, where
from mission import BY_SCORE
from snapshots import document, fleet_with, snapshot
from ullage_router.core.affinity import Move
from ullage_router.core.decision import Why
from ullage_router.core.fleet import fleet_of, hear
from ullage_router.core.policy import AffinityPolicy
from ullage_router.core.rules import Rules

pytestmark = pytest.mark.slow


# Chains


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
    asked = Asked(Rules(BY_SCORE, affinity=AffinityPolicy(dwell_s=1e9)))
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
