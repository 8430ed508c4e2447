from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshots import snapshot
from ullage_router.core.inflight import MOST_BY_PROMPT, NOMINAL_SEQS, Hold, InFlight, share_of
from ullage_shared.snapshot import Snapshot


def test_a_hold_counts_until_it_is_released() -> None:
    in_flight = InFlight()
    with in_flight.hold("a"), in_flight.hold("a"), in_flight.hold("b"):
        assert in_flight.by_replica["a"] == 2
        assert repr(in_flight) == "InFlight(3: {'a': 2, 'b': 1})"
    assert in_flight.by_replica["a"] == 0


def test_releasing_twice_releases_once() -> None:
    """Report 5: −1 after churn."""
    in_flight = InFlight()
    first, second = in_flight.hold("a"), in_flight.hold("a")
    first.release()
    first.release()
    assert in_flight.by_replica["a"] == 1
    second.release()
    second.release()
    assert in_flight.by_replica["a"] == 0


def test_an_error_releases_too() -> None:
    """Report 5: not decremented on error."""
    in_flight = InFlight()
    with pytest.raises(RuntimeError), in_flight.hold("a"):
        raise RuntimeError
    assert repr(in_flight) == "InFlight(0: {})"


def test_replicas_that_have_left_leave_nothing_behind() -> None:
    """Report 3: leaked dicts."""
    in_flight = InFlight()
    for number in range(1000):
        in_flight.hold(f"replica-{number}").release()
        assert in_flight.by_replica[f"replica-{number}"] == 0  # Looking adds nothing either.
    assert repr(in_flight) == "InFlight(0: {})"


# Headroom


def of(max_num_seqs: int | None, total_blocks: int | None = None) -> Snapshot:
    return snapshot("http://a:8000", max_num_seqs=max_num_seqs, total_blocks=total_blocks)


@pytest.mark.parametrize(
    ("size", "prompt_tokens", "share"),
    [
        (None, 1_000, 1 / NOMINAL_SEQS),  # Never heard.
        (of(16), 1_000, 1 / 16),
        (of(None), 1_000, 1 / NOMINAL_SEQS),
        (of(0), 1_000, 1 / NOMINAL_SEQS),
        (of(16, total_blocks=1_000), 1_000, 1 / 16),  # 16 tokens a block: 16,000 in the pool.
        (of(16, total_blocks=1_000), 2_000, 1 / 8),
        (of(16, total_blocks=1_000), 10**9, MOST_BY_PROMPT),  # A guess, after all.
        (of(16, total_blocks=0), 4_000, 1 / 16),
        (of(1), 0, 1.0),
    ],
)
def test_a_request_takes_its_part_of_what_is_scarcer(
    size: Snapshot | None, prompt_tokens: int, share: float
) -> None:
    assert share_of(size, prompt_tokens) == share


def test_headroom_is_taken_and_given_back_with_the_count() -> None:
    in_flight = InFlight()
    with in_flight.hold("a", 0.25), in_flight.hold("a", 0.5):
        assert in_flight.taken == {"a": 0.75}
    assert in_flight.taken == {}


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0.0, 1.0), st.integers(0, 20), st.booleans()),
        max_size=60,
    )
)
def test_whatever_came_and_went_the_counts_are_those_of_the_rest(
    happened: list[tuple[str, float, int, bool]],
) -> None:
    """Reports 3 and 5: nothing leaks, and nothing falls below none."""
    in_flight = InFlight()
    held: list[tuple[str, float, Hold]] = []
    for key, share, which, ends in happened:
        if ends and held:
            hold = held.pop(which % len(held))[2]
            hold.release()
            hold.release()
        else:
            held.append((key, share, in_flight.hold(key, share)))
        counts = Counter(key for key, _, _ in held)
        assert in_flight.by_replica == counts
        assert in_flight.taken.keys() == counts.keys()
        for key in counts:
            shares = sum(share for at, share, _ in held if at == key)
            assert in_flight.taken[key] == pytest.approx(shares, abs=1e-12)
    for _, _, hold in held:
        hold.release()
    assert (in_flight.by_replica, in_flight.taken) == ({}, {})


@pytest.mark.parametrize("count", [1, 600, 5_000])
def test_who_looks_now_and_then_can_tell_whose_counts_have_changed_or_that_it_lost_track(
    count: int,
) -> None:
    in_flight = InFlight()
    in_flight.hold("before")
    seen = in_flight.changed
    for number in range(count):
        in_flight.hold(f"r{number}").release()
    new = in_flight.changed - seen
    every = [f"r{number // 2}" for number in range(2 * count)]
    assert new == 2 * count
    assert len(in_flight.changes) == min(1 + new, 1_024)
    assert [*in_flight.changes][-new:] == every[-1_024:]


# What was taken at a moment


def noted(*moments: float) -> InFlight:
    """A request to `a` begins after each note."""
    in_flight = InFlight()
    for now_s in moments:
        in_flight.note(now_s)
        in_flight.hold("a", 0.125)
    return in_flight


@pytest.mark.parametrize(
    ("then_s", "taken"),
    [
        (0.5, {}),  # Before all notes: by the first there is.
        (1.0, {}),
        (1.9, {}),
        (2.0, {"a": 0.125}),
        (2.9, {"a": 0.125}),
        (9.0, {"a": 0.25}),
    ],
)
def test_what_was_taken_then_is_told_by_the_last_note_before(
    then_s: float, taken: dict[str, float]
) -> None:
    assert noted(1.0, 2.0, 3.0).taken_at(then_s) == taken


def test_nothing_noted_is_nothing_taken() -> None:
    assert InFlight().taken_at(5.0) == {}


def test_notes_are_few_however_often_snapshots_come() -> None:
    in_flight = noted(1.0, 1.05, 1.11)
    assert in_flight.taken_at(1.1) == {}
    assert in_flight.taken_at(1.2) == {"a": 0.25}
    for number in range(10_000):
        in_flight.note(2.0 + number)
    assert in_flight.taken_at(0.0) == {"a": 0.375}  # The first ones are forgotten.


def test_a_clock_set_back_begins_the_notes_anew() -> None:
    in_flight = noted(5.0, 6.0)
    in_flight.note(2.0)
    assert in_flight.taken_at(2.0) == in_flight.taken_at(9.0) == {"a": 0.25}


# What is to be computed


def test_what_is_to_be_computed_is_pending_until_the_answer_begins_or_ends() -> None:
    load = InFlight()
    first, second = load.hold("a", tokens=100), load.hold("a", tokens=50)
    assert (load.pending, load.unbegun) == ({"a": 150}, {"a": 2})
    first.begun()
    first.begun()
    assert (load.pending, load.unbegun) == ({"a": 50}, {"a": 1})
    second.release()
    assert (load.pending, load.unbegun) == ({}, {})
    first.release()
    assert load.by_replica == {}


def test_where_nobody_tells_it_is_computed_when_it_was_expected_to_be() -> None:
    load = InFlight()
    late, soon, gone = (load.hold("a", tokens=tokens) for tokens in (100, 20, 3))
    load.begins(late, 12.0)
    load.begins(soon, 11.0)
    load.begins(gone, 11.5)
    load.begin_due(10.9)
    assert load.pending == {"a": 123}
    load.begin_due(11.0)
    assert load.pending == {"a": 103}
    gone.release()
    load.begin_due(11.6)
    load.begin_due(0.0)
    assert load.pending == {"a": 100}
    load.begin_due(1e9)
    assert (load.pending, load.by_replica) == ({}, {"a": 2})
    soon.release()
    late.release()
    load.begin_due(2e9)
    assert (load.pending, load.unbegun, load.by_replica) == ({}, {}, {})


def test_answers_that_end_before_anyone_expected_are_not_kept() -> None:
    """A replica that refuses everything at once, slow as it was thought to be."""
    in_flight, most = InFlight(), 0
    for number in range(5_000):
        hold = in_flight.hold("a", tokens=100)
        in_flight.begins(hold, 1e6 + number)
        hold.release()
        most = max(most, in_flight.waited_for)
    assert most <= 64
    assert in_flight.pending == {}


def test_those_that_have_not_ended_are_all_kept_and_begin_in_their_time() -> None:
    in_flight = InFlight()
    holds = [in_flight.hold("a", tokens=1) for _ in range(3_000)]
    for number, hold in enumerate(holds):
        in_flight.begins(hold, 3_000.0 - number)
    for hold in holds[:2_000]:
        hold.release()
    for _ in range(2_000):
        ended = in_flight.hold("b", tokens=1)
        in_flight.begins(ended, 9_999.0)
        ended.release()
    assert in_flight.waited_for < 3_000
    in_flight.begins(in_flight.hold("b", tokens=1), 9_999.0)
    assert in_flight.pending == {"a": 1_000, "b": 1}
    in_flight.begin_due(500.0)
    assert in_flight.pending == {"a": 500, "b": 1}
    in_flight.begin_due(9_999.0)
    assert (in_flight.pending, in_flight.waited_for) == ({}, 0)
