"""SMG's expected wait and the policies that stand on it, rule by rule."""

from random import Random

import pytest

from fake_cluster import BlindCluster, idle, request, send
from ullage_tune.policy import Gauges
from ullage_tune.rivals.smg import (
    SmgCacheAware,
    SmgExpectedWait,
    SmgLeastLoad,
    SmgLeastRequests,
)
from ullage_tune.rivals.smg_wait import ExpectedWait

OTHER = request(99)


def made(make: type[ExpectedWait] = SmgLeastLoad, replicas: int = 3):
    cluster = BlindCluster(replicas)
    return make(cluster, Random(1)), cluster


def chosen(policy: ExpectedWait, times: int = 30) -> set[int | None]:
    """What it would choose, over and over, if it did not count its choices."""
    seen = set()
    for text in range(times):
        seen.add(policy.choose(request(1000 + text), 0.0))
        policy._dispatched = dict.fromkeys(policy._dispatched, 0)
    return seen


def test_before_any_reading_the_fewest_in_flight_have_it():
    policy, _ = made()
    send(policy, OTHER, 0)
    assert chosen(policy) == {1, 2}


def test_each_choice_counts_as_a_prompt_of_1024_tokens_until_the_next_reading():
    policy, _ = made(replicas=2)
    policy.scraped(0, Gauges(0, 0, 0.0), 0.0)
    policy.scraped(1, Gauges(3, 0, 0.0), 0.0)
    first = [policy.choose(OTHER, 1.0) for _ in range(3)]
    assert first == [0, 0, 0]
    send(policy, OTHER, 0, 3)
    for _ in range(3):
        policy.finished(OTHER, 0, 2.0)
    assert {policy.choose(OTHER, 2.0), policy.choose(OTHER, 2.0)} == {0, 1}
    policy.scraped(0, Gauges(0, 0, 0.0), 10.0)
    assert policy.choose(OTHER, 10.0) == 0


def test_a_reading_is_taken_every_ten_seconds_and_not_before():
    policy, _ = made(replicas=2)
    idle(policy, 2)
    policy.scraped(0, Gauges(9, 0, 0.0), 9.9)
    assert chosen(policy) == {0, 1}
    policy.scraped(0, Gauges(9, 0, 0.0), 10.0)
    assert chosen(policy) == {1}


def test_a_clock_that_went_back_does_not_stop_the_readings():
    policy, _ = made(replicas=2)
    idle(policy, 2, at_s=100.0)
    policy.scraped(0, Gauges(9, 0, 0.0), 5.0)
    assert chosen(policy) == {1}


def test_what_is_in_flight_beyond_the_reading_counts():
    policy, _ = made(replicas=2)
    policy.scraped(0, Gauges(2, 0, 0.0), 0.0)
    policy.scraped(1, Gauges(3, 0, 0.0), 0.0)
    send(policy, OTHER, 0, 2)
    assert chosen(policy) == {0}
    send(policy, OTHER, 0, 1)
    assert chosen(policy) == {0, 1}
    send(policy, OTHER, 0, 1)
    assert chosen(policy) == {1}


def test_kv_pressure_is_a_wait():
    policy, _ = made(replicas=2)
    # 0.15 · 0.79 / 0.21 = 0.564 s, and one request is 0.512 s.
    policy.scraped(0, Gauges(0, 0, 0.79), 0.0)
    policy.scraped(1, Gauges(1, 0, 0.0), 0.0)
    assert chosen(policy) == {1}
    policy.scraped(0, Gauges(0, 0, 0.77), 20.0)
    assert chosen(policy) == {0}


def test_one_without_a_reading_is_as_good_as_the_best_that_has_one():
    policy, _ = made()
    policy.scraped(0, Gauges(5, 0, 0.0), 0.0)
    policy.scraped(1, Gauges(1, 0, 0.0), 0.0)
    assert chosen(policy) == {1, 2}
    send(policy, OTHER, 2)
    assert chosen(policy) == {1}


@pytest.mark.parametrize("over", [Gauges(0, 8, 0.0), Gauges(0, 0, 0.8)])
@pytest.mark.parametrize("make", [SmgCacheAware, SmgExpectedWait, SmgLeastLoad, SmgLeastRequests])
def test_an_overloaded_one_is_left_out_while_another_is_not(make, over):
    policy, _ = made(make, 2)
    policy.scraped(0, over, 0.0)
    policy.scraped(1, Gauges(200, 7, 0.79), 0.0)
    send(policy, OTHER, 1, 5)
    assert chosen(policy) == {1}


@pytest.mark.parametrize("make", [SmgCacheAware, SmgExpectedWait, SmgLeastLoad, SmgLeastRequests])
def test_of_all_overloaded_the_fewest_in_flight_have_it(make):
    policy, _ = made(make)
    for replica in range(3):
        policy.scraped(replica, Gauges(0, 8 + replica, 0.0), 0.0)
    send(policy, OTHER, 0)
    send(policy, OTHER, 1, 2)
    assert chosen(policy) == {2}


def test_least_requests_asks_the_wait_only_among_the_fewest():
    policy, _ = made(SmgLeastRequests)
    policy.scraped(0, Gauges(5, 0, 0.0), 0.0)
    policy.scraped(1, Gauges(6, 0, 0.0), 0.0)
    policy.scraped(2, Gauges(0, 0, 0.0), 0.0)
    send(policy, OTHER, 2)
    assert chosen(policy) == {0}


def test_expected_wait_is_the_better_of_two_drawn():
    policy, _ = made(SmgExpectedWait)
    for replica, running in enumerate((0, 1, 2)):
        policy.scraped(replica, Gauges(running, 0, 0.0), 0.0)
    assert chosen(policy) == {0, 1}


def test_a_prefix_goes_to_its_holder():
    policy, _ = made(SmgCacheAware)
    home = policy.choose(request(1, 2), 0.0)
    send(policy, OTHER, home, 4)
    assert policy.choose(request(1, 3), 0.0) == home


def test_a_match_of_exactly_three_tenths_is_none_here_too():
    policy, _ = made(SmgCacheAware, 2)
    home = policy.choose(request(*range(3)), 0.0)
    send(policy, OTHER, home)
    assert policy.choose(request(*range(3), *range(10, 17)), 0.0) != home


def test_a_holder_with_four_more_than_the_mean_is_not_crowded_and_with_five_it_is():
    policy, _ = made(SmgCacheAware, 5)
    home = policy.choose(request(1), 0.0)
    # A mean of 1 and a margin of max(4, 2 √1) = 4.
    send(policy, OTHER, home, 5)
    assert policy.choose(request(1), 0.0) == home
    send(policy, OTHER, home, 1)
    assert policy.choose(request(1), 0.0) != home


def crowds(in_flight: int, elsewhere: int) -> bool:
    """Whether a holder with so many is crowded, beside three others with so many each."""
    policy, _ = made(SmgCacheAware, 4)
    home = policy.choose(request(1), 0.0)
    for replica in range(4):
        send(policy, OTHER, replica, in_flight if replica == home else elsewhere)
    return policy.choose(request(1), 0.0) != home


def test_the_margin_is_two_deviations_of_the_mean_if_that_is_more_than_four():
    # Means of 9 and 9.25, margins of 6 and 7.
    assert not crowds(15, 7)
    assert crowds(17, 7)
    assert not crowds(16, 7)


def test_a_holder_under_one_and_a_half_means_is_never_crowded():
    # Means of 90 and 90.25; two deviations are 19 and 20.
    assert not crowds(135, 75)
    assert crowds(136, 75)


def test_from_a_crowded_holder_it_does_not_go_to_another_that_is_crowded():
    policy, _ = made(SmgCacheAware, 6)
    home = policy.choose(request(1), 0.0)
    crowded = (home + 1) % 6
    for replica in range(6):
        full = replica not in (home, crowded)
        policy.scraped(replica, Gauges(100 if full else 0, 0, 0.0), 0.0)
    send(policy, OTHER, home, 20)
    send(policy, OTHER, crowded, 20)
    assert policy.choose(request(1), 0.0) not in (home, crowded)


def test_a_crowded_prefix_gains_a_holder():
    policy, _ = made(SmgCacheAware, 5)
    home = policy.choose(request(1), 0.0)
    send(policy, OTHER, home, 10)
    second = policy.choose(request(1), 0.0)
    _, node = policy.tree.match(request(1).prompt)
    assert set(node.holders) == {home, second}


def test_smg_forgets_one_that_is_gone():
    policy, cluster = made(SmgCacheAware, 2)
    idle(policy, 2)
    home = policy.choose(request(1), 0.0)
    cluster.there = [1 - home]
    assert policy.choose(request(1), 0.0) == 1 - home
    assert set(policy.tree.sizes) == set(policy._read) == {1 - home}


def test_the_tree_is_cut_every_minute_to_its_size_for_all(monkeypatch):
    monkeypatch.setattr("ullage_tune.rivals.smg.MAX_TREE_TOKENS", 320)
    policy, _ = made(SmgCacheAware)
    for text in range(4):
        policy.choose(request(text), 59.9)
    assert policy.tree.size == 640
    policy.choose(request(9), 60.0)
    assert policy.tree.size == 480
    assert policy.tree.match(request(0).prompt)[0] == 0
