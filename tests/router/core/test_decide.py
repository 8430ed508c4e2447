"""Statistical tests draw from seeded dice and allow 4 standard deviations."""

from collections import Counter
from collections.abc import Collection, Mapping
from math import inf, sqrt
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mission import BY_SCORE
from snapshots import document, fleet_with, snapshot
from ullage_router.core.affinity import Memory
from ullage_router.core.breaker import CLOSED, Breaker, Condition
from ullage_router.core.decide import decide
from ullage_router.core.decision import Decision, Need, Why
from ullage_router.core.fleet import Fleet, fleet_of, hear, learn_models, with_breaker
from ullage_router.core.inflight import InFlight
from ullage_router.core.lineup import Standing, stand
from ullage_router.core.policy import Policy, Way
from ullage_router.core.rules import Rules
from ullage_shared.snapshot import State

A, B, C, D = (f"http://{name}:8000" for name in "abcd")
SIDECAR = "http://sidecar:9400"
DRAWS = 4_000


def choose(
    fleet: Fleet,
    *,
    model: str | None = None,
    in_flight: Mapping[str, int] | None = None,
    now_s: float = 0.0,
    rng: Random | None = None,
    policy: Policy | None = None,
    tried: Collection[str] = (),
) -> Decision:
    load = InFlight()
    for key, count in (in_flight or {}).items():
        for _ in range(count):
            load.hold(key)
    rules = Rules(choose=policy or BY_SCORE)
    decision = decide(fleet, Need(model), now_s, rng or Random(1), rules, load, Memory(10), tried)
    return msgspec.structs.replace(decision, look=None)


def struck(until_s: float) -> Breaker:
    return Breaker(Condition.STRUCK, until_s=until_s)


def shares(fleet: Fleet, **options: object) -> Counter[str]:
    """How often each replica is drawn in `DRAWS`."""
    rng = Random(7)
    counts: Counter[str] = Counter()
    for _ in range(DRAWS):
        decision = choose(fleet, rng=rng, **options)  # type: ignore[arg-type]
        assert decision.replica is not None
        counts[decision.replica.url] += 1
    return counts


def assert_share(counts: Counter[str], url: str, expected: float) -> None:
    deviation = sqrt(DRAWS * expected * (1 - expected))
    assert abs(counts[url] - DRAWS * expected) <= 4 * deviation, counts


def test_twice_the_score_gets_four_times_the_requests() -> None:
    counts = shares(fleet_with({A: 0.8, B: 0.4}))
    assert_share(counts, A, 0.8)


def test_the_exponent_is_the_operators_to_set() -> None:
    counts = shares(fleet_with({A: 0.8, B: 0.4}), policy=Policy(Way.WEIGHTED, exponent=1.0))
    assert_share(counts, A, 2 / 3)


def test_equal_replicas_share_equally() -> None:
    """Report 7: ties favour one replica."""
    urls = [f"http://r{i}:8000" for i in range(8)]
    counts = shares(fleet_with(dict.fromkeys(urls, 0.6)))
    for url in urls:
        assert_share(counts, url, 1 / 8)


def test_the_fullest_of_three_is_never_chosen_while_it_is_below_the_floor() -> None:
    counts = shares(fleet_with({A: 0.9, B: 0.16, C: 0.14}))
    assert counts[C] == 0
    assert counts[B] > 0


@pytest.mark.parametrize(
    ("score", "standing"),
    [(0.15, Standing.FULL), (0.150001, Standing.ELIGIBLE), (0.0, Standing.FULL)],
)
def test_a_score_must_exceed_the_floor(score: float, standing: Standing) -> None:
    fleet = fleet_with({A: score})
    assert stand(fleet.replicas[A], 0.0, BY_SCORE) is standing
    assert (choose(fleet).replica is not None) == (standing is Standing.ELIGIBLE)


def test_a_decision_says_where_why_and_at_what_score() -> None:
    fleet = fleet_with({A: 0.5})
    assert choose(fleet) == Decision(fleet.replicas[A], Why.SCORE, 0.5)


def test_nobody_above_the_floor_is_full() -> None:
    assert choose(fleet_with({A: 0.1, B: 0.0})) == Decision(None, Why.FULL)


def test_an_empty_fleet_has_no_replica() -> None:
    assert choose(fleet_of([])) == Decision(None, Why.NO_REPLICA)


OUT = [State.STARTING, State.WARMING, State.DRAINING, State.DOWN, State.HUNG]


@pytest.mark.parametrize("state", OUT)
def test_a_replica_that_is_not_serving_is_never_chosen(state: State) -> None:
    heard = document(snapshot(A, 1.0, state=state))
    fleet, _ = hear(fleet_of([]), SIDECAR, heard, 0.0)
    assert choose(fleet) == Decision(None, Why.NO_REPLICA)
    with_another, _ = hear(fleet, "http://other:9400", document(snapshot(B, 0.2)), 0.0)
    assert shares(with_another)[A] == 0


def test_one_full_and_one_down_is_full() -> None:
    heard = document(snapshot(A, 0.1), snapshot(B, 0.9, state=State.DOWN))
    assert choose(hear(fleet_of([]), SIDECAR, heard, 0.0)[0]).why is Why.FULL


@pytest.mark.parametrize("state", list(State))
def test_every_state_has_its_standing(state: State) -> None:
    heard = document(snapshot(A, 0.9, state=state))
    fleet, _ = hear(fleet_of([]), SIDECAR, heard, 0.0)
    standing = stand(fleet.replicas[A], 0.0, BY_SCORE)
    expected = Standing(state.value) if state in OUT else Standing.ELIGIBLE
    assert standing is expected


def test_a_state_counts_while_it_is_fresh_even_without_a_score() -> None:
    heard = document(snapshot(A, None, state=State.DOWN))
    fleet, _ = hear(fleet_of([]), SIDECAR, heard, 0.0)
    assert choose(fleet) == Decision(None, Why.NO_REPLICA)


def test_all_silent_goes_by_own_counts_and_favours_fewer_in_flight() -> None:
    fleet = fleet_of([A, B])
    decision = choose(fleet)
    assert (decision.why, decision.score) == (Why.OWN_COUNTS, None)
    counts = shares(fleet, in_flight={A: 0, B: 1})
    assert_share(counts, A, 0.8)  # weights 1 and (1/2)²


def test_all_silent_and_equal_share_equally() -> None:
    assert_share(shares(fleet_of([A, B]), in_flight={A: 5, B: 5}), A, 0.5)


def test_an_unknown_score_is_neither_idle_nor_full() -> None:
    """Report 21: what is missing is unknown."""
    fleet = fleet_with({A: None})
    assert stand(fleet.replicas[A], 0.0, BY_SCORE) is Standing.SILENT
    assert choose(fleet).why is Why.OWN_COUNTS


def test_a_silent_replica_is_weighed_like_the_worst_that_may_be_chosen() -> None:
    counts = shares(fleet_with({A: 0.8, B: 0.4, D: 0.1}, silent=(C,)))
    assert_share(counts, A, 0.64 / 0.96)
    assert_share(counts, C, 0.16 / 0.96)
    assert counts[D] == 0


def test_a_silent_replica_takes_the_request_when_the_others_are_full() -> None:
    decision = choose(fleet_with({A: 0.1}, silent=(B,)))
    assert decision.replica is not None
    assert (decision.replica.url, decision.why, decision.score) == (B, Why.SCORE, None)


@pytest.mark.parametrize(("age_s", "standing"), [(3.0, "eligible"), (3.0000001, "silent")])
def test_a_snapshot_vouches_until_it_is_older_than_stale_after(age_s: float, standing: str) -> None:
    fleet = fleet_with({A: 0.9}, now_s=100.0)
    assert (
        stand(fleet.replicas[A], 100.0 + age_s, Policy(Way.WEIGHTED, stale_after_s=3.0)) == standing
    )


def test_the_age_that_the_sidecar_sent_counts_too() -> None:
    heard = document(snapshot(A, 0.9, age_s=2.0))
    fleet, _ = hear(fleet_of([]), SIDECAR, heard, 100.0)
    assert stand(fleet.replicas[A], 101.0, BY_SCORE) is Standing.ELIGIBLE
    assert stand(fleet.replicas[A], 101.5, BY_SCORE) is Standing.SILENT


def test_a_stale_refusal_clears_by_itself() -> None:
    """Report 9: "overloaded" never clears."""
    fleet = fleet_with({A: 0.0})
    assert choose(fleet, now_s=1.0).why is Why.FULL
    assert choose(fleet, now_s=4.0).why is Why.OWN_COUNTS


def test_a_replica_set_aside_is_left_out_until_its_time_has_come() -> None:
    fleet = with_breaker(fleet_with({A: 0.9, B: 0.2}), A, struck(5.0))
    assert shares(fleet, now_s=4.9)[A] == 0
    assert shares(fleet, now_s=5.0, policy=Policy(Way.WEIGHTED, stale_after_s=60.0))[A] > 0


def test_a_replica_set_aside_is_chosen_when_it_is_the_only_one() -> None:
    decision = choose(with_breaker(fleet_with({A: 0.9}), A, struck(5.0)))
    assert decision.replica is not None
    assert decision.replica.url == A


def test_a_replica_that_was_tried_is_not_chosen_again() -> None:
    """Report 15: the same replica re-picked."""
    fleet = fleet_with({A: 0.9, B: 0.2})
    assert choose(fleet, tried=[A]).replica == fleet.replicas[B]
    assert choose(fleet, tried=[A, B]) == Decision(None, Why.NO_REPLICA)


def mixed_fleet() -> Fleet:
    heard = document(snapshot(A, 0.9, models=("x",)), snapshot(B, 0.9, models=("y", "z")))
    return hear(fleet_of([]), SIDECAR, heard, 0.0)[0]


def test_a_request_goes_to_a_replica_that_serves_its_model() -> None:
    fleet = mixed_fleet()
    assert shares(fleet, model="x").keys() == {A}
    assert shares(fleet, model="z").keys() == {B}


def test_an_unknown_model_is_no_ground_for_refusal() -> None:
    assert shares(mixed_fleet(), model="unheard-of").keys() == {A, B}


def test_a_replica_whose_models_are_unknown_may_serve_any() -> None:
    fleet, _ = hear(mixed_fleet(), "http://other:9400", document(snapshot(C, 0.9, models=())), 0.0)
    assert shares(fleet, model="x").keys() == {A, C}


def test_a_second_try_does_not_go_to_a_replica_that_serves_other_models() -> None:
    assert choose(mixed_fleet(), model="x", tried=[A]) == Decision(None, Why.NO_REPLICA)


def test_a_model_whose_replicas_are_full_is_refused_though_others_have_room() -> None:
    heard = document(snapshot(A, 0.1, models=("x",)), snapshot(B, 0.9, models=("y",)))
    fleet, _ = hear(fleet_of([]), SIDECAR, heard, 0.0)
    assert choose(fleet, model="x") == Decision(None, Why.FULL)


def test_learned_models_decide_too() -> None:
    fleet = learn_models(learn_models(fleet_of([A, B]), A, frozenset({"x"})), B, frozenset({"y"}))
    assert shares(fleet, model="y").keys() == {B}


def test_weights_that_vanish_still_choose_someone() -> None:
    tiny = Policy(Way.WEIGHTED, floor=0.0, exponent=16.0)
    decision = choose(fleet_with({A: 1e-300, B: 1e-300}), policy=tiny)
    assert decision.replica is not None


scores = st.one_of(st.none(), st.floats(0.0, 1.0))
replicas = st.fixed_dictionaries(
    {
        "score": scores,
        "state": st.sampled_from(State),
        "age_s": st.floats(0.0, 10.0),
        "models": st.sets(st.sampled_from("xyz")),
        "aside_s": st.floats(0.0, 10.0),
        "in_flight": st.integers(0, 20),
        "heard": st.booleans(),
    }
)
policies = st.builds(
    Policy,
    way=st.sampled_from(Way),
    floor=st.floats(0.0, 1.0, exclude_max=True),
    exponent=st.floats(0.0, 16.0),
    stale_after_s=st.floats(0.1, 10.0),
)


@settings(deadline=None, max_examples=100)
@given(
    rows=st.lists(replicas, max_size=6),
    model=st.sampled_from([None, "x", "y", "unheard-of"]),
    now_s=st.floats(0.0, 20.0),
    policy=policies,
    tried=st.sets(st.integers(0, 5)),
    seed=st.integers(0, 2**32),
)
def test_decide_is_total_and_never_chooses_the_ineligible(
    rows: list[dict],  # type: ignore[type-arg]
    model: str | None,
    now_s: float,
    policy: Policy,
    tried: set[int],
    seed: int,
) -> None:
    urls = [f"http://r{i}:8000" for i in range(len(rows))]
    heard = document(
        *(
            snapshot(
                url,
                row["score"],
                state=row["state"],
                age_s=row["age_s"],
                models=tuple(sorted(row["models"])),
            )
            for url, row in zip(urls, rows, strict=True)
            if row["heard"]
        )
    )
    fleet, faults = hear(fleet_of(urls), SIDECAR, heard, 0.0)
    assert not faults
    for url, row in zip(urls, rows, strict=True):
        fleet = with_breaker(fleet, url, struck(row["aside_s"]) if row["aside_s"] else CLOSED)
    in_flight = {url: row["in_flight"] for url, row in zip(urls, rows, strict=True)}
    left_out = {f"http://r{i}:8000" for i in tried}

    decision = choose(
        fleet,
        model=model,
        in_flight=in_flight,
        now_s=now_s,
        rng=Random(seed),
        policy=policy,
        tried=left_out,
    )

    standings = {key: stand(r, now_s, policy) for key, r in fleet.replicas.items()}
    chosen = decision.replica
    if chosen is None:
        assert decision.why in (Why.FULL, Why.NO_REPLICA)
        assert decision.score is None
        return
    assert chosen.key not in left_out
    assert standings[chosen.key] in (Standing.ELIGIBLE, Standing.SILENT)
    if decision.score is None:
        assert standings[chosen.key] is Standing.SILENT
    else:
        assert policy.floor < decision.score <= 1.0
        assert decision.why is (Why.WAIT if policy.way is Way.LEAST_WAIT else Why.SCORE)
    serving = [r for r in fleet.replicas.values() if not r.models or model in r.models]
    if model is not None and serving:
        assert chosen in serving


def test_an_infinite_pause_aside_breaks_nothing() -> None:
    fleet = fleet_with({A: 0.5})
    aside = with_breaker(fleet, A, struck(inf))
    assert choose(aside).replica == aside.replicas[A]
