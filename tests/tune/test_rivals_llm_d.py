"""llm-d's scorers, default and precise, rule by rule."""

from random import Random

import pytest

from fake_cluster import HARDWARE, BlindCluster, FakeCluster, idle, request, send
from ullage_tune.policy import Gauges
from ullage_tune.rivals.llm_d import LlmD, LlmDPrecise
from ullage_tune.workload import Request, Segment

ANY = request(50)


def made(replicas: int = 3) -> tuple[LlmD, BlindCluster]:
    cluster = BlindCluster(replicas)
    policy = LlmD(cluster, Random(1))
    idle(policy, replicas)
    return policy, cluster


def test_equal_scores_take_turns():
    policy, _ = made()
    assert [policy.choose(ANY, 0.0) for _ in range(4)] == [0, 1, 2, 0]


def test_turns_begin_again_at_the_end_of_a_smaller_tie():
    policy, _ = made()
    assert [policy._in_turn(best) for best in ([0, 1, 2], [0, 1], [0, 1, 2])] == [0, 1, 0]


def test_the_longest_queue_loses_two_of_seven_and_a_whole_prefix_wins_three():
    policy, _ = made(2)
    send(policy, request(1), 0)
    policy.scraped(0, Gauges(0, 20, 0.0), 1.0)
    assert policy.choose(request(1), 1.0) == 0
    # Half a prefix is 1.5 against the queue's 2.
    assert policy.choose(request(1, 2), 1.0) == 1


def test_queues_count_relative_to_each_other():
    policy, _ = made()
    for replica, waiting in enumerate((1, 2, 2)):
        policy.scraped(replica, Gauges(0, waiting, 0.0), 1.0)
    assert {policy.choose(ANY, 1.0) for _ in range(3)} == {0}


def test_kv_usage_counts_as_it_is():
    policy, _ = made()
    for replica, usage in enumerate((0.5, 0.4, 0.6)):
        policy.scraped(replica, Gauges(0, 3, usage), 1.0)
    assert {policy.choose(ANY, 1.0) for _ in range(3)} == {1}


def test_one_that_was_never_scraped_has_nothing_but_its_prefix():
    policy, cluster = made(2)
    cluster.there = [0, 1, 2]
    policy.scraped(0, Gauges(0, 9, 0.9), 1.0)
    policy.scraped(1, Gauges(0, 9, 0.9), 1.0)
    send(policy, request(1), 2)
    # 3 against 2 + 0.2.
    assert policy.choose(request(1), 1.0) == 2
    assert policy.choose(request(2), 1.0) != 2
    # 1.5 against 2.2: equal queues are no mark against anybody.
    assert policy.choose(request(1, 2), 1.0) != 2


def test_what_was_sent_counts_at_once_and_what_was_only_chosen_does_not():
    policy, _ = made(2)
    assert policy.choose(request(1), 0.0) == 0
    assert policy.choose(request(1), 0.0) == 1
    send(policy, request(1), 1)
    assert {policy.choose(request(1), 0.0) for _ in range(3)} == {1}


def test_a_prompt_of_less_than_a_block_has_no_prefix():
    policy, _ = made(2)
    short = Request(0.0, (Segment(1, 15),), 1)
    send(policy, short, 1)
    assert [policy.choose(short, 0.0) for _ in range(2)] == [0, 1]


def test_the_index_holds_as_many_blocks_as_the_kv_cache_and_drops_the_oldest_first():
    policy, _ = made(1)
    half = HARDWARE.blocks * HARDWARE.block_size // 2
    send(policy, request(1, 2, tokens=half), 0)
    assert policy.prefixes(request(1, 2, tokens=half), [0]) == {0: 1.0}
    send(policy, request(3, tokens=160), 0)
    assert policy.prefixes(request(1, 2, tokens=half), [0]) == {}


def test_blocks_behind_a_gap_count_while_somebody_holds_the_gap():
    policy, _ = made(2)
    half = HARDWARE.blocks * HARDWARE.block_size // 2
    send(policy, request(1, 2, tokens=half), 0)
    send(policy, request(3, tokens=160), 0)
    send(policy, request(1, tokens=half), 1)
    assert policy.prefixes(request(1, 2, tokens=half), [0, 1]) == {0: 0.5, 1: 0.5}


def test_use_keeps_a_prefix_young():
    policy, _ = made(1)
    third = HARDWARE.blocks * HARDWARE.block_size // 4
    for text in (1, 2, 3, 4, 1, 5):
        send(policy, request(text, tokens=third), 0)
    held = [bool(policy.prefixes(request(text, tokens=third), [0])) for text in (1, 2, 3)]
    assert held == [True, False, True]


def test_one_that_is_gone_is_out_of_the_index():
    policy, cluster = made(2)
    policy.choose(ANY, 0.0)
    send(policy, request(1), 0)
    cluster.there = [1]
    assert policy.choose(request(1), 1.0) == 1
    assert policy.prefixes(request(1), [1]) == {}
    assert not policy._holders
    assert set(policy._gauges) == {1}


@pytest.mark.parametrize(("cached", "best"), [(64, {1}), (63, {0, 1})])
def test_precise_counts_whole_blocks_of_64_tokens_that_are_cached(cached, best):
    cluster = FakeCluster(2)
    policy = LlmDPrecise(cluster, Random(1))
    idle(policy, 2)
    cluster.cached[1] = cached
    assert {policy.choose(request(1), 0.0) for _ in range(4)} == best


def test_precise_weighs_two_one_one():
    cluster = FakeCluster(2)
    policy = LlmDPrecise(cluster, Random(1))
    idle(policy, 2)
    policy.scraped(1, Gauges(0, 5, 0.5), 1.0)
    cluster.cached[1] = 128
    # 2 · 2/2 + 0.5 against 1 + 1, and 2 · 1/2 + 0.5.
    assert policy.choose(request(1), 1.0) == 1
    cluster.cached[1] = 127
    assert policy.choose(request(1), 1.0) == 0


def test_precise_has_no_prefix_of_a_prompt_below_its_block():
    cluster = FakeCluster(2)
    cluster.cached[1] = 63
    assert LlmDPrecise(cluster, Random(1)).prefixes(request(1, tokens=63), [0, 1]) == {}
