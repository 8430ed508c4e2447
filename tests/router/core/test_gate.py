"""The gate: every state has an answer to every event, and each overload ends by itself."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage_router.core.gate import TABLE, Event, State, step

EVENTS = st.lists(st.sampled_from(Event))


def after(*events: Event, state: State = State.OPEN) -> State:
    for event in events:
        state = step(state, event)
    return state


def test_every_state_has_an_answer_to_every_event_and_the_table_no_other_row() -> None:
    assert TABLE.keys() == set(product(State, Event))


@pytest.mark.parametrize("state", State)
def test_one_calm_second_opens_it_from_anywhere(state: State) -> None:
    """Report 9 (dynamo#12138): `overloaded` that never clears."""
    assert after(Event.CALM, state=state) is State.OPEN


@pytest.mark.parametrize("state", State)
def test_a_refusal_is_seen_from_anywhere(state: State) -> None:
    assert after(Event.REFUSED, state=state) is State.REFUSING


def test_a_request_that_must_wait_begins_an_overload() -> None:
    assert after(Event.WAITS) is State.QUEUEING


def test_without_refusals_it_goes_back_to_queueing_and_no_further() -> None:
    assert after(Event.REFUSED, Event.QUIET) is State.QUEUEING
    assert after(Event.REFUSED, Event.QUIET, Event.QUIET) is State.QUEUEING


def test_one_more_that_waits_takes_no_refusal_back() -> None:
    assert after(Event.REFUSED, Event.WAITS) is State.REFUSING


def test_silence_begins_nothing() -> None:
    assert after(Event.QUIET, Event.CALM) is State.OPEN


@given(EVENTS)
def test_only_calm_ends_an_overload(events: list[Event]) -> None:
    state = State.OPEN
    for event in events:
        before, state = state, step(state, event)
        if before is not State.OPEN and state is State.OPEN:
            assert event is Event.CALM


@given(EVENTS)
def test_whatever_happened_it_refuses_only_after_a_refusal(events: list[Event]) -> None:
    lately = [e for e in events if e in (Event.REFUSED, Event.QUIET, Event.CALM)]
    assert (after(*events) is State.REFUSING) == (lately[-1:] == [Event.REFUSED])
