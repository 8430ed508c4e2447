"""vllm-router's cache_aware, rule by rule."""

from random import Random

from fake_cluster import BlindCluster, request, send
from ullage_tune.rivals import vllm_router
from ullage_tune.rivals.vllm_router import VllmRouterCacheAware

OTHER = request(99)


def made(replicas: int = 3) -> tuple[VllmRouterCacheAware, BlindCluster]:
    cluster = BlindCluster(replicas)
    return VllmRouterCacheAware(cluster, Random(1)), cluster


def test_with_nothing_known_the_fewest_in_flight_has_it_and_of_equals_the_first():
    policy, _ = made()
    assert policy.choose(request(1), 0.0) == 0
    send(policy, OTHER, 0)
    assert policy.choose(request(2), 0.0) == 1


def test_a_prefix_goes_where_it_began_though_others_are_emptier():
    policy, _ = made()
    assert policy.choose(request(1, 2), 0.0) == 0
    send(policy, OTHER, 0, 10)
    assert policy.choose(request(1, 3), 0.0) == 0


def test_a_match_of_exactly_three_tenths_is_none():
    policy, _ = made()
    policy.choose(request(*range(3)), 0.0)
    send(policy, OTHER, 0)
    assert policy.choose(request(*range(3), *range(10, 17)), 0.0) == 1
    assert policy.choose(request(*range(3), *range(20, 26)), 0.0) == 0


def test_a_branch_is_its_beginners_even_if_others_got_more_of_it():
    policy, _ = made()
    policy.choose(request(1), 0.0)
    send(policy, OTHER, 0, 65)
    assert policy.choose(request(1), 0.0) == 1
    for _ in range(65):
        policy.finished(OTHER, 0, 1.0)
    assert policy.choose(request(1), 2.0) == 0


def test_the_gate_opens_above_sixty_four_and_not_at_it():
    policy, _ = made(2)
    policy.choose(request(1), 0.0)
    send(policy, OTHER, 0, 64)
    assert policy.choose(request(1), 0.0) == 0
    send(policy, OTHER, 0, 1)
    assert policy.choose(request(1), 0.0) == 1


def test_the_gate_stays_shut_up_to_one_and_a_half_times_the_fewest():
    policy, _ = made(2)
    policy.choose(request(1), 0.0)
    send(policy, OTHER, 0, 225)
    send(policy, OTHER, 1, 150)
    assert policy.choose(request(1), 0.0) == 0
    send(policy, OTHER, 0, 1)
    assert policy.choose(request(1), 0.0) == 1


def test_what_went_by_load_is_learned_too():
    policy, _ = made(2)
    send(policy, OTHER, 0, 100)
    assert policy.choose(request(1), 0.0) == 1
    send(policy, OTHER, 1, 60)
    assert policy.choose(request(1), 0.0) == 1


def test_one_that_is_gone_is_out_of_the_tree():
    policy, cluster = made(2)
    assert policy.choose(request(1), 0.0) == 0
    cluster.there = [1]
    assert policy.choose(request(1), 0.0) == 1
    assert policy.tree.sizes == {1: 160}


def test_the_tree_is_cut_every_two_minutes_to_its_size_for_each(monkeypatch):
    monkeypatch.setattr(vllm_router, "MAX_TREE_TOKENS", 160)
    policy, _ = made(1)
    for text in range(3):
        policy.choose(request(text), 119.9)
    assert policy.tree.size == 480
    policy.choose(request(3), 120.0)
    assert policy.tree.size == 320
    assert policy.tree.match(request(2).prompt)[0] == 160
    policy.choose(request(4), 239.9)
    assert policy.tree.size == 480


def test_the_defaults_are_those_of_the_command_line():
    assert vllm_router.CACHE_THRESHOLD == 0.3
    assert (vllm_router.BALANCE_ABS_THRESHOLD, vllm_router.BALANCE_REL_THRESHOLD) == (64, 1.5)
    assert vllm_router.MAX_TREE_TOKENS == 8_388_608
