"""The limit of running sequences, learned from the queue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage_sidecar.core.slots import learned


def after(*readings):
    most = None
    for running, waiting in readings:
        most = learned(most, running, waiting)
    return most


def test_what_runs_while_others_wait_is_the_limit():
    assert after((3, 0), (8, 2), (5, 0)) == 8


def test_before_anything_has_waited_it_is_unknown():
    assert after((3, 0), (7, 0)) is None


def test_once_learned_it_grows_with_what_is_seen_to_run():
    """Requests may also wait for blocks, with slots free."""
    assert after((2, 5), (6, 0), (4, 1)) == 6


@pytest.mark.parametrize("reading", [(0, 5), (None, 5), (5, None), (None, None), (0, 0)])
def test_what_is_unknown_or_nothing_teaches_nothing(reading):
    assert after(reading) is None
    assert after((8, 1), reading) == 8


counts = st.none() | st.integers(0, 300)


@given(st.lists(st.tuples(counts, counts)))
def test_it_never_shrinks_and_is_never_0(readings):
    most = None
    for running, waiting in readings:
        before, most = most, learned(most, running, waiting)
        assert before is None or most >= before
        assert most is None or most > 0
