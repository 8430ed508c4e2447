"""Ways of choosing: what holds for every one of them, then each one's own promise.

Statistical tests draw from seeded dice and allow 4 standard deviations.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt
from random import Random
from statistics import fmean
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mission import AS_ASKED
from snapshots import document, fleet_with, snapshot
from ullage_router.core import decide as code
from ullage_router.core.affinity import Memory
from ullage_router.core.decide import Decision, Need, Why, decide
from ullage_router.core.fleet import Fleet, fleet_of, hear
from ullage_router.core.inflight import Hold, InFlight, share_of
from ullage_router.core.lineup import line_up, seed_of
from ullage_router.core.odds import Odds
from ullage_router.core.policy import Policy, Way
from ullage_router.core.prefixes import Prefixes
from ullage_router.core.rules import Rules
from ullage_router.core.selection import MOST_AT_ONCE, WAYS, Field, neighbours, weighted
from ullage_shared.snapshot import RequestClass

pytestmark = pytest.mark.slow

SIDECAR = "http://sidecar:9400"
A, B, C = (f"http://{name}:8000" for name in "abc")
EVERY_WAY = pytest.mark.parametrize("way", list(Way))
KEYED = pytest.mark.parametrize("keyed", [False, True], ids=["no key", "new keys"])
SIZES = [1, 2, MOST_AT_ONCE, MOST_AT_ONCE + 1, 300]


def choose(
    odds: Odds, keys: Sequence[int], now_s: float, rng: Random, rules: Rules, memory: Memory
) -> Decision:
    need = Need(keys=tuple(keys))
    return code.choose(odds, need, now_s, rng, rules, memory, Prefixes(1))


def names(count: int) -> list[str]:
    return [f"http://r{i}:8000" for i in range(count)]


def odds_of(fleet: Fleet, rules: Rules, load: InFlight | None = None, now_s: float = 0.0) -> Odds:
    return Odds(line_up(fleet, None, RequestClass.MIXED, now_s, rules), load or InFlight())


def rules_for(way: Way, **choosing: object) -> Rules:
    return Rules(choose=Policy(way=way, **choosing))  # type: ignore[arg-type]


def key_of(rng: Random, *, keyed: bool) -> tuple[int, ...]:
    return (rng.getrandbits(64),) if keyed else ()


def drawn(
    fleet: Fleet,
    draws: int,
    *,
    way: Way = Way.WEIGHTED,
    keyed: bool = False,
    seed: int = 7,
    load: InFlight | None = None,
) -> Counter[str]:
    """How often each is chosen for new requests, each of which ends before the next."""
    rules, rng, load = rules_for(way), Random(seed), load or InFlight()
    odds = odds_of(fleet, rules, load)
    counts = Counter(dict.fromkeys(fleet.replicas, 0))
    for _ in range(draws):
        keys = key_of(rng, keyed=keyed)
        decision = choose(odds, keys, 0.0, rng, rules, Memory(1))
        assert decision.replica is not None
        load.last_seed = seed_of(decision.replica.key)
        counts[decision.replica.key] += 1
    return counts


def assert_shares(counts: Counter[str], shares: Mapping[str, float]) -> None:
    total = counts.total()
    for key, share in shares.items():
        deviation = sqrt(total * share * (1.0 - share))
        assert abs(counts[key] - total * share) <= 4.0 * deviation, (key, share, counts)


# Every way

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


# Bursts between two snapshots

BURST, REPLICAS, WITHIN = 64, 8, 3


def heard(fleet: Fleet, url: str, score: float, seqs: int, now_s: float, load: InFlight) -> Fleet:
    """One replica's own sidecar says so."""
    load.note(now_s)
    said = document(snapshot(url, score, seq=1 + int(now_s * 10), max_num_seqs=seqs))
    return hear(fleet, f"{url}/sidecar", said, now_s, load.taken_at)[0]


def burst(
    seed: int, *, keyed: bool, seqs: int, heard_amid: int = 0, replicas: int = REPLICAS
) -> int:
    """A burst over equal replicas, eight for each: how many more one gets than another.

    `heard_amid`: of so many a snapshot comes when half is sent, which shows what they have.
    """
    size = replicas * BURST // REPLICAS
    rng, load, memory, rules = Random(seed), InFlight(), Memory(size), AS_ASKED
    fleet = fleet_of([])
    for url in names(replicas):
        fleet = heard(fleet, url, 0.9, seqs, 0.0, load)
    odds = odds_of(fleet, rules, load)
    counts = Counter(dict.fromkeys(fleet.replicas, 0))
    for sent in range(size):
        if heard_amid and sent == size // 2:
            for url in rng.sample(names(replicas), heard_amid):
                fleet = heard(fleet, url, 0.9 - 0.3 * counts[url] / seqs, seqs, 0.1, load)
            odds = odds_of(fleet, rules, load, 0.1)
        keys = key_of(rng, keyed=keyed)
        odds.catch_up()
        decision = choose(odds, keys, 0.1, rng, rules, memory)
        replica = decision.replica
        assert replica is not None
        load.hold(replica.key, share_of(replica.snapshot, 100))
        if keys:
            memory.keep(keys, decision.known, replica.key, decision.move, 0.1)
        counts[replica.key] += 1
    return max(counts.values()) - min(counts.values())


@KEYED
def test_a_burst_over_equal_replicas_spreads_evenly(keyed: bool) -> None:
    """Report 7: a burst of 64 over 8 between two snapshots, in at least 998 of 1,000."""
    spreads = [burst(seed, keyed=keyed, seqs=256) for seed in range(100)]
    assert max(spreads) <= WITHIN


@pytest.mark.slow
@KEYED
@pytest.mark.parametrize("replicas", [32, 200])
def test_a_burst_over_many_spreads_as_evenly(keyed: bool, replicas: int) -> None:
    """Also where a key is hashed against a part of the ring alone."""
    spreads = [burst(seed, keyed=keyed, seqs=256, replicas=replicas) for seed in range(3)]
    assert fmean(spreads) <= WITHIN


@KEYED
@pytest.mark.parametrize("seqs", [16, 256])
def test_of_a_thousand_bursts_nearly_all_spread_evenly(keyed: bool, seqs: int) -> None:
    spreads = [burst(seed, keyed=keyed, seqs=seqs) for seed in range(1_000)]
    assert sum(spread <= WITHIN for spread in spreads) >= 998


@KEYED
@pytest.mark.parametrize("heard_amid", [1, 4])
def test_a_burst_spreads_evenly_though_some_are_heard_amid_it(keyed: bool, heard_amid: int) -> None:
    """Report 7: a snapshot overwrites what was just dispatched."""
    spreads = [burst(seed, keyed=keyed, seqs=256, heard_amid=heard_amid) for seed in range(50)]
    assert max(spreads) <= WITHIN


def steady(new: str, *, joins: bool, seed: int) -> int:
    """A stream of requests, 16 in flight, on 8 replicas that are heard in turns: how many of 50
    the one gets that has just joined, or was just heard."""
    rng, load, rules, urls = Random(seed), InFlight(), AS_ASKED, names(REPLICAS)
    fleet = fleet_of([])
    for url in urls:
        if not (joins and url == new):
            fleet = heard(fleet, url, 0.8, 256, 0.0, load)
    held: list[Hold] = []
    gets = 0
    for sent in range(450):
        now_s = 1.0 + sent / 200  # 200 a second; a replica is heard every 0.5 s.
        if sent == 400:
            fleet = heard(fleet, new, 0.8, 256, now_s, load)
        elif sent < 400 and sent % 12 == 0:
            url = urls[sent // 12 % REPLICAS]
            if not (joins and url == new):
                fleet = heard(fleet, url, 0.8, 256, now_s, load)
        decision = choose(odds_of(fleet, rules, load, now_s), (), now_s, rng, rules, Memory(1))
        assert decision.replica is not None
        held.append(load.hold(decision.replica.key, share_of(decision.replica.snapshot, 100)))
        if len(held) > 16:
            held.pop(0).release()
        gets += sent >= 400 and decision.replica.key == new
    return gets


@pytest.mark.parametrize("joins", [True, False], ids=["joined", "heard"])
def test_a_replica_that_has_just_joined_or_was_just_heard_is_not_flooded(joins: bool) -> None:
    gets = [steady(names(REPLICAS)[0], joins=joins, seed=seed) for seed in range(5)]
    assert 1 <= min(gets) <= max(gets) <= 2 * 50 / REPLICAS


# Rendezvous

KEYS = 1_000


def placed(scores: Mapping[str, float], *, seed: int) -> list[str]:
    """Where a router that knows nothing yet sends each of the same new keys."""
    odds, keys, dice = odds_of(fleet_with(scores), AS_ASKED), Random(11), Random(seed)
    homes = []
    for _ in range(KEYS):
        key = keys.getrandbits(64)
        decision = choose(odds, (key,), 0.0, dice, AS_ASKED, Memory(1))
        assert decision.replica is not None
        assert decision.why is Why.NEW_KEY
        homes.append(decision.replica.key)
    return homes


def some_scores(seed: int, count: int = 8) -> dict[str, float]:
    rng = Random(seed)
    return {url: rng.uniform(0.3, 0.9) for url in names(count)}


@pytest.mark.parametrize("count", [8, 64, 300])
def test_routers_that_see_the_same_place_new_keys_alike_without_talking(count: int) -> None:
    scores = some_scores(1, count)
    assert placed(scores, seed=1) == placed(scores, seed=2)


@pytest.mark.parametrize("count", [8, 64])
def test_routers_that_see_nearly_the_same_place_nearly_all_new_keys_alike(count: int) -> None:
    scores, rng = some_scores(1, count), Random(3)
    nearly = {url: score * rng.uniform(0.98, 1.02) for url, score in scores.items()}
    alike = sum(
        one == other
        for one, other in zip(placed(scores, seed=1), placed(nearly, seed=2), strict=True)
    )
    assert alike / KEYS >= 0.95


def test_a_replica_that_leaves_moves_only_the_keys_that_lived_there() -> None:
    before = placed(dict.fromkeys(names(8), 0.6), seed=1)
    gone = names(8)[3]
    after = placed({url: 0.6 for url in names(8) if url != gone}, seed=2)
    assert gone in before
    for home, then in zip(before, after, strict=True):
        assert then == home or home == gone


def test_the_neighbours_of_a_key_are_those_that_follow_it_on_the_ring() -> None:
    seats = odds_of(fleet_with(dict.fromkeys(names(5), 0.5)), AS_ASKED).seats
    assert neighbours(0, seats, 2) == [0, 1]
    assert neighbours(seats[1].seed, seats, 4) == [2, 3, 4, 0]
    assert neighbours(2**64 - 1, seats, 9) == [0, 1, 2, 3, 4]


# The other ways


@KEYED
def test_highest_sends_everything_to_the_highest_score(keyed: bool) -> None:
    counts = drawn(fleet_with({A: 0.9, B: 0.89, C: 0.2}), 50, way=Way.HIGHEST, keyed=keyed)
    assert counts[A] == 50


@KEYED
def test_the_most_loaded_is_never_the_better_of_two_choices(keyed: bool) -> None:
    load = InFlight()
    for url, count in ((A, 1), (B, 2), (C, 3)):
        for _ in range(count):
            load.hold(url)
    fleet = fleet_with({A: 0.3, B: 0.3, C: 0.9})
    counts = drawn(fleet, 300, way=Way.TWO_CHOICES, keyed=keyed, load=load)
    assert counts[C] == 0
    assert_shares(counts, {A: 2 / 3, B: 1 / 3})


@KEYED
def test_least_in_flight_counts_this_routers_requests_only(keyed: bool) -> None:
    load = InFlight()
    load.hold(A)
    counts = drawn(
        fleet_with({A: 0.9, B: 0.3, C: 0.3}),
        2_000,
        way=Way.LEAST_IN_FLIGHT,
        keyed=keyed,
        load=load,
    )
    assert_shares(counts, {A: 0.0, B: 0.5, C: 0.5})


def turns(fleets: Sequence[Fleet]) -> list[str]:
    """Where a request goes in each of these fleets, one after the other."""
    load, rules, order = InFlight(), rules_for(Way.ROUND_ROBIN), []
    for fleet in fleets:
        replica = choose(odds_of(fleet, rules, load), (), 0.0, Random(1), rules, Memory(1)).replica
        assert replica is not None
        load.last_seed = seed_of(replica.key)
        order.append(replica.key)
    return order


def test_round_robin_goes_to_each_in_turn() -> None:
    order = turns([fleet_with(dict.fromkeys(names(5), 0.5))] * 15)
    assert set(order[:5]) == {*names(5)}
    assert order[:5] * 3 == order


def test_round_robin_passes_over_who_has_no_room_and_keeps_the_turn() -> None:
    every = fleet_with(dict.fromkeys(names(5), 0.5))
    order = turns([every] * 5)
    without = fleet_with({url: 0.5 if url != order[2] else 0.1 for url in names(5)})
    assert turns([without] * 8) == [url for url in order if url != order[2]] * 2
    assert turns([every, every, without, every]) == [order[i] for i in (0, 1, 3, 4)]


def test_round_robin_goes_on_where_it_was_when_the_last_one_has_left() -> None:
    every = fleet_with(dict.fromkeys(names(5), 0.5))
    order = turns([every] * 5)
    rest = {key: replica for key, replica in every.replicas.items() if key != order[1]}
    left = replace(every, replicas=MappingProxyType(rest))
    assert turns([every, every, left]) == [order[0], order[1], order[2]]


def test_there_is_a_rule_for_every_way() -> None:
    assert WAYS.keys() | {Way.LEAST_WAIT} == {*Way}
