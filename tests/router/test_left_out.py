"""Who is left out of a decision, why, and what chance the others have: as `/explain` tells it."""

from collections.abc import Callable
from random import Random

import pytest

from explained_site import A, B, C, Clock, D, E, F, G, router_with, told
from snapshots import snapshot
from ullage_router import admin as pages
from ullage_router.core.ask import Ask
from ullage_router.core.breaker import Event
from ullage_router.core.rules import Rules
from ullage_router.explain import Reasons
from ullage_router.router import Router
from ullage_shared.snapshot import Parts, State

pytestmark = pytest.mark.slow


# Who is left out, and why


def test_each_replica_that_is_left_out_says_why() -> None:
    router, clock = router_with(
        snapshot(A, 0.9, id="a"),
        snapshot(B, 0.15, id="b"),
        snapshot(C, 0.9, id="c", state=State.WARMING, reason="dummy 2 of 3"),
        snapshot("http://h:8000", 0.9, id="h", state=State.DRAINING),
        snapshot(D, 0.9, id="d"),
        snapshot(E, 0.9, id="e"),
        snapshot(F, 0.9, id="f", age_s=60.5),
        snapshot(G, 0.9, id="g", models=("other",)),
    )
    for _ in range(3):
        router._hold_against(D, Event.ERRED)
    router.full(router.fleet.replicas[E])
    page = told(router, Ask(model="tiny"))
    assert page["left_out"] == {
        "b": "score is not above the floor of 0.15",
        "c": "it is warming: dummy 2 of 3",
        "d": "failed again and again: out until it has answered a probe",
        "e": "gave no answer, or had no room, a moment ago",
        "f": "its sidecar has been silent for more than 60.0 s",
        "g": "it serves other models",
        "h": "it is draining",
    }
    assert (page["replica"], [row["replica"] for row in page["candidates"]]) == ("a", ["a"])
    clock.now_s += 1.0
    assert "e" not in told(router, Ask(model="tiny"))["left_out"]


def test_every_replica_is_a_candidate_or_left_out() -> None:
    states = [*State, State.SERVING, State.SERVING]
    heard = [
        snapshot(f"http://r{number}:8000", (number % 7) / 7, state=state, age_s=number % 5)
        for number, state in enumerate(states)
    ]
    router, _ = router_with(*heard, listed=(A,))
    page = told(router)
    named = [row["replica"] for row in page["candidates"]] + list(page["left_out"])
    assert sorted(named) == sorted(replica.id for replica in router.fleet.replicas.values())


@pytest.mark.parametrize(("short", "mixed"), [(0.1, 0.9), (0.9, 0.1)])
def test_a_replica_is_left_out_by_its_score_for_the_requests_size(
    short: float, mixed: float
) -> None:
    router, _ = router_with(
        snapshot(A, 0.9, id="a"), snapshot(B, mixed, id="b", scores={"short": short})
    )
    page = told(router)
    assert page["request"]["size"] == "short"
    assert {row["replica"] for row in page["candidates"]} == ({"a", "b"} if short > 0.15 else {"a"})
    assert set(page["left_out"]) == (set() if short > 0.15 else {"b"})


def _struck(router: Router) -> None:
    for replica in router.fleet.replicas.values():
        router.full(replica)


def _made_lost(router: Router) -> None:
    assert isinstance(router.now_s, Clock)
    router.now_s.now_s += 61.0


@pytest.mark.parametrize("make", [_struck, _made_lost], ids=["all struck", "all lost"])
def test_whoever_is_let_in_for_want_of_others_is_not_said_to_be_left_out(
    make: Callable[[Router], None],
) -> None:
    router, _ = router_with(snapshot(A, 0.9, id="a"), snapshot(B, 0.9, id="b"))
    make(router)
    page = told(router)
    assert {row["replica"] for row in page["candidates"]} == {"a", "b"}
    assert page["left_out"] == {}


def test_a_model_that_nobody_is_known_to_serve_leaves_nobody_out() -> None:
    router, _ = router_with(
        snapshot(A, 0.9, id="a", models=("one",)), snapshot(B, 0.9, id="b", models=("two",))
    )
    page = told(router, Ask(model="three"))
    assert {row["replica"] for row in page["candidates"]} == {"a", "b"}
    assert page["left_out"] == {}


def test_a_router_whose_only_replica_failed_a_moment_ago_is_well_for_it_gets_the_next_request() -> (
    None
):
    """Else one lost connection takes the whole router out of its load balancer for a second."""
    router, _ = router_with(listed=(A,))
    router.failed(router.fleet.replicas[A], "closed", "gone")
    assert router.explain(Ask()).replica is not None
    assert pages.health_page(router)[0] == 200


@pytest.mark.parametrize("seed", range(20))
def test_the_odds_of_the_candidates_are_one_in_all(seed: int) -> None:
    dice = Random(seed)
    heard = [
        snapshot(f"http://r{number}:8000", dice.choice([None, dice.random()]), age_s=dice.random())
        for number in range(dice.randint(1, 40))
    ]
    router, _ = router_with(*heard)
    for _ in range(dice.randint(0, 60)):
        decision = router.choose(Ask())
        if decision.replica is not None:
            router.dispatch(decision.replica)
    rows = told(router)["candidates"]
    some = any(row["weight"] for row in rows)  # Else this router has filled all of them.
    assert sum(row["odds"] for row in rows) == pytest.approx(1.0 if some else 0.0)
    assert [row["odds"] for row in rows] == sorted((row["odds"] for row in rows), reverse=True)
    for row in rows:
        assert (row["weight"] > 0.0) is (row["odds"] > 0.0)


def test_one_that_this_router_has_filled_is_told_as_a_candidate_without_a_chance() -> None:
    router, _ = router_with(snapshot(A, 0.9, id="a"), snapshot(B, 0.2, id="b", max_num_seqs=10))
    router.dispatch(router.fleet.replicas[B])
    rows = {row["replica"]: row for row in told(router)["candidates"]}
    assert (rows["b"]["odds"], rows["b"]["weight"], rows["a"]["odds"]) == (0.0, 0.0, 1.0)
    assert rows["b"]["effective"] == pytest.approx(0.1)


def test_a_keys_home_is_marked() -> None:
    router, _ = router_with(snapshot(A, 0.9, id="a"), snapshot(B, 0.9, id="b"))
    ask = Ask(keys=(1,))
    home = router.choose(ask).replica
    assert home is not None
    assert [row["replica"] for row in told(router, ask)["candidates"] if row["home"]] == [home.id]


def test_one_whose_queue_takes_too_long_is_said_to_have_such_a_queue() -> None:
    parts = Parts(free=0.45, running=0.2, waiting=0.0, penalty=0.2, warm_up=1.0)
    queue = {"waiting": 1, "max_num_seqs": 256, "prefill_tokens_per_s": 200.0, "parts": parts}
    router, _ = router_with(snapshot(A, 0.1, **queue), rules=Rules())
    assert Reasons(router).why_not(router.fleet.replicas[A]) == ""
    router.in_flight.hold(A, tokens=3_000)
    assert Reasons(router).why_not(router.fleet.replicas[A]) == (
        "it has a queue, and no room for this within 10 s"
    )
    assert router.breathing(None) == 0
