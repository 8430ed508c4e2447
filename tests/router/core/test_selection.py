"""What every way of choosing keeps, and `weighted`."""

from collections import Counter
from collections.abc import Sequence
from math import sqrt
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selecting import (
    EVERY_WAY,
    KEYED,
    SIZES,
    A,
    B,
    C,
    assert_shares,
    drawn,
    names,
    odds_of,
    rules_for,
)
from snapshots import fleet_with
from ullage_router.core.affinity import Memory
from ullage_router.core.decide import decide
from ullage_router.core.decision import Need
from ullage_router.core.fleet import fleet_of
from ullage_router.core.inflight import InFlight
from ullage_router.core.policy import Way
from ullage_router.core.selection import Field, weighted

SCORES = st.one_of(st.floats(0.0, 1.0), st.sampled_from([0.0, 0.15, 0.2, 0.9, 1.0]), st.none())


@settings(deadline=None, max_examples=150)
@given(
    way=st.sampled_from(Way),
    rows=st.lists(st.tuples(SCORES, st.integers(0, 20)), min_size=1, max_size=9),
    floor=st.floats(0.0, 1.0, exclude_max=True),
    exponent=st.one_of(st.floats(0.0, 16.0), st.just("auto")),
    key=st.one_of(st.none(), st.integers(0, 2**64 - 1)),
    last_seed=st.integers(-1, 2**64 - 1),
    seed=st.integers(0, 2**32),
)
def test_every_way_chooses_one_that_may_be_chosen_and_never_the_full(
    way: Way,
    rows: list[tuple[float | None, int]],
    floor: float,
    exponent: float,
    key: int | None,
    last_seed: int,
    seed: int,
) -> None:
    urls = names(len(rows))
    fleet = fleet_with({url: score for url, (score, _) in zip(urls, rows, strict=True)})
    load = InFlight()
    load.last_seed = last_seed
    for url, (_, in_flight) in zip(urls, rows, strict=True):
        for _ in range(in_flight):
            load.hold(url, 1 / 64)
    rules = rules_for(way, floor=floor, exponent=exponent)
    keys = () if key is None else (key,)
    decision = decide(fleet, Need(keys=keys), 0.0, Random(seed), rules, load, Memory(1))
    by_now = {
        url: score if score is None else score - in_flight / 64
        for url, (score, in_flight) in zip(urls, rows, strict=True)
    }
    if decision.replica is None:
        assert all(score is None or score <= floor for score in by_now.values())
        assert set(by_now.values()) != {None}  # Where all are silent, none is ever full.
    else:
        score = by_now[decision.replica.key]
        assert score is None or score > floor


def chi_square_sigmas(counts: Counter[str]) -> float:
    """How far the counts are from equal, in standard deviations of χ²."""
    cells = len(counts)
    if cells == 1:
        return 0.0
    mean = counts.total() / cells
    chi_square = sum((count - mean) ** 2 / mean for count in counts.values())
    return (chi_square - (cells - 1)) / sqrt(2.0 * (cells - 1))


@EVERY_WAY
@pytest.mark.parametrize("size", SIZES)
@KEYED
def test_every_way_reaches_all_and_lets_equal_replicas_share_equally(
    way: Way, size: int, keyed: bool
) -> None:
    """Report 7: ties favour one replica."""
    counts = drawn(
        fleet_with(dict.fromkeys(names(size), 0.6)), min(50 * size, 3_000), way=way, keyed=keyed
    )
    assert min(counts.values()) > 0
    assert chi_square_sigmas(counts) <= 4.0


@KEYED
def test_a_large_cluster_shares_as_equally_as_a_small_one(keyed: bool) -> None:
    counts = drawn(fleet_with(dict.fromkeys(names(300), 0.6)), 15_000, keyed=keyed)
    assert chi_square_sigmas(counts) <= 4.0


@EVERY_WAY
@KEYED
def test_every_way_finds_the_only_one_of_many_that_has_room(way: Way, keyed: bool) -> None:
    full = dict.fromkeys(names(100), 0.15)
    assert drawn(fleet_with(full | {A: 0.16}), 10, way=way, keyed=keyed)[A] == 10


@EVERY_WAY
def test_every_way_finds_the_only_one_that_this_router_has_not_filled(way: Way) -> None:
    """The others' snapshots still say that they are empty."""
    load = InFlight()
    for url in names(100):
        load.hold(url, 0.9)
    counts = drawn(fleet_with(dict.fromkeys(names(100), 0.9) | {A: 0.2}), 10, way=way, load=load)
    assert counts[A] == 10


# `weighted`


@KEYED
def test_twice_the_score_gets_four_times_the_requests(keyed: bool) -> None:
    counts = drawn(fleet_with({A: 0.8, B: 0.4}), 4_000, keyed=keyed)
    assert_shares(counts, {A: 0.8, B: 0.2})


@KEYED
def test_the_odds_of_three_are_their_squared_scores(keyed: bool) -> None:
    counts = drawn(fleet_with({A: 0.9, B: 0.6, C: 0.3}), 4_000, keyed=keyed)
    assert_shares(counts, {A: 9 / 14, B: 4 / 14, C: 1 / 14})


def field_of(scores: Sequence[float], exponent: float) -> Field:
    fleet = fleet_with(dict(zip(names(len(scores)), scores, strict=True)))
    odds = odds_of(fleet, rules_for(Way.WEIGHTED, floor=0.0, exponent=exponent))
    return Field(
        odds.seats, odds.scores, odds.weights, InFlight(), by_counts=False, top=odds.field.top
    )


@pytest.mark.parametrize("size", [3, 200])
@pytest.mark.parametrize("key", [None, 0, 1, 2**64 - 1])
def test_where_all_weights_underflow_a_highest_score_is_chosen(key: int | None, size: int) -> None:
    field = field_of([1e-200, *[1e-300] * size], exponent=16.0)
    assert set(field.weights) == {0.0}
    assert field.scores[weighted(field, key, Random(1))] == 1e-200


@pytest.mark.parametrize("key", [None, 7])
def test_a_weight_that_underflows_loses_against_one_that_does_not(key: int | None) -> None:
    field = field_of([1e-300, 0.5, 1e-300], exponent=16.0)
    chosen = {field.scores[weighted(field, key, Random(seed))] for seed in range(50)}
    assert chosen == {0.5}


def test_an_exponent_of_nothing_gives_all_the_same_weight() -> None:
    assert field_of([0.2, 0.9, 1.0], exponent=0.0).weights == [1.0, 1.0, 1.0]


@KEYED
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_odds_hold_where_one_of_many_has_most_of_the_weight(keyed: bool, seed: int) -> None:
    """Hardly anybody met at random is taken then: all weights are added up."""
    counts = drawn(
        fleet_with(dict.fromkeys(names(60), 0.16) | {A: 1.0}), 3_000, keyed=keyed, seed=seed
    )
    assert_shares(counts, {A: 1.0 / (1.0 + 60 * 0.16**2)})


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 16.0])
@pytest.mark.parametrize("heard_of", [True, False])
def test_no_weight_is_above_the_top(exponent: float, heard_of: bool) -> None:
    rng, load = Random(3), InFlight()
    scored = fleet_with({url: rng.uniform(0.2, 0.9) for url in names(40)})
    fleet = scored if heard_of else fleet_of(names(40))
    odds = odds_of(fleet, rules_for(Way.WEIGHTED, exponent=exponent), load)
    assert odds.field.top == pytest.approx(max(odds.weights))
    held = [load.hold(rng.choice(names(40)), 0.01) for _ in range(200)]
    odds = odds_of(fleet, rules_for(Way.WEIGHTED, exponent=exponent), load)
    for hold in held:
        hold.release()
        odds.catch_up()
        assert max(odds.weights) <= odds.field.top
