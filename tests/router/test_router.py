"""The router's own state: what it logs, counts, holds against replicas, and forgets."""

import logging
import random
from collections.abc import Callable

import pytest

from hand_clock import Clock
from mission import AS_ASKED, BY_SCORE
from snapshots import document, fleet_with, snapshot
from ullage_router.core.ask import Ask
from ullage_router.core.breaker import Breaker, BreakerPolicy, Condition
from ullage_router.core.fleet import fleet_of, hear, relist
from ullage_router.core.policy import AffinityPolicy, Policy, Way
from ullage_router.core.rules import Rules
from ullage_router.router import Router
from ullage_shared.snapshot import RequestClass

A, B, C = "http://a:8000", "http://b:8000", "http://c:8000"


def router_with(*urls: str, rules: Rules = AS_ASKED, score: float = 0.5) -> tuple[Router, Clock]:
    """A router, and its clock, of replicas that a sidecar speaks for."""
    clock = Clock(1_000.0)
    fleet = fleet_with(dict.fromkeys(urls, score), now_s=clock.now_s)
    return Router(fleet, rules, random.Random(1), clock), clock


def errs(router: Router, url: str, times: int = 1) -> None:
    for _ in range(times):
        router.answered(router.fleet.replicas[url], 500)


def held(router: Router, url: str) -> Breaker:
    return router.fleet.replicas[url].breaker


def test_a_replica_that_cannot_be_reached_is_logged_when_it_begins_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    router = Router(fleet_of([A]), AS_ASKED, random.Random(0), now_s=iter(range(99)).__next__)
    (replica,) = router.fleet.replicas.values()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            router.failed(replica, "connect", "Connection refused")
        router.answered(replica, 200)
        router.answered(replica, 200)
    assert [line.partition(" replica=")[0] for line in caplog.messages] == [
        "replica_failing",
        "replica_answers",
    ]


def test_a_replica_that_leaves_takes_its_counts_along() -> None:
    router = Router(fleet_of([A, B]), AS_ASKED, random.Random(0))
    for replica in router.fleet.replicas.values():
        hold, _ = router.dispatch(replica)
        hold.release()
    router.fleet = fleet_of([B])
    assert set(router.tallies) == {B}


# What is held against a replica


def test_an_ejection_is_logged_and_counted_once_and_so_is_the_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    router, clock = router_with(A, B)
    with caplog.at_level(logging.INFO):
        errs(router, A, 5)
        assert list(router.probes_due()) == []
        clock.now_s += 5.0
        assert router.probes_due() == {A: A}
        router.probed(A, answered=False)
        assert list(router.probes_due()) == []
        clock.now_s += 5.0
        router.probed(A, answered=True)
        clock.now_s += 10.0
        router.answered(router.fleet.replicas[A], 200)
    assert [line.partition(" replica=")[0] for line in caplog.messages] == [
        "replica_ejected",
        "replica_returns",
    ]
    assert router.tallies[A].ejections == 1
    assert held(router, A) == Breaker()


OUTCOMES: dict[str, tuple[Callable[[Router], None], Condition, int]] = {
    "no answer": (
        lambda router: router.failed(router.fleet.replicas[A], "closed", "gone"),
        Condition.STRUCK,
        1,
    ),
    "broken off": (
        lambda router: router.broke_off(router.fleet.replicas[A], "reset"),
        Condition.STRUCK,
        1,
    ),
    "full": (lambda router: router.full(router.fleet.replicas[A]), Condition.STRUCK, 0),
    "its own 5xx": (lambda router: errs(router, A), Condition.CLOSED, 1),
    **{
        str(status): (
            lambda router, status=status: router.answered(router.fleet.replicas[A], status),
            Condition.CLOSED,
            0,
        )
        for status in (101, 200, 302, 400, 404, 429, 499, 501, 503, 505)
    },
}


@pytest.mark.parametrize(("outcome", "condition", "failures"), OUTCOMES.values(), ids=OUTCOMES)
def test_what_comes_of_a_request_is_held_against_its_replica_and_no_other(
    outcome: Callable[[Router], None], condition: Condition, failures: int
) -> None:
    """Report 16: 4xx trips the breaker."""
    router, _ = router_with(A, B)
    outcome(router)
    assert (held(router, A).condition, held(router, A).failures) == (condition, failures)
    assert held(router, B) == Breaker()


@pytest.mark.parametrize("status", [200, 400, 429])
def test_any_other_answer_ends_a_run_of_failures_and_a_503_does_not(status: int) -> None:
    router, _ = router_with(A, B)
    errs(router, A, 2)
    router.answered(router.fleet.replicas[A], 503)
    assert held(router, A).failures == 2
    router.answered(router.fleet.replicas[A], status)
    assert held(router, A) == Breaker()


def test_what_a_replica_did_after_it_left_is_nobodys_concern() -> None:
    router, _ = router_with(A, B)
    gone = router.fleet.replicas[A]
    router.fleet = fleet_of([B])
    for _ in range(5):
        router.failed(gone, "closed", "gone")
        router.broke_off(gone, "reset")
        router.full(gone)
        router.answered(gone, 500)
    router.probed(A, answered=False)
    assert set(router.fleet.replicas) == set(router.tallies) | {B} == {B}
    assert held(router, B) == Breaker()


def test_one_that_leaves_and_joins_again_begins_anew() -> None:
    router, _ = router_with(A, B)
    router.fleet = fleet_of([A, B])
    errs(router, A, 3)
    assert held(router, A).condition is Condition.EJECTED
    router.fleet = relist(router.fleet, [B])
    router.fleet = relist(router.fleet, [A, B])
    assert held(router, A) == Breaker()


def test_an_ejection_outlives_every_look_at_the_sidecar_but_not_the_servers_new_start() -> None:
    router, clock = router_with(A, B)
    errs(router, A, 3)
    for seq, boot, condition in (
        (2, "boot", Condition.EJECTED),
        (2, "boot", Condition.EJECTED),
        (1, "again", Condition.CLOSED),
    ):
        clock.now_s += 0.5
        heard = document(snapshot(A, seq=seq, boot_id=boot), snapshot(B, seq=seq))
        router.fleet, faults = hear(router.fleet, "http://sidecar:9400", heard, clock.now_s)
        assert held(router, A).condition is condition
    assert faults == ("replica b:8000: seq 1 is older than 2",)


def test_an_ejected_replica_is_not_chosen_until_a_probe_has_been_answered() -> None:
    router, clock = router_with(A, B, C)
    errs(router, A, 3)
    for _ in range(3):
        clock.now_s += 1.0
        assert A not in {router.choose(Ask()).replica.key for _ in range(50)}  # type: ignore[union-attr]
    clock.now_s += 2.0
    router.probed(A, answered=True)
    chosen = [router.choose(Ask()).replica.key for _ in range(2_100)]  # type: ignore[union-attr]
    # A tenth beside two whole ones: 1 in 21 of 2,100, within 4 σ.
    assert abs(chosen.count(A) - 100) < 4 * (100 * 20 / 21) ** 0.5


def test_the_rules_of_ejection_may_change_at_any_time() -> None:
    router, _ = router_with(A, B)
    errs(router, A, 3)
    assert {router.choose(Ask()).replica.key for _ in range(50)} == {B}  # type: ignore[union-attr]
    router.rules = Rules(BY_SCORE, breaker=BreakerPolicy(max_ejected_share=0.0))
    assert {router.choose(Ask()).replica.key for _ in range(200)} == {A, B}  # type: ignore[union-attr]


# What it keeps


def test_a_lower_bound_on_keys_holds_from_the_next_request_on() -> None:
    router, _ = router_with(A, B)
    for key in range(100):
        router.choose(Ask(keys=(key,)))
    router.rules = Rules(BY_SCORE, affinity=AffinityPolicy(max_keys=10))
    router.choose(Ask(keys=(1_000,)))
    assert len(router.memory) == 10
    assert router.choose(Ask(keys=(1_000,))).why == "affinity"


def test_another_floor_holds_from_the_next_request_on() -> None:
    router, _ = router_with(A, B, score=0.5)
    assert router.choose(Ask()).why == "score"
    router.rules = Rules(Policy(Way.WEIGHTED, floor=0.6))
    assert router.choose(Ask()).why == "full"
    assert router.breathing(None) == 0


def test_models_that_clients_make_up_leave_nothing_behind() -> None:
    """Report 20: cardinality from made-up model names."""
    clock = Clock(1_000.0)
    heard = document(snapshot(A, models=("one",)), snapshot(B, models=("two",)))
    fleet, _ = hear(fleet_of([]), "http://sidecar:9400", heard, clock.now_s)
    router = Router(fleet, AS_ASKED, random.Random(1), clock)
    for number in range(500):
        ask = Ask(model=f"made up {number}")
        router.explain(ask)
        router.choose(ask)
    assert len(router._odds) <= 64
    assert set(router.decisions) == {"score"}
    assert len(router.recent) == 256


def test_models_that_nobody_serves_are_all_one_kind_of_request() -> None:
    """Else each new name has the whole fleet judged anew: 80 times the work of a known one, with
    1,000 replicas. In an overload it even has a queue of its own, ahead of all who wait."""
    heard = document(snapshot(A, models=("one",)), snapshot(B, models=("two",)))
    fleet, _ = hear(fleet_of([]), "http://sidecar:9400", heard, 0.0)
    router = Router(fleet, AS_ASKED, random.Random(1), lambda: 0.0)
    assert router.need(Ask(model="a")) == router.need(Ask(model="b"))
    assert router.need(Ask(model="one")) != router.need(Ask(model="two"))
    assert router.need(Ask(model="one")) != router.need(Ask(model="a"))


def test_a_picture_is_kept_as_long_as_it_holds_and_no_longer() -> None:
    router, clock = router_with(A, B)
    first = router.odds()
    clock.now_s += 2.9
    assert router.odds() is first
    clock.now_s += 0.2  # stale_after_s is over.
    assert router.odds() is not first
    assert router.odds(size=RequestClass.LONG) is not router.odds()
    second = router.odds()
    router.full(router.fleet.replicas[A])
    assert router.odds() is not second
    assert [seat.replica.key for seat in router.odds().seats] == [B]


# To explain


def test_to_explain_throws_no_dice_of_the_routers_and_foretells_the_next_choice() -> None:
    router, _ = router_with(A, B, C, rules=Rules(BY_SCORE, affinity=AffinityPolicy(enabled=False)))
    for _ in range(200):
        said = [router.explain(Ask()) for _ in range(2)]
        assert said == [router.choose(Ask())] * 2


def test_to_explain_with_a_key_makes_it_neither_known_nor_hotter() -> None:
    router, _ = router_with(A, B, rules=Rules(BY_SCORE, affinity=AffinityPolicy(hot_per_s=1.0)))
    ask = Ask(keys=(7,))
    for _ in range(50):
        assert router.explain(ask).why == "new_key"
    router.choose(ask)
    for _ in range(50):
        assert router.explain(ask).why == "affinity"
    assert (len(router.memory), len(router.recent)) == (1, 1)


def test_a_replica_that_fails_and_answers_in_turn_is_two_lines_a_moment_and_not_two_a_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    router = Router(fleet_of([A]), AS_ASKED, random.Random(0), now_s=lambda: 1.0)
    (replica,) = router.fleet.replicas.values()
    with caplog.at_level(logging.INFO):
        for _ in range(100):
            router.failed(replica, "closed", "gone")
            router.answered(replica, 200)
    assert len(caplog.messages) <= 2


def test_what_is_explained_knows_which_prompts_are_computed_by_now() -> None:
    """Of answers in one piece nobody is told: the clock says it, to who explains as well."""
    rules = Rules(choose=Policy(way=Way.LEAST_WAIT, temperature=0.0))
    router, clock = router_with(A, B, rules=rules)
    router.dispatch(router.fleet.replicas[A], 5_000, 5_000, unseen_ttft_s=1.0)
    router.dispatch(router.fleet.replicas[B], 4_000, 4_000)
    clock.now_s += 1.5
    explained, chosen = router.explain(Ask()), router.choose(Ask())
    assert explained.replica == chosen.replica == router.fleet.replicas[A]


def test_in_a_large_fleet_that_was_replaced_those_that_know_a_prompt_are_found() -> None:
    old, new = ([f"http://{age}-{i}:8000" for i in range(32)] for age in ("old", "new"))
    router, clock = router_with(*old, rules=Rules(choose=Policy(way=Way.LEAST_WAIT)))
    asks = [Ask(prompt_bytes=40_000, keys=(1, 2 + n), shares=(0.9, 1.0)) for n in range(20)]
    for replica in router.fleet.replicas.values():
        router.prefixes.keep((1,), replica)
    router.fleet = fleet_with(dict.fromkeys(new, 0.5), now_s=clock.now_s)
    first, *others = (router.choose(ask).replica for ask in asks)
    assert all(replica is first for replica in others)
