"""Round robin, least in flight, two choices."""

from collections import Counter
from random import Random

import pytest

from fake_cluster import FakeCluster, request, send
from ullage_tune.rivals.plain import LeastInFlight, RoundRobin, TwoChoices

ANY = request(1)


def test_round_robin_takes_turns_from_the_first():
    policy = RoundRobin(FakeCluster(), Random(1))
    assert [policy.choose(ANY, 0.0) for _ in range(4)] == [0, 1, 2, 0]


def test_round_robin_goes_on_behind_one_that_is_gone_and_meets_one_that_came():
    cluster = FakeCluster()
    policy = RoundRobin(cluster, Random(1))
    assert policy.choose(ANY, 0.0) == 0
    cluster.there = [0, 2, 3]
    assert [policy.choose(ANY, 0.0) for _ in range(3)] == [2, 3, 0]


def test_the_fewest_in_flight_are_chosen():
    policy = LeastInFlight(FakeCluster(), Random(1))
    send(policy, ANY, 0, 2)
    send(policy, ANY, 1, 1)
    send(policy, ANY, 2, 2)
    assert policy.choose(ANY, 0.0) == 1


def test_equals_are_chosen_by_lot():
    policy = LeastInFlight(FakeCluster(), Random(1))
    shares = Counter(policy.choose(ANY, 0.0) for _ in range(900))
    # Three standard deviations of a share of one third.
    assert all(abs(shares[replica] - 300) < 3 * (900 * 2 / 9) ** 0.5 for replica in range(3))


def test_a_first_token_ends_nothing_and_an_end_does():
    policy = LeastInFlight(FakeCluster(2), Random(1))
    send(policy, ANY, 0)
    policy.first_token(ANY, 0, 1.0)
    assert policy.in_flight(0) == 1
    policy.finished(ANY, 0, 2.0)
    assert not policy._in_flight
    policy.finished(ANY, 0, 3.0)
    assert policy.in_flight(0) == 0


def test_the_fullest_of_three_is_never_one_of_two_choices():
    policy = TwoChoices(FakeCluster(), Random(1))
    send(policy, ANY, 2, 5)
    send(policy, ANY, 1, 1)
    shares = Counter(policy.choose(ANY, 0.0) for _ in range(900))
    assert shares[2] == 0
    assert abs(shares[1] - 300) < 3 * (900 * 2 / 9) ** 0.5


@pytest.mark.parametrize("make", [RoundRobin, LeastInFlight, TwoChoices])
def test_the_only_one_is_chosen_however_full(make):
    policy = make(FakeCluster(1), Random(1))
    send(policy, ANY, 0, 1000)
    assert policy.choose(ANY, 0.0) == 0
