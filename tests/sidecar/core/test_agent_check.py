"""What HAProxy is told of each state and capacity."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshots import snapshot
from ullage_shared.snapshot import State
from ullage_sidecar.core.agent_check import answer, nobody

OUT = (State.DOWN, State.HUNG)
HELD_AT_0 = (State.STARTING, State.WARMING, State.DRAINING)


def engine(capacity=0.5, state=State.SERVING, reason="", label="vllm"):
    return snapshot("http://x:1", capacity, state=state, reason=reason, id=f"n/{label}")


@pytest.mark.parametrize(
    ("capacity", "said"),
    [
        (1.0, "up 100%\n"),
        (0.734, "up 73%\n"),
        (0.015, "up 2%\n"),
        (0.01, "up 1%\n"),
        (0.0001, "up 1%\n"),
        (0.0, "up 0%\n"),
    ],
)
def test_the_weight_is_the_capacity_and_nothing_above_0_becomes_0(capacity, said):
    assert answer([engine(capacity)]) == said


def test_a_ramping_engine_has_the_weight_of_its_discounted_capacity():
    ramping = engine(0.4, State.RAMPING, "up for less than 60 s")
    assert answer([ramping]) == "up 40% #ramping: up for less than 60 s\n"


def test_an_unknown_capacity_is_neither_idle_nor_full():
    silent = engine(None, reason="its plugin is silent")
    assert answer([silent]) == "up 50% #its plugin is silent\n"


@pytest.mark.parametrize("state", HELD_AT_0)
def test_who_shall_get_nothing_new_keeps_what_it_has(state):
    assert answer([engine(0.0, state, "because")]) == f"up 0% #{state}: because\n"


@pytest.mark.parametrize("state", OUT)
def test_who_cannot_serve_is_down_and_the_answer_says_why(state):
    assert answer([engine(0.0, state, "because")]) == f"down #{state}: because\n"


def test_a_server_of_several_ranks_is_worth_their_mean():
    assert answer([engine(0.2), engine(0.6), engine(None, reason="silent")]) == "up 43% #silent\n"


def test_one_rank_that_is_down_takes_its_share_and_not_its_server():
    hung = engine(0.0, State.HUNG, "no step")
    assert answer([engine(0.8), hung]) == "up 40% #hung: no step\n"
    assert answer([hung, engine(0.0, State.DOWN)]) == "down #hung: no step\n"


def test_a_name_that_nobody_has_says_nothing_of_the_server_and_whom_one_may_ask_for():
    replicas = [engine(label="a"), engine(label="b:0"), engine(label="b:1")]
    assert nobody(replicas, "c") == "up 50% #no engine c; wanted one of: a, b\n"
    assert nobody(replicas, "") == "up 50% #no engine named; wanted one of: a, b\n"


@given(
    st.sampled_from(State),
    st.none() | st.floats(0.0, 1.0),
    st.text(max_size=300),
    st.text(max_size=300),
)
def test_whatever_the_reason_each_answer_is_one_line_of_ascii(state, capacity, reason, asked):
    replicas = [engine(capacity, state, reason)]
    for said in (answer(replicas), nobody(replicas, asked)):
        line = said.encode("ascii")
        assert line.endswith(b"\n")
        assert line.decode().rstrip("\n").isprintable()
        assert len(line) <= 128


@given(st.sampled_from(State), st.none() | st.floats(0.0, 1.0))
def test_every_answer_says_whether_it_is_up_and_if_so_its_whole_weight(state, capacity):
    words = answer([engine(capacity, state)]).partition("#")[0].split()
    assert words == ["down"] if state in OUT else words[0] == "up"
    if words[0] == "up":
        assert 0 <= int(words[1].removesuffix("%")) <= 100
    assert not {"ready", "drain", "maint"} & set(words)
