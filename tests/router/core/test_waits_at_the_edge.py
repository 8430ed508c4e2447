"""What `least_wait` does with pictures that are extreme, at odds with themselves, or missing."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshots import document, fleet_with, snapshot
from ullage_router.core.affinity import Memory
from ullage_router.core.breaker import BreakerPolicy, Event, after
from ullage_router.core.decide import choose
from ullage_router.core.decision import Decision, Need
from ullage_router.core.fleet import Fleet, fleet_of, hear, with_breaker
from ullage_router.core.inflight import InFlight
from ullage_router.core.lineup import line_up
from ullage_router.core.odds import Odds
from ullage_router.core.policy import Policy, Way
from ullage_router.core.prefixes import Prefixes
from ullage_router.core.rules import Rules
from ullage_router.core.waits import drawn, weights_of
from ullage_shared.snapshot import decode, encode

A, B, C = "http://a:8000", "http://b:8000", "http://c:8000"
SIDECAR = "http://sidecar:9400"


def decided(
    fleet: Fleet, load: InFlight, temperature: float = 1.0, seed: int = 1, tokens: int = 100
) -> Decision:
    rules, need = Rules(choose=Policy(Way.LEAST_WAIT, temperature)), Need(prompt_tokens=tokens)
    odds = Odds(line_up(fleet, None, need.size, 0.0, rules), load)
    return choose(odds, need, 0.0, Random(seed), rules, Memory(1), Prefixes(1))


def chosen(fleet: Fleet, load: InFlight, draws: int) -> Counter[str]:
    keys = (decided(fleet, load, seed=seed).replica for seed in range(draws))
    return Counter(replica.key for replica in keys if replica is not None)


# Numbers


@pytest.mark.parametrize("temperature_s", [5e-324, 1e-300, 1e-18])
def test_the_least_wait_can_be_drawn_at_any_temperature(temperature_s: float) -> None:
    """A difference that is lost beside the wait itself is still one from the least to none."""
    weights = weights_of([1e3, 1e9, 1e3], temperature_s)
    assert weights == [1.0, 0.0, 1.0]
    assert drawn(weights, Random(1)) in (0, 2)


COUNTS = st.none() | st.sampled_from([0, 1, 2**31, 2**63 - 1])
SPEEDS = st.none() | st.sampled_from([5e-324, 1e-300, 1e-9, 1e-3, 1.0, 1e12])


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "running": COUNTS,
                "waiting": COUNTS,
                "free_blocks": COUNTS,
                "total_blocks": COUNTS,
                "block_size": COUNTS,
                "max_num_seqs": COUNTS,
                "step_s": SPEEDS,
                "prefill_tokens_per_s": SPEEDS,
            }
        ),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([0, 100, 2**40]),
    st.sampled_from([0.0, 5e-324, 1e-18, 1.0, 1000.0]),
)
def test_every_picture_that_the_wire_lets_through_has_its_answer(
    said: list[dict[str, float | int | None]], tokens: int, temperature: float
) -> None:
    sent = document(*(snapshot(f"http://r{i}:8000", 0.9, **told) for i, told in enumerate(said)))
    fleet, load = hear(fleet_of([A]), SIDECAR, decode(encode(sent))[0], 0.0)[0], InFlight()
    for key in fleet.replicas:
        load.hold(key, tokens=tokens)
    decision = decided(fleet, load, temperature, tokens=tokens)
    assert decision.replica is not None


# Those that return


@pytest.mark.parametrize("backlog", [0, 2_000, 100_000])
def test_one_that_returns_from_an_ejection_gets_its_part_however_idle_it_is(backlog: int) -> None:
    """Nothing was sent there meanwhile: it is by far the least wait."""
    fleet, policy = fleet_with({A: 0.9, B: 0.9, C: 0.9}), BreakerPolicy()
    breaker = fleet.replicas[A].breaker
    for event in [*[Event.FAILED] * policy.eject_after, Event.PROBE_ANSWERED]:
        breaker = after(breaker, event, 0.0, policy)
    fleet, load = with_breaker(fleet, A, breaker), InFlight()
    load.hold(B, tokens=backlog)
    load.hold(C, tokens=backlog)
    draws, share = 400, 0.1
    assert chosen(fleet, load, draws)[A] <= share * draws + 4 * (draws * share * 0.9) ** 0.5
    alone = with_breaker(fleet_with({A: 0.9}), A, breaker)
    assert chosen(alone, load, 10) == {A: 10}


# Those that are silent


def test_one_that_nobody_has_heard_of_is_as_busy_as_others_are() -> None:
    """Other routers' requests are there, too, though none of them is to be seen."""
    heard = [snapshot(key, running=150, waiting=1) for key in (A, B, C)]
    silent = "http://silent:8000"
    fleet, load = hear(fleet_of([silent]), SIDECAR, document(*heard), 0.0)[0], InFlight()
    load.mean_tokens = 1_000.0
    draws = 400
    spread = chosen(fleet, load, draws)
    assert all(abs(spread[key] - 100) <= 4 * (draws * 0.25 * 0.75) ** 0.5 for key in (A, silent))


def test_own_requests_at_a_silent_one_count_once_they_are_more() -> None:
    fleet = hear(fleet_of([B]), SIDECAR, document(snapshot(A, running=20)), 0.0)[0]
    load = InFlight()
    for _ in range(40):
        load.hold(B)
    assert chosen(fleet, load, 200)[B] <= 20  # A few: it is five steps behind.
