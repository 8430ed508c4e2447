"""The memory of which prompts went where."""

from fake_cluster import request
from ullage_tune.rivals.chain import chain
from ullage_tune.rivals.prefix_tree import PrefixTree
from ullage_tune.workload import Request, Segment


def test_an_empty_tree_matches_nothing():
    tokens, node = PrefixTree().match(request(1).prompt)
    assert tokens == 0
    assert not node.holders


def test_a_match_is_the_sum_of_the_leading_equal_segments():
    tree = PrefixTree()
    tree.insert(request(1, 2, 3).prompt, 7)
    assert tree.match(request(1, 2, 9, 3).prompt)[0] == 320
    assert tree.match(request(2, 1).prompt)[0] == 0
    assert tree.match(request(1, 2, 3, 4).prompt)[0] == 480


def test_a_segment_of_the_same_name_and_another_length_is_another():
    tree = PrefixTree()
    tree.insert(request(1, tokens=160).prompt, 7)
    assert tree.match(request(1, tokens=100).prompt)[0] == 0


def test_the_owner_is_the_first_holder_and_then_the_next():
    tree = PrefixTree()
    tree.insert(request(1).prompt, 5)
    tree.insert(request(1, 2).prompt, 3)
    _, node = tree.match(request(1).prompt)
    assert (node.first_holder(), set(node.holders)) == (5, {3, 5})
    tree.forget(5)
    assert node.first_holder() == 3


def test_a_prefix_is_counted_once_for_each_holder():
    tree = PrefixTree()
    tree.insert(request(1, 2).prompt, 0)
    tree.insert(request(1, 3).prompt, 0)
    tree.insert(request(1).prompt, 1)
    assert (tree.sizes, tree.size) == ({0: 480, 1: 160}, 640)


def test_who_is_forgotten_leaves_no_node_behind():
    tree = PrefixTree()
    tree.insert(request(1, 2).prompt, 0)
    tree.insert(request(1).prompt, 1)
    tree.forget(0)
    assert tree.match(request(1, 2).prompt)[0] == 160
    assert (tree.sizes, tree.size) == ({1: 160}, 160)
    tree.forget(1)
    tree.forget(2)
    assert not tree.root.children


def test_eviction_takes_the_oldest_leaf_and_what_nobody_else_needs_above_it():
    tree = PrefixTree()
    tree.insert(request(1, 2).prompt, 0)
    tree.insert(request(1, 3).prompt, 0)
    tree.insert(request(1, 2).prompt, 0)
    tree.evict(lambda replica: tree.sizes[replica] > 320)
    assert tree.match(request(1, 2).prompt)[0] == 320
    assert tree.match(request(1, 3).prompt)[0] == 160
    tree.evict(lambda replica: tree.sizes[replica] > 319)
    assert tree.match(request(1, 2).prompt)[0] == 160
    tree.evict(lambda replica: tree.sizes[replica] > 0)
    assert not tree.root.children


def test_eviction_does_not_take_a_prefix_from_what_is_left_below_it():
    tree = PrefixTree()
    tree.insert(request(1, 2).prompt, 0)
    tree.insert(request(1, 3).prompt, 0)
    tree.evict(lambda _: tree.size > 160)
    assert tree.match(request(1).prompt)[0] == tree.size == 160


def test_eviction_spares_the_holders_that_are_under_their_bound():
    tree = PrefixTree()
    tree.insert(request(1, 2).prompt, 0)
    tree.insert(request(1).prompt, 1)
    tree.evict(lambda replica: tree.sizes[replica] > 160)
    assert tree.sizes == {0: 160, 1: 160}


def test_eviction_at_the_bound_takes_nothing():
    tree = PrefixTree()
    tree.insert(request(1).prompt, 0)
    tree.evict(lambda _: tree.size > 160)
    assert tree.size == 160


def test_the_blocks_of_all_segments_are_the_whole_blocks_of_the_prompt():
    prompt = (Segment(1, 10), Segment(2, 10), Segment(3, 3), Segment(4, 40))
    assert [blocks for _, blocks in chain(Request(0.0, prompt, 1), 16)] == [0, 1, 0, 2]


def test_prefixes_have_one_name_exactly_if_they_are_equal():
    def names(*texts: int) -> list[int]:
        return [name for name, _ in chain(request(*texts), 16)]

    assert names(1, 2, 3)[:2] == names(1, 2, 4)[:2]
    assert len({*names(1, 2), *names(2, 1), *names(2, 2)}) == 5
