"""A decision told in numbers: they are those that it was made by."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mission import AS_ASKED
from snapshots import document, fleet_with, snapshot
from ullage_router.core.affinity import Memory, Move
from ullage_router.core.breaker import LEAST_SHARE, BreakerPolicy, Event, after
from ullage_router.core.decide import decide
from ullage_router.core.decision import Decision, Need, Why
from ullage_router.core.detail import Candidate, candidates
from ullage_router.core.fleet import Fleet, fleet_of, hear, with_breaker
from ullage_router.core.inflight import InFlight
from ullage_router.core.policy import Policy, Way
from ullage_router.core.rules import Rules
from ullage_shared.snapshot import RequestClass, Scores

A, B, C = (f"http://{name}:8000" for name in "abc")
SIDECAR = "http://sidecar:9400"


def decided(
    fleet: Fleet,
    need: Need | None = None,
    *,
    now_s: float = 0.0,
    load: InFlight | None = None,
    memory: Memory | None = None,
    rules: Rules | None = None,
) -> Decision:
    return decide(
        fleet,
        need or Need(),
        now_s,
        Random(1),
        rules or AS_ASKED,
        load or InFlight(),
        memory or Memory(10),
    )


def told(decision: Decision) -> dict[str, Candidate]:
    return {candidate.replica: candidate for candidate in candidates(decision)}


def test_each_candidate_is_told_with_what_it_was_judged_by() -> None:
    load = InFlight()
    load.hold(B, 0.1)
    assert candidates(decided(fleet_with({A: 0.8, B: 0.5}), load=load)) == [
        Candidate("a:8000", 0.8, 1.0, 0.8, 0.8**2, pytest.approx(0.8), home=False),
        Candidate("b:8000", 0.5, 1.0, 0.4, 0.4**2, pytest.approx(0.2), home=False),
    ]


def test_the_likeliest_comes_first_and_equals_by_name() -> None:
    decision = decided(fleet_with({C: 0.5, B: 0.5, A: 0.4}))
    assert [candidate.replica for candidate in candidates(decision)] == [
        "b:8000",
        "c:8000",
        "a:8000",
    ]


def test_a_falling_score_is_told_with_its_trend() -> None:
    fleet = fleet_of([])
    for seq, score in enumerate([0.7, 0.6, 0.5], start=1):
        fleet, _ = hear(fleet, SIDECAR, document(snapshot(A, score, seq=seq)), seq / 2)
    candidate = told(decided(fleet, now_s=1.5))["a:8000"]
    assert (candidate.score, candidate.trend) == (0.5, pytest.approx(0.6))
    assert candidate.effective == 0.5  # It has room for that much, and is weighed as with 0.3.
    assert candidate.weight == pytest.approx(0.09)


def test_the_score_told_is_the_one_for_the_requests_size() -> None:
    said = document(snapshot(A, 0.5, scores=Scores(long=0.9)))
    fleet, _ = hear(fleet_of([]), SIDECAR, said, 0.0)
    assert told(decided(fleet, Need(size=RequestClass.LONG)))["a:8000"].score == 0.9


def test_a_silent_candidate_has_no_score_and_is_worth_the_worst_of_the_others() -> None:
    candidate = told(decided(fleet_with({A: 0.8, B: 0.4}, silent=(C,))))["c:8000"]
    assert (candidate.score, candidate.trend) == (None, 1.0)
    assert candidate.effective == 0.4
    assert candidate.odds == pytest.approx(0.16 / 0.96)


def test_by_own_counts_odds_come_from_requests_in_flight() -> None:
    load = InFlight()
    load.hold(B)
    rows = told(decided(fleet_of([A, B]), load=load))
    assert [rows[name].effective for name in ("a:8000", "b:8000")] == [1.0, 0.5]
    assert rows["a:8000"].odds == pytest.approx(0.8)


def test_a_candidate_that_this_router_has_filled_is_told_without_odds() -> None:
    load = InFlight()
    load.hold(B, 0.4)
    candidate = told(decided(fleet_with({A: 0.8, B: 0.5}), load=load))["b:8000"]
    assert candidate.effective == pytest.approx(0.1)
    assert (candidate.weight, candidate.odds) == (0.0, 0.0)


def test_a_returning_candidate_is_told_with_its_share_of_the_weight() -> None:
    fleet, policy = fleet_with({A: 0.8, B: 0.8, C: 0.8}), BreakerPolicy()
    for event in [Event.FAILED] * policy.eject_after + [Event.PROBE_ANSWERED]:
        breaker = after(fleet.replicas[A].breaker, event, 0.0, policy)
        fleet = with_breaker(fleet, A, breaker)
    rows = told(decided(fleet))
    assert rows["a:8000"].weight == pytest.approx(LEAST_SHARE * 0.64)
    assert rows["a:8000"].odds == pytest.approx(LEAST_SHARE / (2 + LEAST_SHARE))


def test_the_home_of_the_requests_key_is_marked() -> None:
    memory = Memory(10)
    memory.keep((7,), None, B, Move.STAY, 0.0)
    decision = decided(fleet_with({A: 0.8, B: 0.5}), Need(keys=(7,)), memory=memory)
    assert decision.why is Why.AFFINITY
    assert {row.replica: row.home for row in candidates(decision)} == {
        "a:8000": False,
        "b:8000": True,
    }


def test_a_refusal_tells_whom_this_router_had_filled() -> None:
    load = InFlight()
    load.hold(A, 0.5)
    decision = decided(fleet_with({A: 0.5}), load=load)
    assert decision.why is Why.FULL
    assert [(row.effective, row.odds) for row in candidates(decision)] == [(0.0, 0.0)]


def test_nobody_is_told_where_nobody_serves_or_nothing_was_kept() -> None:
    assert candidates(decided(fleet_of([]))) == []
    assert candidates(Decision(None, Why.FULL)) == []


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 0.5)), min_size=1, max_size=100),
    st.one_of(st.floats(0.0, 4.0), st.just("auto")),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 120),
)
def test_odds_come_to_one_and_the_chosen_is_among_those_told(
    rows: list[tuple[float, float]], exponent: float, keys: list[int], home: int
) -> None:
    fleet = fleet_with({f"http://r{i}:8000": score for i, (score, _) in enumerate(rows)})
    load, memory = InFlight(), Memory(10)
    for index, (_, taken) in enumerate(rows):
        load.hold(f"http://r{index}:8000", taken)
    memory.keep((0, 1), None, f"http://r{home}:8000", Move.STAY, 0.0)
    policy = Policy(Way.WEIGHTED, exponent=exponent)
    decision = decided(
        fleet,
        Need(keys=tuple(keys)),
        load=load,
        memory=memory,
        rules=Rules(choose=policy),
    )
    all_told = candidates(decision)
    for row in all_told:
        assert row.score is not None
        assert (row.weight > 0.0) == (row.effective > policy.floor)
    if decision.replica is None:
        assert not any(row.odds for row in all_told)
        return
    assert sum(row.odds for row in all_told) == pytest.approx(1.0)
    chosen = told(decision)[decision.replica.id]
    assert chosen.odds > 0.0
    assert chosen.score == decision.score
