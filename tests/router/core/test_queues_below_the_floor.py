"""Below the floor, a queue that moves is measured in time (`choose.full_beyond_s`)."""

from random import Random
from typing import Any

import pytest

from snapshots import document, snapshot
from ullage_router.core.affinity import Memory
from ullage_router.core.decide import choose
from ullage_router.core.decision import Decision, Need, Why
from ullage_router.core.detail import candidates
from ullage_router.core.fleet import Fleet, fleet_of, hear
from ullage_router.core.inflight import InFlight
from ullage_router.core.lineup import line_up
from ullage_router.core.odds import SOME, Odds
from ullage_router.core.policy import Policy, Way
from ullage_router.core.prefixes import Prefixes
from ullage_router.core.rules import Rules
from ullage_shared.snapshot import Parts, Snapshot, State

A, B, C = "http://a:8000", "http://b:8000", "http://c:8000"
PARTS = Parts(free=0.45, running=0.2, waiting=0.0, penalty=0.2, warm_up=1.0)
QUEUE: dict[str, Any] = {
    "waiting": 9,
    "waiting_depth": 9.0,
    "max_num_seqs": 256,
    "free_blocks": 9_000,
    "total_blocks": 10_000,
    "prefill_tokens_per_s": 1_000.0,
    "parts": PARTS,
}
NEED = Need(prompt_tokens=100)


def queueing(key: str, score: float = 0.1, **changes: Any) -> Snapshot:
    """Its score is low because some wait, and they wait for their prompts only."""
    return snapshot(key, score, **(QUEUE | changes))


def heard(*said: Snapshot, silent: tuple[str, ...] = ()) -> Fleet:
    return hear(fleet_of(silent), "http://sidecar:9400", document(*said), 0.0)[0]


def told(mean_tokens: float = 100.0) -> InFlight:
    load = InFlight()
    load.mean_tokens = mean_tokens
    return load


def within(beyond_s: float, floor: float = 0.15) -> Rules:
    return Rules(choose=Policy(Way.LEAST_WAIT, 0.0, floor=floor, full_beyond_s=beyond_s))


def decided(
    fleet: Fleet,
    need: Need = NEED,
    load: InFlight | None = None,
    rules: Rules | None = None,
    seed: int = 1,
) -> Decision:
    rules = rules or within(10.0)
    odds = Odds(line_up(fleet, need.model, need.size, 0.0, rules), load or told())
    return choose(odds, need, 0.0, Random(seed), rules, Memory(1), Prefixes(100))


def at(decision: Decision) -> str | None:
    return decision.replica.key if decision.replica else None


def test_below_the_floor_one_is_full_only_while_its_queue_takes_too_long() -> None:
    """Nine wait, of 100 tokens each, at 1,000 tokens a second: 0.9 s."""
    fleet, need = heard(queueing(A)), Need(prompt_tokens=5_000)
    for beyond_s, why in ((0.91, Why.WAIT), (0.89, Why.FULL), (0.0, Why.FULL)):
        assert decided(fleet, need, rules=within(beyond_s)).why is why


@pytest.mark.parametrize(
    "changes",
    [
        {"running": 256},
        {"free_blocks": 1_400},
        {"parts": Parts(free=0.05, running=0.05, waiting=0.04, penalty=0.6, warm_up=1.0)},
        {"parts": Parts(free=0.45, running=0.2, waiting=0.0, penalty=0.5, warm_up=0.2)},
        {"parts": None},
        {"state": State.RAMPING, "parts": Parts(0.2, 0.05, 0.0, 1.0, 0.5)},
        {"prefill_tokens_per_s": None},
    ],
    ids=[
        "no sequence is free",
        "few blocks are free",
        "without its queue it would be, too",
        "it is warming up",
        "an old sidecar does not say why",
        "it is on its ramp",
        "nobody knows how fast it is",
    ],
)
def test_below_the_floor_one_is_full_if_not_its_queue_is_why(changes: dict[str, Any]) -> None:
    assert decided(heard(queueing(A, **changes)), Need(prompt_tokens=9)).why is Why.FULL


def test_a_prompt_that_would_fill_the_pool_of_one_below_the_floor_waits() -> None:
    fleet = heard(queueing(A, waiting=0, free_blocks=100, total_blocks=100))
    fits, fills = Need(prompt_tokens=1_300), Need(prompt_tokens=1_400)  # Of 1,600, up to ROOM.
    assert decided(fleet, fits).why is Why.WAIT
    assert decided(fleet, fills).why is Why.FULL


def test_one_with_a_queue_that_moves_and_one_above_the_floor_are_judged_alike() -> None:
    """By the least wait: how far from the floor they are says nothing of that."""
    fleet, load = heard(queueing(A), queueing(B, 0.2, waiting=0)), told()
    assert at(decided(fleet, load=load)) == B
    load.hold(B, tokens=20_000)
    assert at(decided(fleet, load=load)) == A


def test_one_that_this_router_has_filled_since_is_measured_in_time_too() -> None:
    fleet, load = heard(queueing(A, 0.5, waiting=0), queueing(B)), told()
    for _ in range(8):
        load.hold(A, 0.05, tokens=16)
    assert at(decided(fleet, load=load)) == A


def test_a_queue_below_the_floor_does_not_shut_out_the_silent_ones() -> None:
    """Of them nobody knows a queue: they are as good as the worst above the floor, or as empty."""
    for waiting in (90, 200):
        fleet = heard(queueing(A, waiting=waiting, waiting_depth=float(waiting)), silent=(B, C))
        assert at(decided(fleet)) in (B, C)


def test_where_as_many_are_there_as_run_at_once_no_more_are_sent() -> None:
    """A queue that has stopped to move looks as if it did, until its engine counts as hung."""
    fleet, load, sent = heard(queueing(A, prefill_tokens_per_s=1e6)), told(), 0
    while decided(fleet, Need(prompt_tokens=16), load).replica and sent < 1_000:
        load.hold(A, 1 / 256, tokens=16)
        sent += 1
    assert sent == 256


def test_a_router_that_has_just_started_takes_others_queues_for_usual_ones() -> None:
    fleet = heard(queueing(A, waiting=100, waiting_depth=100.0))
    assert decided(fleet, load=InFlight()).why is Why.FULL


def test_requests_that_it_was_sent_since_make_one_full_in_their_time() -> None:
    fleet, load, need = heard(queueing(A, waiting=0)), InFlight(), Need(prompt_tokens=100)
    hold = load.hold(A, tokens=11_000)
    refused = decided(fleet, need, load)
    assert (refused.replica, refused.why) == (None, Why.FULL)
    assert [row.weight for row in candidates(refused)] == [0.0]
    hold.begun()
    assert at(decided(fleet, need, load)) == A


def test_where_those_looked_at_are_full_others_are_looked_at() -> None:
    keys = [f"http://r{i}:8000" for i in range(SOME)]
    fleet, load = heard(*(queueing(key, waiting=0) for key in keys)), told()
    for key in keys[:-1]:
        load.hold(key, tokens=11_000)
    for seed in range(20):
        assert at(decided(fleet, load=load, seed=seed)) == keys[-1]


def test_all_that_breathe_are_counted_in_time_however_many_are_full() -> None:
    """Only some are looked at each time: others each time."""
    keys = [f"http://r{i}:8000" for i in range(3 * SOME)]
    fleet, load = heard(*(queueing(key, waiting=0) for key in keys)), told()
    for key in keys[1:]:
        load.hold(key, tokens=11_000)
    odds = Odds(line_up(fleet, None, NEED.size, 0.0, within(10.0)), load)
    counts = [odds.breathing(10.0) for _ in range(6)]
    assert sorted(counts) == [0, 0, 0, 0, 1, 1]


def test_those_above_the_floor_breathe_all() -> None:
    fleet = heard(queueing(A), queueing(B, 0.5), queueing(C, 0.4, waiting=0))
    load = told(10_000.0)
    odds = Odds(line_up(fleet, None, NEED.size, 0.0, within(10.0)), load)
    assert odds.breathing(10.0) == 2
