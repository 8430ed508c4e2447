"""Hot keys, the rates that make them hot, and the bounds of what is remembered of keys.

Statistical tests draw from seeded dice and allow 4 standard deviations.
"""

from math import ceil, exp, inf, nextafter, sqrt
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homes import EIGHT, EQUAL, KEY, SYSTEM, A, Asked, B, C, spread, where
from mission import BY_SCORE
from snapshots import fleet_with
from ullage_router.core.affinity import RATE_S, Memory, Move, Placed, homes_for
from ullage_router.core.decision import Decision, Why
from ullage_router.core.fleet import Fleet
from ullage_router.core.policy import AffinityPolicy, Policy, Way
from ullage_router.core.rules import Rules

pytestmark = pytest.mark.slow


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
    rules = Rules(BY_SCORE, affinity=AffinityPolicy(routers=routers), workers=workers)
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


PATIENT = Policy(Way.WEIGHTED, stale_after_s=1e6, forget_after_s=1e7)
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


def test_hot_keys_are_told_the_hottest_first_and_only_while_they_are() -> None:
    memory = Memory(10_000)
    for key, times in ((1, 300), (2, 500), (3, 250)):
        for _ in range(times):
            memory.keep((key,), memory.find((key,)), A, Move.STAY, 0.0)
    assert [(key, placed.home) for key, placed in memory.hot(HOT_PER_S, 0.0)] == [(2, A), (1, A)]
    assert [key for key, _ in memory.hot(HOT_PER_S, RATE_S * 0.5)] == [2]
    assert memory.hot(HOT_PER_S, RATE_S) == []


def test_a_hot_key_is_found_behind_4095_others_and_no_further() -> None:
    """A look at all that is remembered would hold up requests."""
    memory = Memory(10_000)
    for _ in range(300):
        memory.keep((1,), memory.find((1,)), A, Move.STAY, 0.0)
    flood(memory, 4095)
    assert [key for key, _ in memory.hot(HOT_PER_S, 0.0)] == [1]
    flood(memory, 1, from_key=5_000)
    assert memory.hot(HOT_PER_S, 0.0) == []


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
