"""Dynamo's cost, term by term."""

from collections import Counter
from math import exp
from random import Random

from fake_cluster import FakeCluster, request, send
from ullage_tune.rivals.dynamo import Dynamo


def made(replicas: int = 2, temperature: float = 0.0) -> tuple[Dynamo, FakeCluster]:
    cluster = FakeCluster(replicas)
    return Dynamo(cluster, Random(1), temperature), cluster


def chosen(policy: Dynamo, what, times: int = 20) -> set[int | None]:
    return {policy.choose(what, 0.0) for _ in range(times)}


def test_equals_go_by_lot():
    policy, _ = made()
    assert chosen(policy, request(1)) == {0, 1}


def test_what_is_cached_need_not_be_prefilled():
    policy, cluster = made()
    cluster.cached[1] = 16
    assert chosen(policy, request(1)) == {1}
    cluster.cached[1] = 15
    assert chosen(policy, request(1)) == {0, 1}


def test_a_prompt_weighs_as_prefill_and_as_held_until_its_first_token():
    policy, cluster = made()
    send(policy, request(1), 0)
    cluster.cached[0] = 9999
    # 10 + 10 blocks of the first and 10 + 10 of the second, of which 9 are cached here.
    assert chosen(policy, request(2)) == {1}
    policy.first_token(request(1), 0, 1.0)
    assert chosen(policy, request(2)) == {1}


def test_after_the_first_token_only_what_is_held_weighs():
    policy, cluster = made()
    first, second = request(1), request(2)
    send(policy, first, 0)
    send(policy, second, 1)
    policy.first_token(first, 0, 1.0)
    assert chosen(policy, request(3)) == {0}
    policy.finished(first, 0, 2.0)
    policy.first_token(second, 1, 2.0)
    cluster.cached[1] = 159
    # Nothing there; 10 blocks held here, less 9 that are cached.
    assert chosen(policy, request(3)) == {0}


def test_an_end_without_a_first_token_leaves_nothing():
    policy, _ = made()
    what = request(1)
    send(policy, what, 0)
    policy.finished(what, 0, 1.0)
    assert chosen(policy, request(2)) == {0, 1}
    assert not policy._active
    assert policy._prefill_tokens[0] == policy._active_blocks[0] == 0


def test_a_prefix_is_held_once_however_many_have_it():
    policy, _ = made()
    first, second = request(1, 2), request(1, 3)
    for what in (first, second):
        send(policy, what, 0)
        policy.first_token(what, 0, 0.0)
    assert policy._active_blocks[0] == 30
    policy.finished(first, 0, 1.0)
    assert policy._active_blocks[0] == 20
    policy.finished(second, 0, 1.0)
    assert policy._active_blocks[0] == 0


def test_what_is_active_there_is_not_added_again():
    policy, _ = made()
    first, second = request(1), request(2)
    send(policy, first, 0)
    send(policy, second, 1)
    for replica, what in enumerate((first, second)):
        policy.first_token(what, replica, 0.0)
    assert chosen(policy, request(1, 9)) == {0}
    assert chosen(policy, request(2, 9)) == {1}


def test_a_temperature_draws_by_the_distance_from_the_least():
    policy, cluster = made(3, temperature=0.5)
    cluster.cached = {0: 159, 1: 80}
    shares = Counter(policy.choose(request(1), 0.0) for _ in range(4000))
    weights = [1.0, exp(-(4 / 9) / 0.5), exp(-1 / 0.5)]
    for replica, weight in enumerate(weights):
        share = weight / sum(weights)
        assert abs(shares[replica] - 4000 * share) < 4 * (4000 * share * (1 - share)) ** 0.5


def test_a_temperature_over_equals_is_a_lot():
    policy, _ = made(2, temperature=0.5)
    assert chosen(policy, request(1)) == {0, 1}


def test_one_that_is_gone_takes_its_requests_along():
    policy, cluster = made()
    what = request(1)
    policy.choose(what, 0.0)
    send(policy, what, 0)
    send(policy, what, 1)
    cluster.there = [1]
    assert policy.choose(what, 1.0) == 1
    policy.finished(what, 0, 2.0)
    assert set(policy._active_blocks) == {1}
    policy.finished(what, 1, 3.0)
    assert not policy._active
