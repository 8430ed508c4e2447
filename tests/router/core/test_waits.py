from collections import Counter
from math import exp
from random import Random

import pytest

from snapshots import document, fleet_with, snapshot
from ullage_router.core.affinity import Memory
from ullage_router.core.decide import choose
from ullage_router.core.decision import Decision, Need, Why
from ullage_router.core.detail import candidates
from ullage_router.core.fleet import Fleet, fleet_of, hear
from ullage_router.core.inflight import InFlight
from ullage_router.core.lineup import line_up
from ullage_router.core.odds import Odds
from ullage_router.core.policy import AffinityPolicy, Policy, Way
from ullage_router.core.prefixes import Prefixes
from ullage_router.core.rules import Rules
from ullage_router.core.waits import (
    ANSWER,
    CONTEXT,
    CROWD,
    LEAST_UNCACHED,
    ROOM,
    STALL_S,
    STEP_S,
    TOKEN_S,
    UNKNOWN,
    WORK,
    Pace,
    Typical,
    drawn,
    moves,
    pace_of,
    row_of,
    typical_of,
    waits_of,
    weights_of,
)

A, B, C = "http://a:8000", "http://b:8000", "http://c:8000"
TYPICAL = Typical(1e-3, 0.01)
RULES = Rules(choose=Policy(way=Way.LEAST_WAIT, temperature=0.0))


def decided(
    fleet: Fleet,
    need: Need,
    load: InFlight | None = None,
    prefixes: Prefixes | None = None,
    rules: Rules = RULES,
    seed: int = 1,
) -> Decision:
    odds = Odds(line_up(fleet, need.model, need.size, 0.0, rules), load or InFlight())
    known = prefixes or Prefixes(100)
    return choose(odds, need, 0.0, Random(seed), rules, Memory(1), known)


def at(decision: Decision) -> str:
    assert decision.replica is not None
    return decision.replica.key


def waits(key: str, pace: Pace, load: InFlight, uncached: int) -> float:
    return waits_of([row_of(key, pace, TYPICAL, load)], [uncached])[0]


# What a snapshot says


def test_a_snapshot_that_knows_everything_tells_speeds_and_room() -> None:
    said = snapshot(
        A, running=3, waiting=2, free_blocks=25, total_blocks=100, block_size=16,
        step_s=0.03, prefill_tokens_per_s=5000.0,
    )  # fmt: skip
    assert pace_of(said) == Pace(1 / 5000.0, 0.03, 5, 2, 0.75, 1600, 16)


def test_what_a_snapshot_does_not_know_is_unknown() -> None:
    said = snapshot(
        A, running=None, waiting=None, free_blocks=None, total_blocks=None, max_num_seqs=None
    )
    assert pace_of(said) == pace_of(None) == UNKNOWN


def test_a_typical_replica_is_the_median_of_those_that_are_known() -> None:
    paces = [Pace(1e-3, 0.01), Pace(3e-3, None), Pace(None, 0.05), UNKNOWN]
    assert typical_of(paces) == Typical(2e-3, pytest.approx(0.03), measured=True)
    assert typical_of([]) == typical_of([UNKNOWN]) == Typical(TOKEN_S, STEP_S)
    paces = [
        Pace(requests=9, waiting=2),
        UNKNOWN,
        Pace(requests=4),
        Pace(requests=5, waiting=0, most=8, used=0.5, pool_tokens=100),
    ]
    assert typical_of(paces) == Typical(TOKEN_S, STEP_S, 5, 1.0, 8, 50.0)


# The formula


def test_the_formula() -> None:
    load = InFlight()
    load.hold(A, tokens=1_000)
    pace = Pace(token_s=2e-3, step_s=0.05, requests=3, used=0.5, pool_tokens=10_000)
    assert waits(A, pace, load, 100) == pytest.approx(
        (1_000 + WORK * 100 + ANSWER * (3 + 5_000 / CONTEXT)) * 2e-3
    )


def test_one_that_has_stopped_to_step_is_expected_to_go_on_after_a_while() -> None:
    """It is passed over while others have less to wait for, and is no longer a way out below the
    floor; where nobody has less, it is chosen."""
    going, stalled = (Pace(token_s=1e-3, step_s=0.02, requests=3, stalled=s) for s in (False, True))
    difference = waits(A, stalled, InFlight(), 100) - waits(A, going, InFlight(), 100)
    assert difference == pytest.approx(STALL_S)
    assert (moves(going), moves(stalled)) == (True, False)
    assert pace_of(snapshot(A, stalled=True)).stalled


def test_speeds_that_are_not_known_are_the_typical_ones() -> None:
    load = InFlight()
    load.hold(A, tokens=50)
    assert waits(A, UNKNOWN, load, 0) == pytest.approx((50 + ANSWER) * 1e-3)


def test_the_larger_of_own_and_told_requests_counts() -> None:
    load = InFlight()
    for _ in range(5):
        load.hold(A)
    found = [waits(A, Pace(requests=n), load, 0) for n in (0, 5, 6)]
    assert found == pytest.approx([ANSWER * n * 1e-3 for n in (5, 5, 6)])


def test_requests_of_others_that_wait_have_the_usual_prompt() -> None:
    load = InFlight()
    load.mean_tokens = 400.0
    found = [waits(A, Pace(waiting=n), load, 0) for n in (0, 2)]
    assert found == pytest.approx([0.0, 2 * 400 * 1e-3])


def test_own_requests_that_wait_are_not_counted_twice() -> None:
    load = InFlight()
    holds = [load.hold(A, tokens=100) for _ in range(2)]
    load.mean_tokens = 400.0
    assert waits(A, Pace(waiting=2), load, 0) == pytest.approx(0.2 + 2 * ANSWER * 1e-3)
    holds[0].begun()
    assert waits(A, Pace(waiting=1), load, 0) == pytest.approx(0.1 + 2 * ANSWER * 1e-3)


def test_a_pool_that_will_be_crowded_costs() -> None:
    load = InFlight()
    load.hold(A, tokens=1_000)
    pace = Pace(requests=0, used=ROOM, pool_tokens=10_000)
    over = (1_000 + 500) / 10_000
    plain = (1_000 + WORK * 500 + ANSWER) * 1e-3
    held = ANSWER * 10_000 / CONTEXT * 1e-3
    crowd = CROWD * 0.01 * over
    assert waits(A, pace, load, 500) == pytest.approx(plain + ROOM * held + crowd)
    empty = Pace(used=ROOM - over, pool_tokens=10_000)
    assert waits(A, empty, load, 500) == pytest.approx(plain + (ROOM - over) * held)


def test_one_whose_sequences_all_run_costs_what_is_beyond_them() -> None:
    plain = [waits(A, Pace(requests=n), InFlight(), 0) for n in (15, 16, 19)]
    found = [waits(A, Pace(requests=n, most=16), InFlight(), 0) for n in (15, 16, 19)]
    beyond = [CROWD * 0.01 * n / 16 for n in (0, 1, 4)]
    assert found == pytest.approx([a + b for a, b in zip(plain, beyond, strict=True)])


# The draw


def test_weights_fall_with_the_wait() -> None:
    assert weights_of([1.0, 1.5, 2.0], 0.5) == pytest.approx([1.0, exp(-1), exp(-2)])
    assert weights_of([0.0, 1e9], 0.5) == [1.0, 0.0]
    assert weights_of([2.0, 1.0, 1.0], 0.0) == [0.0, 1.0, 1.0]
    assert weights_of([7.0], 0.0) == [1.0]


def test_a_draw_keeps_to_the_weights() -> None:
    rng = Random(1)
    seen = Counter(drawn([0.0, 1.0, 3.0, 0.0], rng) for _ in range(4_000))
    assert seen.keys() == {1, 2}
    assert abs(seen[2] - 3_000) <= 4 * (4_000 * 0.75 * 0.25) ** 0.5


# Which replica


def test_the_least_backlog_is_chosen_until_its_first_byte_frees_another() -> None:
    fleet, load = fleet_with({A: 0.9, B: 0.9}), InFlight()
    hold = load.hold(A, tokens=5_000)
    other = load.hold(B, tokens=4_000)
    need = Need(prompt_tokens=100)
    assert at(decided(fleet, need, load)) == B
    hold.begun()
    assert at(decided(fleet, need, load)) == A
    other.release()
    assert (load.pending, load.unbegun) == ({}, {})


def test_a_faster_replica_is_given_more_before_it_is_passed_over() -> None:
    said = document(
        snapshot(A, prefill_tokens_per_s=10_000.0, running=0, free_blocks=1000),
        snapshot(B, prefill_tokens_per_s=5_000.0, running=0, free_blocks=1000),
    )
    fleet, load = hear(fleet_of([]), "http://sidecar:9400", said, 0.0)[0], InFlight()
    need = Need(prompt_tokens=1_000)
    load.hold(A, tokens=1_800)
    assert at(decided(fleet, need, load)) == A
    load.hold(A, tokens=100)
    assert at(decided(fleet, need, load)) == B


def kept(*replicas: str) -> Prefixes:
    prefixes, fleet = Prefixes(100), fleet_with({A: 0.9, B: 0.9, C: 0.9})
    for key in replicas:
        prefixes.keep((1, 2), fleet.replicas[key])
    return prefixes


NEED = Need(keys=(1, 2, 3), shares=(0.1, 0.8, 1.0), prompt_tokens=1_000)


def test_who_knows_the_beginning_is_chosen_and_has_the_rest_to_compute() -> None:
    fleet = fleet_with({A: 0.9, B: 0.9, C: 0.9})
    decision = decided(fleet, NEED, prefixes=kept(B))
    assert (at(decision), decision.why, decision.uncached) == (B, Why.AFFINITY, 200)


def test_what_it_saves_must_be_worth_the_queue() -> None:
    fleet, load = fleet_with({A: 0.9, B: 0.9}), InFlight()
    load.hold(B, tokens=int(WORK * 800) - 500)
    assert at(decided(fleet, NEED, load, kept(B))) == B
    load.hold(B, tokens=600)
    decision = decided(fleet, NEED, load, kept(B))
    assert (at(decision), decision.why, decision.uncached) == (A, Why.WAIT, 1_000)


def test_without_affinity_nobody_knows_anything() -> None:
    rules = RULES._replace(affinity=AffinityPolicy(enabled=False))
    fleet = fleet_with({A: 0.9, B: 0.9, C: 0.9})
    whys = {decided(fleet, NEED, None, kept(B), rules, seed).why for seed in range(10)}
    assert whys == {Why.WAIT}


def test_one_that_has_started_anew_knows_nothing() -> None:
    said = document(snapshot(A), snapshot(B, boot_id="next"))
    fleet = hear(fleet_of([]), "http://sidecar:9400", said, 0.0)[0]
    assert decided(fleet, NEED, prefixes=kept(B)).why is Why.WAIT


def test_a_whole_prompt_that_is_known_has_its_last_block_to_compute() -> None:
    fleet = fleet_with({A: 0.9, B: 0.9})
    need = Need(keys=(1, 2), shares=(0.5, 1.0), prompt_tokens=10_000)
    assert decided(fleet, need, prefixes=kept(B)).uncached == LEAST_UNCACHED


def test_equals_get_the_same() -> None:
    fleet = fleet_with({A: 0.9, B: 0.9, C: 0.9})
    seen = Counter(at(decided(fleet, Need(prompt_tokens=9), seed=seed)) for seed in range(900))
    assert all(abs(count - 300) <= 4 * (900 * (1 / 3) * (2 / 3)) ** 0.5 for count in seen.values())


def test_where_no_sidecar_speaks_the_least_backlog_is_chosen() -> None:
    fleet, load = fleet_with({}, silent=(A, B)), InFlight()
    load.hold(A, tokens=50)
    decision = decided(fleet, Need(prompt_tokens=10), load)
    assert (at(decision), decision.score) == (B, None)


def test_one_with_free_sequences_is_chosen_before_one_where_some_wait_for_them() -> None:
    """As busy as they are: 18 of 16 here, 60 of 256 there."""
    said = document(
        snapshot(A, running=16, waiting=2, max_num_seqs=16, step_s=0.02),
        snapshot(B, running=60, waiting=0, max_num_seqs=256, step_s=0.02),
    )
    fleet = hear(fleet_of([]), "http://sidecar:9400", said, 0.0)[0]
    assert at(decided(fleet, Need(prompt_tokens=100))) == B


def test_a_full_replica_is_not_chosen_however_little_it_has_to_do() -> None:
    fleet, load = fleet_with({A: 0.1, B: 0.9}), InFlight()
    load.hold(B, tokens=100_000)
    assert at(decided(fleet, Need(prompt_tokens=10), load)) == B


def test_what_was_expected_is_told() -> None:
    fleet, load = fleet_with({A: 0.9, B: 0.9}), InFlight()
    load.hold(A, tokens=500)
    rules = RULES._replace(choose=Policy(way=Way.LEAST_WAIT, temperature=500.0))
    decision = decided(fleet, NEED, load, kept(A), rules)
    rows = {row.replica: row for row in candidates(decision)}
    assert [rows[name].uncached_tokens for name in ("a:8000", "b:8000")] == [200, 1_000]
    assert [rows[name].home for name in ("a:8000", "b:8000")] == [True, False]
    waits = [rows[name].wait_s for name in ("a:8000", "b:8000")]
    assert waits == sorted(waits, key=lambda wait: wait or 0.0)
    assert sum(row.odds for row in rows.values()) == pytest.approx(1.0)


def test_when_its_first_token_is_expected_is_by_the_true_speed() -> None:
    said = snapshot(A, running=4, step_s=0.02, prefill_tokens_per_s=1_000.0)
    fleet, load = hear(fleet_of([]), "http://sidecar:9400", document(said), 0.0)[0], InFlight()
    load.hold(A, tokens=500)
    decision = decided(fleet, Need(prompt_tokens=2_000), load)
    assert decision.ttft_s == pytest.approx((500 + 2_000) / 1_000)


def test_a_crowd_is_a_cost_and_no_time_until_the_first_token() -> None:
    said = snapshot(
        A, running=16, max_num_seqs=16, free_blocks=0, step_s=0.02, prefill_tokens_per_s=1_000.0
    )
    fleet = hear(fleet_of([]), "http://sidecar:9400", document(said), 0.0)[0]
    decision = decided(fleet, Need(prompt_tokens=2_000))
    assert decision.ttft_s == pytest.approx(2.0)
    (row,) = candidates(decision)
    assert row.wait_s is not None
    assert row.wait_s > decision.ttft_s + WORK * 2.0


def test_the_only_one_that_may_be_chosen_is_told_to_know_the_prompt_if_it_does() -> None:
    fleet = fleet_with({B: 0.9})
    (row,) = candidates(decided(fleet, NEED, prefixes=kept(B)))
    assert (row.home, row.uncached_tokens) == (True, 200)
    (row,) = candidates(decided(fleet, NEED))
    assert (row.home, row.uncached_tokens) == (False, 1_000)
