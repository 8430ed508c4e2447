"""Choosing as a whole: whatever the state of fleet, load, memory and rules, it decides soundly."""

from collections import Counter
from collections.abc import Sequence
from math import sqrt
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mission import AS_ASKED
from snapshots import document, fleet_with, snapshot
from ullage_router.core.affinity import Memory, Move
from ullage_router.core.breaker import Breaker, BreakerPolicy, Condition, Event, after
from ullage_router.core.decide import decide
from ullage_router.core.decision import Decision, Need, Why
from ullage_router.core.detail import candidates
from ullage_router.core.fleet import Fleet, fleet_of, hear, learn_models, vouch, with_breaker
from ullage_router.core.inflight import InFlight, share_of
from ullage_router.core.lineup import Standing, line_up, seed_of, stand
from ullage_router.core.policy import AffinityPolicy, Policy, Way
from ullage_router.core.rules import Rules
from ullage_shared.snapshot import RequestClass, Scores, State

pytestmark = pytest.mark.slow

URLS = [f"http://r{i}:8000" for i in range(6)]
RATIOS = st.one_of(st.floats(0.0, 1.0), st.sampled_from([0.0, 0.15, 0.3, 0.9, 1.0]))
SCORES = st.one_of(st.none(), RATIOS)
MOMENTS = st.one_of(st.floats(0.0, 100.0), st.sampled_from([0.0, 3.0, 30.0, 60.0]))
KEYS = st.integers(0, 9)
"""Few, so that requests have some in common."""

SAID = st.fixed_dictionaries(
    {
        "capacity_score": SCORES,
        "scores": st.builds(Scores, short=SCORES, long=SCORES),
        "state": st.sampled_from(State),
        "age_s": st.floats(0.0, 10.0),
        "models": st.sampled_from([(), ("x",), ("y",), ("x", "y")]),
        "boot_id": st.sampled_from(["first", "second"]),
        "seq": st.integers(0, 5),
        "max_num_seqs": st.sampled_from([None, 0, 1, 256]),
        "total_blocks": st.sampled_from([None, 0, 100]),
    }
)
HAPPENED = st.lists(
    st.tuples(
        st.integers(0, 5),
        MOMENTS,
        st.one_of(SAID, st.sampled_from(Event), st.just("unchanged"), st.just("learned")),
    ),
    max_size=25,
)
"""To which replica, when (on a clock that may jump), and what."""

RULES = st.builds(
    Rules,
    choose=st.builds(
        Policy,
        way=st.sampled_from(Way),
        floor=st.one_of(st.just(0.15), st.floats(0.0, 1.0, exclude_max=True)),
        exponent=st.one_of(st.floats(0.0, 16.0), st.just("auto")),
        stale_after_s=st.floats(0.1, 50.0),
        forget_after_s=st.floats(50.0, 100.0),
    ),
    affinity=st.builds(
        AffinityPolicy,
        enabled=st.integers(0, 4).map(bool),
        stay_above=RATIOS,
        stay_chance=RATIOS,
        dwell_s=MOMENTS,
        hot_per_s=st.one_of(st.floats(0.01, 100.0), st.sampled_from([1e-300, 1e300])),
        routers=st.integers(1, 8),
        max_keys=st.integers(1, 20),
    ),
    breaker=st.builds(BreakerPolicy, max_ejected_share=RATIOS, eject_after=st.integers(1, 3)),
    workers=st.integers(1, 8),
)
REQUESTS = st.lists(
    st.tuples(
        st.lists(KEYS, max_size=5),
        st.sampled_from(RequestClass),
        st.sampled_from([None, "x", "y", "unheard-of"]),
        st.sets(st.sampled_from(URLS), max_size=2),
        st.booleans(),
    ),
    min_size=1,
    max_size=15,
)
"""Keys, size, model, tried already, and does it end at once."""


def fleet_after(happened: Sequence[tuple[int, float, object]], rules: Rules) -> Fleet:
    fleet = fleet_of(URLS[:5])  # The sixth is only published.
    for index, now_s, what in happened:
        url = URLS[index]
        sidecar = f"{url}/sidecar"
        if isinstance(what, dict):
            fleet, _ = hear(fleet, sidecar, document(snapshot(url, **what)), now_s)
        elif isinstance(what, Event):
            known = fleet.replicas.get(url)
            if known is not None:
                breaker = after(known.breaker, what, now_s, rules.breaker)
                fleet = with_breaker(fleet, url, breaker)
        elif what == "learned":
            fleet = learn_models(fleet, url, frozenset("x"))
        else:
            fleet = vouch(fleet, sidecar, now_s)
    return fleet


MOVES = {Why.KEY_MOVED: Move.MOVE, Why.KEY_SPILLED: Move.SPILL, Why.HOT_KEY: Move.SPREAD}


@settings(deadline=None, max_examples=200)
@given(HAPPENED, RULES, REQUESTS, st.floats(0.0, 120.0), st.integers(0, 2**32))
def test_no_combination_of_states_raises_or_leads_to_who_may_not_be_chosen(
    happened: list[tuple[int, float, object]],
    rules: Rules,
    requests: list[tuple[list[int], RequestClass, str | None, set[str], bool]],
    now_s: float,
    seed: int,
) -> None:
    fleet = fleet_after(happened, rules)
    load, memory, rng = InFlight(), Memory(rules.affinity.max_keys), Random(seed)
    for number, (keys, size, model, tried, ends) in enumerate(requests):
        need = Need(model, size, tuple(keys))
        dice = rng.getstate()
        before = (repr(load), dict(load.taken), len(memory))
        decision = decide(fleet, need, now_s, rng, rules, load, memory, tried)
        told = candidates(decision)

        assert (repr(load), dict(load.taken), len(memory)) == before  # It only looks.
        again = Random()
        again.setstate(dice)
        assert decide(fleet, need, now_s, again, rules, load, memory, tried) == decision

        replica = decision.replica
        assert (replica is None) == (decision.why in (Why.FULL, Why.NO_REPLICA))
        assert decision.move is MOVES.get(decision.why, Move.STAY)
        if replica is None:
            assert all(candidate.odds == 0.0 for candidate in told)
            continue
        assert sum(candidate.odds for candidate in told) == pytest.approx(1.0) or not any(
            candidate.weight for candidate in told
        )
        assert replica.id in [candidate.replica for candidate in told]
        check(decision, fleet, need, now_s, rules, tried)
        if keys and rules.affinity.enabled:
            memory.keep(keys, decision.known, replica.key, decision.move, now_s)
            assert len(memory) <= rules.affinity.max_keys
        load.last_seed = seed % 2**63
        hold = load.hold(replica.key, share_of(replica.snapshot, 100 * number))
        if ends:
            hold.release()


def check(
    decision: Decision, fleet: Fleet, need: Need, now_s: float, rules: Rules, tried: set[str]
) -> None:
    replica = decision.replica
    assert replica is not None
    assert replica is fleet.replicas[replica.key]
    assert replica.key not in tried
    lined_up = line_up(fleet, need.model, need.size, now_s, rules, tried)
    assert replica.key in lined_up.at
    standing = stand(replica, now_s, rules.choose, need.size)
    if decision.score is None:
        assert standing in (Standing.SILENT, Standing.LOST)
    else:
        assert standing is Standing.ELIGIBLE
        assert rules.choose.floor < decision.score <= 1.0
    if not rules.affinity.enabled or not need.keys:
        assert decision.known is None
        assert decision.why in (Why.SCORE, Why.OWN_COUNTS, Why.WAIT)


A, B, C = "http://a:8000", "http://b:8000", "http://c:8000"


@pytest.mark.parametrize("way", [way for way in Way if way is not Way.LEAST_WAIT])
def test_whatever_the_way_a_known_key_goes_home(way: Way) -> None:
    rules = Rules(choose=Policy(way=way))
    memory = Memory(10)
    memory.keep((1,), None, A, Move.STAY, 0.0)
    fleet = fleet_with({A: 0.4, B: 0.9})
    for seed in range(20):
        decision = decide(fleet, Need(keys=(1,)), 0.0, Random(seed), rules, InFlight(), memory)
        assert (decision.why, decision.replica) == (Why.AFFINITY, fleet.replicas[A])


@pytest.mark.parametrize("way", list(Way))
@pytest.mark.parametrize("keys", [(), (1,), (1, 2)], ids=["no key", "one", "chain"])
def test_whatever_the_way_nobody_above_the_floor_is_refused(way: Way, keys: tuple[int]) -> None:
    rules = Rules(choose=Policy(way=way))
    memory = Memory(10)
    memory.keep((1,), None, A, Move.STAY, 0.0)
    fleet = fleet_with({A: 0.15, B: 0.1})
    decision = decide(fleet, Need(keys=keys), 0.0, Random(1), rules, InFlight(), memory)
    assert (decision.replica, decision.why) == (None, Why.FULL)


def test_a_second_try_of_a_keyed_request_leaves_its_home_alone() -> None:
    """Report 15: the same replica re-picked."""
    memory = Memory(10)
    memory.keep((1,), None, A, Move.STAY, 0.0)
    fleet = fleet_with({A: 0.9, B: 0.2})
    load, dice = InFlight(), Random(1)
    decision = decide(fleet, Need(keys=(1,)), 0.0, dice, AS_ASKED, load, memory, (A,))
    assert decision.replica == fleet.replicas[B]


@pytest.mark.parametrize(
    ("size", "why"), [(RequestClass.SHORT, Why.AFFINITY), (RequestClass.LONG, Why.KEY_MOVED)]
)
def test_a_key_stays_or_moves_by_the_score_for_its_requests_size(
    size: RequestClass, why: Why
) -> None:
    memory = Memory(10)
    memory.keep((1,), None, A, Move.STAY, 0.0)
    said = document(
        snapshot(A, 0.5, scores=Scores(short=0.9, long=0.1)),
        snapshot(B, 0.5, scores=Scores(short=0.2, long=0.8)),
    )
    fleet, _ = hear(fleet_of([]), "http://sidecar:9400", said, 0.0)
    need = Need(size=size, keys=(1,))
    assert decide(fleet, need, 0.0, Random(1), AS_ASKED, InFlight(), memory).why is why


RETURNING = Breaker(Condition.RETURNING, since_s=0.0, until_s=0.0, whole_s=10.0)


@pytest.mark.parametrize("way", list(Way))
def test_whatever_the_way_a_replica_that_returns_gets_no_more_than_its_share(way: Way) -> None:
    """A tenth of what it would get, at 4 σ: `highest` would send it everything."""
    fleet = with_breaker(fleet_with({A: 0.91, B: 0.9, C: 0.9}), A, RETURNING)
    rules, rng, load = Rules(choose=Policy(way=way)), Random(5), InFlight()
    draws, got = 2_000, 0
    for _ in range(draws):
        replica = decide(fleet, Need(), 0.0, rng, rules, load, Memory(1)).replica
        assert replica is not None
        load.last_seed = seed_of(replica.key)
        got += replica.key == A
    assert 0 < got <= 0.1 * draws + 4 * sqrt(draws * 0.1 * 0.9)


def test_a_key_whose_home_returns_keeps_a_tenth_of_its_requests_there() -> None:
    fleet = with_breaker(fleet_with({A: 0.9, B: 0.9}), A, RETURNING)
    memory, rng = Memory(10), Random(3)
    memory.keep((1,), None, A, Move.STAY, 0.0)
    draws = 2_000
    whys = Counter(
        decide(fleet, Need(keys=(1,)), 0.0, rng, AS_ASKED, InFlight(), memory).why
        for _ in range(draws)
    )
    assert whys.keys() == {Why.AFFINITY, Why.KEY_SPILLED}
    assert abs(whys[Why.AFFINITY] - 0.1 * draws) <= 4 * sqrt(draws * 0.1 * 0.9)
