"""The other ways: `highest`, `two_choices`, `least_in_flight`, `round_robin`."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from types import MappingProxyType

from selecting import KEYED, A, B, C, assert_shares, choose, drawn, names, odds_of, rules_for
from snapshots import fleet_with
from ullage_router.core.affinity import Memory
from ullage_router.core.fleet import Fleet
from ullage_router.core.inflight import InFlight
from ullage_router.core.lineup import seed_of
from ullage_router.core.policy import Way
from ullage_router.core.selection import WAYS


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
