"""The circuit breaker of one replica: each rule at its edges."""

from collections.abc import Mapping
from itertools import product
from math import inf

import pytest

from breakers import (
    ANSWERED,
    ERRED,
    FAILED,
    FULL,
    IN_EACH,
    POLICY,
    PROBE_ANSWERED,
    PROBE_FAILED,
    before,
    ejected_at,
    returning_at,
    went,
)
from ullage_router.core.breaker import (
    CLOSED,
    LEAST_SHARE,
    TABLE,
    Breaker,
    BreakerPolicy,
    Condition,
    Event,
    after,
    changes_s,
    out,
    probe_due,
    settled,
    weight_share,
)

# The table


def test_every_event_has_its_row_in_every_condition() -> None:
    assert set(TABLE) == set(product(Condition, Event))


C, S, E, R = Condition
EXPECTED: Mapping[Condition, Mapping[Event, Condition]] = {
    C: {FAILED: S, ERRED: C, FULL: S, ANSWERED: C, PROBE_ANSWERED: C, PROBE_FAILED: C},
    S: {FAILED: S, ERRED: S, FULL: S, ANSWERED: S, PROBE_ANSWERED: S, PROBE_FAILED: S},
    E: {FAILED: E, ERRED: E, FULL: E, ANSWERED: E, PROBE_ANSWERED: R, PROBE_FAILED: E},
    R: {FAILED: E, ERRED: R, FULL: R, ANSWERED: R, PROBE_ANSWERED: R, PROBE_FAILED: R},
}


def test_a_500_costs_no_moment_but_a_row_of_them_ejects() -> None:
    """One may be the request's own fault; a replica that errs at once would draw every request."""
    once = went((ERRED, 100.0))
    assert (once.failures, out(once, 100.0)) == (1, False)
    assert went((ERRED, 100.0), (ANSWERED, 100.1)) is CLOSED
    row = went((ERRED, 100.0), (FAILED, 100.1), (ERRED, 102.0))
    assert row.condition is Condition.EJECTED


def test_one_500_does_not_end_a_return_but_a_row_of_them_does() -> None:
    """Else one poison request every few seconds holds half the fleet ejected."""
    good = ((ERRED, 101.0), (ERRED, 101.1), (ANSWERED, 101.2), (ERRED, 101.3))
    back = returning_at(100.0)
    for event, now_s in good:
        back = after(back, event, now_s, POLICY)
    assert (back.condition, back.failures) == (Condition.RETURNING, 1)
    back = after(back, ERRED, 101.4, POLICY)
    assert (back.condition, back.failures) == (Condition.RETURNING, POLICY.eject_after - 1)
    assert after(back, ERRED, 101.5, POLICY).condition is Condition.EJECTED


def test_hundreds_that_come_back_without_room_at_once_are_one_blow() -> None:
    """Each would have every replica judged anew."""
    struck = went((FULL, 100.0))
    assert after(struck, FULL, 100.2, POLICY) is struck
    assert after(struck, FULL, 100.25, POLICY).until_s == 101.25


@pytest.mark.parametrize(("condition", "event"), [*product(Condition, Event)])
def test_an_event_leads_where_the_table_says(condition: Condition, event: Event) -> None:
    assert IN_EACH[condition].condition is condition
    led = after(IN_EACH[condition], event, 100.5, POLICY)
    assert led.condition is EXPECTED[condition][event]


@pytest.mark.parametrize(
    ("condition", "event"),
    [
        (C, ANSWERED),
        (R, ANSWERED),
        (E, ANSWERED),
        (E, FULL),
        *product((C, S, R), (PROBE_ANSWERED, PROBE_FAILED)),
    ],
)
def test_what_changes_nothing_gives_the_very_same_value(condition: Condition, event: Event) -> None:
    assert after(IN_EACH[condition], event, 100.5, POLICY) is IN_EACH[condition]


def test_a_healthy_replica_is_in_with_all_its_weight() -> None:
    assert not out(CLOSED, 0.0)
    assert not probe_due(CLOSED, 0.0)
    assert weight_share(CLOSED, 0.0, POLICY) == 1.0
    assert changes_s(CLOSED, 0.0) == inf


# Struck


@pytest.mark.parametrize("event", [FAILED, FULL])
def test_one_failure_or_no_room_is_out_for_a_moment(event: Event) -> None:
    breaker = went((event, 100.0))
    assert out(breaker, 100.0)
    assert out(breaker, before(101.0))
    assert not out(breaker, 101.0)
    assert not probe_due(breaker, 101.0)
    assert weight_share(breaker, 101.0, POLICY) == 1.0


def test_a_moment_of_no_length_leaves_nobody_out() -> None:
    assert not out(went((FAILED, 100.0), policy=BreakerPolicy(set_aside_s=0.0)), 100.0)


def test_an_answer_does_not_cut_the_moment_short() -> None:
    """A full replica finishes requests all the time: each would let the next one in too early."""
    breaker = went((FULL, 100.0), (ANSWERED, 100.1))
    assert out(breaker, before(101.0))
    assert after(breaker, ANSWERED, 101.0, POLICY) is CLOSED


def test_a_later_blow_begins_the_moment_again() -> None:
    breaker = went((FULL, 100.0), (FULL, 100.9))
    assert out(breaker, before(101.9))
    assert not out(breaker, 101.9)


# Ejected


@pytest.mark.parametrize("eject_after", [1, 2, 3, 10])
def test_failures_in_a_row_eject(eject_after: int) -> None:
    policy = BreakerPolicy(eject_after=eject_after)
    almost = went(*[(FAILED, 100.0)] * (eject_after - 1), policy=policy)
    assert almost.condition is (Condition.STRUCK if eject_after > 1 else Condition.CLOSED)
    breaker = after(almost, FAILED, 100.0, policy)
    assert breaker.condition is Condition.EJECTED
    assert (breaker.failures, breaker.ejections) == (eject_after, 1)


def test_failures_in_a_row_may_be_far_apart() -> None:
    """A replica that is asked once a second, because it is struck each time, is ejected too."""
    breaker = went((FAILED, 100.0), (FAILED, 200.0), (FAILED, 300.0))
    assert breaker.condition is Condition.EJECTED


@pytest.mark.parametrize("at_s", [100.5, 150.0])
def test_an_answer_ends_the_run_of_failures(at_s: float) -> None:
    failing = [(FAILED, 100.0), (FAILED, 100.0)]
    breaker = went(*failing, (ANSWERED, at_s), (FAILED, 200.0), (FAILED, 200.0))
    assert (breaker.condition, breaker.failures) == (Condition.STRUCK, 2)


def test_no_room_is_no_failure() -> None:
    """Report 16: an answer that is no failure trips the breaker."""
    assert went(*[(FULL, 100.0)] * 1000).condition is Condition.STRUCK


def test_no_room_does_not_end_a_run_of_failures() -> None:
    breaker = went((FAILED, 100.0), (FULL, 101.0), (FAILED, 102.0), (FULL, 103.0), (FAILED, 104.0))
    assert breaker.condition is Condition.EJECTED


def test_an_ejected_one_is_out_until_a_probe_has_answered() -> None:
    breaker = ejected_at(100.0)
    for now_s in (100.0, 105.0, 1e9):
        assert out(breaker, now_s)
    assert not out(after(breaker, PROBE_ANSWERED, 105.0, POLICY), 105.0)


def test_a_probe_is_due_when_its_time_is_up() -> None:
    breaker = ejected_at(100.0)
    assert not probe_due(breaker, before(105.0))
    assert probe_due(breaker, 105.0)


def test_a_probe_that_failed_is_tried_again_no_later() -> None:
    """A server may take minutes to start; once it is there it is back within seconds."""
    breaker = ejected_at(100.0)
    for minute in range(1, 20):
        breaker = after(breaker, PROBE_FAILED, 60.0 * minute, POLICY)
        assert not probe_due(breaker, before(60.0 * minute + 5.0))
        assert probe_due(breaker, 60.0 * minute + 5.0)
    assert breaker.ejections == 1


def test_what_fails_after_the_ejection_does_not_make_it_longer() -> None:
    """A dead replica fails everything that it had in flight, at once or a minute later."""
    breaker = went(*[(FAILED, 100.0)] * 50, *[(FAILED, 104.0)] * 50)
    assert breaker.ejections == 1
    assert probe_due(breaker, 105.0)


# Returning


def returns(times: int) -> Breaker:
    """Failed at once, after each of so many returns; the last time at 1,000 s."""
    breaker = ejected_at(1000.0)
    for _ in range(times):
        breaker = after(breaker, PROBE_ANSWERED, 1000.0, POLICY)
        breaker = after(breaker, FAILED, 1000.0, POLICY)
    return breaker


@pytest.mark.parametrize(
    ("again", "lasts_s"),
    [(0, 5.0), (1, 10.0), (2, 20.0), (3, 40.0), (4, 60.0), (5, 60.0), (2000, 60.0)],
)
def test_each_ejection_in_a_row_is_twice_as_long_up_to_a_minute(again: int, lasts_s: float) -> None:
    breaker = returns(again)
    assert breaker.ejections == again + 1
    assert not probe_due(breaker, before(1000.0 + lasts_s))
    assert probe_due(breaker, 1000.0 + lasts_s)


@pytest.mark.parametrize(
    ("after_s", "share"), [(0.0, 0.1), (1.0, 0.19), (5.0, 0.55), (9.0, 0.91), (10.0, 1.0)]
)
def test_the_share_grows_in_a_straight_line(after_s: float, share: float) -> None:
    assert weight_share(returning_at(100.0), 100.0 + after_s, POLICY) == pytest.approx(share)


def test_a_share_is_a_tenth_at_least_where_the_operator_has_made_returns_shorter() -> None:
    assert weight_share(returning_at(100.0), 100.0, BreakerPolicy(return_s=1.0)) == LEAST_SHARE


def test_one_failure_while_it_returns_ejects_at_once() -> None:
    breaker = after(returning_at(100.0), FAILED, before(110.0), POLICY)
    assert (breaker.condition, breaker.ejections) == (Condition.EJECTED, 2)


def test_a_whole_return_without_failure_forgets_everything() -> None:
    breaker = returning_at(100.0)
    assert after(breaker, ANSWERED, before(110.0), POLICY) is breaker
    assert after(breaker, ANSWERED, 110.0, POLICY) is CLOSED
    again = after(breaker, FAILED, 110.0, POLICY)
    assert (again.condition, again.failures, again.ejections) == (Condition.STRUCK, 1, 0)


def test_no_room_while_it_returns_costs_the_moment_and_nothing_of_the_return() -> None:
    breaker = after(returning_at(100.0), FULL, 103.0, POLICY)
    assert out(breaker, before(104.0))
    assert not out(breaker, 104.0)
    assert weight_share(breaker, 105.0, POLICY) == pytest.approx(0.55)
    assert settled(breaker, 110.0) is CLOSED


def test_no_room_at_the_end_of_the_return_costs_the_whole_moment() -> None:
    breaker = after(returning_at(100.0), FULL, 109.5, POLICY)
    assert after(breaker, ANSWERED, before(110.5), POLICY) is breaker
    assert out(breaker, before(110.5))
    assert not out(breaker, 110.5)
    assert settled(breaker, 110.5) is CLOSED
