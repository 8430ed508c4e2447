"""The bound: what each term of its cost must do."""

from random import Random

import pytest

from fake_cluster import HARDWARE, FakeCluster, request, send
from ullage_tune.rivals.omniscient import PACE_S, Omniscient, Pace

CAPACITY = HARDWARE.blocks * HARDWARE.block_size


def made(replicas: int = 2) -> tuple[Omniscient, FakeCluster]:
    cluster = FakeCluster(replicas)
    return Omniscient(cluster, Random(1)), cluster


def chosen(policy: Omniscient, what, now_s: float = 0.0) -> set[int | None]:
    return {policy.choose(what, now_s) for _ in range(20)}


def test_equals_go_by_lot_here_too():
    policy, _ = made()
    assert chosen(policy, request(1)) == {0, 1}


def test_the_shorter_backlog_wins():
    policy, cluster = made()
    cluster.pending = {0: 101, 1: 100}
    assert chosen(policy, request(1)) == {1}


def test_a_cached_token_is_worth_one_and_a_half_in_the_queue():
    policy, cluster = made()
    cluster.pending = {0: 149}
    cluster.cached = {0: 100}
    assert chosen(policy, request(1)) == {0}
    cluster.pending = {0: 151}
    assert chosen(policy, request(1)) == {1}


def test_what_is_decoded_there_counts_a_little():
    policy, cluster = made()
    cluster.held = {0: 160}
    # A hundredth of the cache is 20 ms, which are 200 tokens.
    assert chosen(policy, request(1)) == {1}
    cluster.pending = {1: 199}
    assert chosen(policy, request(1)) == {1}
    cluster.pending = {1: 201}
    assert chosen(policy, request(1)) == {0}


def test_one_that_is_full_is_worth_the_wait_until_somebody_ends():
    policy, cluster = made()
    running = request(9, tokens=CAPACITY - 200, output=100)
    cluster.held = {0: CAPACITY - 100, 1: CAPACITY - 100}
    send(policy, running, 0)
    policy.first_token(running, 0, 0.0)
    send(policy, running._replace(output_tokens=90), 1)
    policy.first_token(running, 1, 0.0)
    assert chosen(policy, request(1, tokens=95, output=10)) == {1}


def test_what_still_fits_waits_for_nobody():
    policy, cluster = made()
    running = request(9, tokens=CAPACITY - 200, output=100)
    cluster.held = {0: CAPACITY - 100}
    send(policy, running, 0)
    assert policy._full_s(0, 0, cluster.held[0], 0.0) == 0.0
    assert policy._full_s(0, 1, cluster.held[0], 0.0) == pytest.approx(
        PACE_S * running.prompt_tokens + 0.03 * 100
    )


def test_requests_of_other_routers_are_taken_to_end_like_our_own():
    policy, cluster = made(1)
    for output in (10, 20):
        what = request(output, tokens=100 - output, output=output)
        send(policy, what, 0)
        policy.first_token(what, 0, 0.0)
    # Ours hold half of what is held, so that half of what is lacking must come from them.
    cluster.held = {0: 400}
    assert policy._full_s(0, 200, 400, 0.0) == pytest.approx(0.3)
    assert policy._full_s(0, 202, 400, 0.0) == pytest.approx(0.6)
    assert policy._full_s(0, 9999, 400, 0.0) == pytest.approx(0.6)


def test_with_none_of_our_own_there_nothing_is_known_of_their_ends():
    policy, _ = made(1)
    assert policy._full_s(0, 100, 400, 0.0) == 0.0


def test_a_slow_one_is_known_after_some_first_tokens():
    policy, cluster = made()
    cluster.pending = {0: 1000, 1: 1000}
    for _ in range(40):
        for replica, took_s in ((0, 0.1), (1, 0.2)):
            what = request(1)
            policy.choose(what, 0.0)
            send(policy, what, replica)
            policy.first_token(what, replica, took_s)
            policy.finished(what, replica, took_s)
    assert chosen(policy, request(2)) == {0}


def test_a_pace_leans_on_the_fleets_until_it_was_shown():
    pace = Pace(1.0)
    assert pace.of(3) == 1.0
    for _ in range(400):
        pace.learn(0, 10.0, 20.0)
    assert pace.of(0) == pytest.approx(2.0, rel=0.01)
    assert pace.of(1) == pytest.approx(2.0, rel=0.01)
    pace.learn(1, 10.0, 80.0)
    assert 2.0 < pace.of(1) < 3.0


def test_the_requests_of_one_that_is_gone_are_forgotten():
    policy, cluster = made()
    policy.choose(request(1), 0.0)
    send(policy, request(1), 0)
    cluster.there = [1]
    assert policy.choose(request(1), 0.0) == 1
    assert not policy._there


def test_an_end_without_a_first_token_teaches_nothing():
    policy, _ = made(1)
    what = request(1)
    send(policy, what, 0)
    policy.finished(what, 0, 1000.0)
    policy.first_token(what, 0, 1001.0)
    assert policy._pace.of(0) == PACE_S
    assert policy._there == {0: {}}
