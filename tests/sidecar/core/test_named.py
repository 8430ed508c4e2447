"""A peer that asks by name gets what it means, or nobody."""

import pytest

from snapshots import snapshot
from ullage_sidecar.core.named import named, servers


def engine(label, rank=None, **changes):
    return snapshot("http://x:1", id=f"gpu-03/{label}", dp_rank=rank, **changes)


ALONE = (engine("vllm"),)
SEVERAL = (engine("a:0", 0), engine("a:1", 1), engine("b"))


@pytest.mark.parametrize("asked", ["", "vllm", "vllm:0"])
def test_the_only_engine_is_meant_by_no_name_by_its_own_and_as_rank_0(asked):
    assert named(ALONE, asked) == ALONE


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("a", SEVERAL[:2]),
        ("a:0", SEVERAL[:1]),
        ("a:1", SEVERAL[1:2]),
        ("b", SEVERAL[2:]),
        ("b:0", SEVERAL[2:]),
    ],
)
def test_a_server_means_all_its_ranks_and_a_rank_itself(asked, meant):
    assert named(SEVERAL, asked) == meant


@pytest.mark.parametrize(
    "asked", ["", "c", "a:2", "a:", ":0", ":", "a:00", "b:1", "A", "gpu-03/a", "a:0:0", "a:-1"]
)
def test_anything_else_means_nobody(asked):
    assert named(SEVERAL, asked) == ()


def test_two_ranks_of_one_server_are_its_only_server():
    assert named(SEVERAL[:2], "") == SEVERAL[:2]


def test_any_rank_of_a_server_that_was_never_heard_is_the_server():
    unheard = (engine("a", boot_id=None),)
    assert named(unheard, "a:0") == named(unheard, "a:7") == unheard
    assert named(unheard, "a:") == named(unheard, "a:x") == ()


def test_a_node_without_engines_means_nobody():
    assert named((), "") == named((), "a") == ()
    assert servers(()) == []


def test_servers_are_named_once_each_in_order():
    assert servers(SEVERAL) == ["a", "b"]
