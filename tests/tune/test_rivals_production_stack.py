"""production-stack's prefixaware, rule by rule."""

from random import Random

from fake_cluster import BlindCluster, request, send
from ullage_tune.rivals.production_stack import ProductionStackPrefixAware


def test_an_unknown_prompt_goes_to_any():
    policy = ProductionStackPrefixAware(BlindCluster(), Random(1))
    assert {policy.choose(request(text), 0.0) for text in range(50)} == {0, 1, 2}


def test_any_known_prefix_decides_whatever_the_load():
    policy = ProductionStackPrefixAware(BlindCluster(), Random(1))
    home = policy.choose(request(1), 0.0)
    send(policy, request(1), home, 1000)
    assert {policy.choose(request(1, text), 0.0) for text in range(20)} == {home}


def test_those_with_the_longest_prefix_share_it_by_lot():
    policy = ProductionStackPrefixAware(BlindCluster(4), Random(1))
    for replica in (0, 2):
        policy.tree.insert(request(1, 2).prompt, replica)
    policy.tree.insert(request(1).prompt, 3)
    assert {policy.choose(request(1, 2), 0.0) for _ in range(50)} == {0, 2}


def test_one_that_is_gone_is_passed_over():
    cluster = BlindCluster(3)
    policy = ProductionStackPrefixAware(cluster, Random(1))
    policy.tree.insert(request(1, 2).prompt, 0)
    policy.tree.insert(request(1).prompt, 2)
    cluster.there = [1, 2]
    assert policy.choose(request(1, 2), 0.0) == 2
