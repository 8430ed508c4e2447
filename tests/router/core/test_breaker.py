"""The circuit breaker: each rule at its edges, then what holds after any events on any clock."""

from collections.abc import Mapping
from itertools import accumulate, product
from math import inf, nextafter
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage_router.core.breaker import (
    CLOSED,
    LEAST_SHARE,
    LONGEST_S,
    STEP_S,
    TABLE,
    Breaker,
    BreakerPolicy,
    Condition,
    Event,
    after,
    changes_s,
    ejected,
    out,
    own_failure,
    probe_due,
    settled,
    struck,
    weight_share,
)

FAILED, ERRED, FULL, ANSWERED = Event.FAILED, Event.ERRED, Event.FULL, Event.ANSWERED
PROBE_ANSWERED, PROBE_FAILED = Event.PROBE_ANSWERED, Event.PROBE_FAILED
POLICY = BreakerPolicy()


def went(*events: tuple[Event, float], policy: BreakerPolicy = POLICY) -> Breaker:
    """A healthy replica, after these events at these moments."""
    breaker = CLOSED
    for event, now_s in events:
        breaker = after(breaker, event, now_s, policy)
    return breaker


def before(now_s: float) -> float:
    """The moment just before."""
    return nextafter(now_s, -inf)


def ejected_at(now_s: float, policy: BreakerPolicy = POLICY) -> Breaker:
    return went(*[(FAILED, now_s)] * policy.eject_after, policy=policy)


def returning_at(now_s: float) -> Breaker:
    return after(ejected_at(now_s - 5.0), PROBE_ANSWERED, now_s, POLICY)


IN_EACH: Mapping[Condition, Breaker] = {
    Condition.CLOSED: CLOSED,
    Condition.STRUCK: went((FAILED, 100.0)),
    Condition.EJECTED: ejected_at(100.0),
    Condition.RETURNING: returning_at(100.0),
}
"""One breaker in each condition, as of 100 s."""


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


# The fleet


def fleet_of(bad: int, size: int) -> dict[str, Breaker]:
    """Of `size` replicas so many are ejected, one each second."""
    fleet = {f"r{n:04}": ejected_at(float(n)) for n in range(bad)}
    return fleet | {f"r{n:04}": CLOSED for n in range(bad, size)}


@pytest.mark.parametrize(
    ("share", "size", "most"),
    [
        (0.5, 0, 0),
        (0.5, 1, 0),
        (0.5, 2, 1),
        (0.5, 3, 1),
        (0.5, 8, 4),
        (0.0, 8, 0),
        (1.0, 8, 8),
        (0.29, 100, 29),  # In floats 28.999999999999996.
        (0.1, 30, 3),
    ],
)
def test_never_more_than_the_share_rounded_down(share: float, size: int, most: int) -> None:
    policy = BreakerPolicy(max_ejected_share=share)
    assert len(ejected(fleet_of(size, size), 1000.0, policy)) == most
    assert len(ejected(fleet_of(most, size), 1000.0, policy)) == most


def test_the_ejected_and_only_they_are_left_out() -> None:
    fleet = {c.value: breaker for c, breaker in IN_EACH.items()}
    assert ejected(fleet, 100.0, POLICY) == {"ejected"}


def test_those_ejected_longest_ago_are_let_in_again() -> None:
    assert ejected(fleet_of(6, 8), 100.0, POLICY) == {"r0002", "r0003", "r0004", "r0005"}


def test_one_let_in_that_fails_again_changes_places_with_another() -> None:
    """Else one that is dead would have all the traffic, for as long as all are ejected."""
    fleet = fleet_of(2, 2)
    assert ejected(fleet, 10.0, POLICY) == {"r0001"}
    fleet["r0000"] = after(fleet["r0000"], FAILED, 10.0, POLICY)
    assert ejected(fleet, 10.0, POLICY) == {"r0000"}
    fleet["r0001"] = after(fleet["r0001"], PROBE_FAILED, 11.0, POLICY)
    assert ejected(fleet, 11.0, POLICY) == {"r0001"}


def test_one_let_in_has_the_least_share() -> None:
    assert weight_share(ejected_at(100.0), 100.0, POLICY) == LEAST_SHARE


def test_the_struck_do_not_use_up_the_share() -> None:
    fleet = fleet_of(2, 4) | {"r0002": went((FAILED, 50.0)), "r0003": went((FULL, 50.0))}
    assert ejected(fleet, 50.0, POLICY) == {"r0000", "r0001"}


def test_ejected_before_the_clock_was_set_back_is_longest_ago() -> None:
    fleet = {"a": ejected_at(1000.0), "b": ejected_at(3.0)}
    assert ejected(fleet, 4.0, POLICY) == {"b"}


# Statuses


def test_only_a_5xx_that_is_not_about_the_request_nor_about_room_is_its_own_failure() -> None:
    """Report 16: a 4xx trips the breaker."""
    failures = [status for status in range(100, 1000) if own_failure(status)]
    assert failures == [500, 502, 504, *range(506, 600)]


# What it is for


def lost(seconds: int, *, broken: BreakerPolicy | None) -> int:
    """Of 100 requests a second to 8 replicas, how many a replica draws that fails at once.

    It looks twice as empty as the others, and answers probes.
    """
    rng, drawn, breakers = Random(5), 0, dict.fromkeys("abcdefgh", CLOSED)
    for now_s in (n / 100 for n in range(100 * seconds)):
        left_out = ejected(breakers, now_s, broken or POLICY)
        inside = {k: b for k, b in breakers.items() if k not in left_out and not struck(b, now_s)}
        weights = [
            (1.0 if key == "a" else 0.25) * weight_share(breaker, now_s, broken or POLICY)
            for key, breaker in inside.items()
        ]
        (key,) = rng.choices(list(inside), cum_weights=list(accumulate(weights)))
        drawn += key == "a"
        if broken:
            event = FAILED if key == "a" else ANSWERED
            breakers[key] = after(breakers[key], event, now_s, broken)
            if probe_due(breakers["a"], now_s):
                breakers["a"] = after(breakers["a"], PROBE_ANSWERED, now_s, broken)
    return drawn


def test_a_replica_that_fails_at_once_is_no_black_hole() -> None:
    """Report 16's other side: what fails fast looks empty."""
    assert lost(60, broken=None) > 2000
    # Three to be ejected, and one each time it returns: after 5, 10, 20 s.
    assert lost(60, broken=POLICY) == 3 + 3


# The clock


@pytest.mark.parametrize("condition", [S, R])
def test_a_clock_set_back_ends_the_moment_and_the_return(condition: Condition) -> None:
    breaker, back_s = after(IN_EACH[condition], FULL, 100.0, POLICY), before(100.0)
    assert not out(breaker, back_s)
    assert settled(breaker, back_s).condition is Condition.CLOSED
    assert weight_share(breaker, back_s, POLICY) == 1.0
    assert changes_s(breaker, back_s) == 100.0


def test_a_clock_set_back_has_the_ejected_probed_at_once() -> None:
    assert probe_due(ejected_at(100.0), before(100.0))


def test_what_fails_after_the_clock_was_set_back_is_probed_at_once_too() -> None:
    assert probe_due(after(ejected_at(1e6), FAILED, 0.0, POLICY), 0.0)


def test_time_changes_the_end_of_a_moment_and_the_steps_and_the_end_of_a_return() -> None:
    assert changes_s(went((FULL, 100.0)), 100.0) == 101.0
    assert changes_s(went((FULL, 100.0)), 101.0) == inf
    assert changes_s(ejected_at(100.0), 101.0) == inf
    returning = after(returning_at(100.0), FULL, 103.0, POLICY)
    seen = [changes_s(returning, at_s) for at_s in (103.5, 104.0, 109.75, 109.875, 110.0)]
    assert seen == [104.0, 104.25, 110.0, 110.0, inf]


# Nonsense


@pytest.mark.parametrize(
    "key",
    ["set_aside_s", "eject_after", "eject_s", "return_s", "max_ejected_share"],
)
@pytest.mark.parametrize("value", [-1, 100_000.5, float("nan")])
def test_nonsense_is_refused(key: str, value: float) -> None:
    with pytest.raises(msgspec.ValidationError, match=key):
        msgspec.convert({key: value}, BreakerPolicy)


# After any events, on any clock

SOME = settings(max_examples=50)
CLOCK = st.one_of(
    st.floats(-1e9, 1e9),
    st.floats(0.0, 100.0),
    st.sampled_from([0.0, 1.0, 5.0, 10.0, 15.0, 60.0]),
)
EVENTS = st.lists(st.tuples(st.sampled_from(Event), CLOCK), max_size=20)
POLICIES = st.builds(
    BreakerPolicy,
    set_aside_s=st.floats(0.0, 60.0),
    eject_after=st.integers(1, 5),
    eject_s=st.floats(0.001, 60.0),
    return_s=st.floats(0.001, 3600.0),
    max_ejected_share=st.floats(0.0, 1.0),
)


@SOME
@given(EVENTS, CLOCK, POLICIES)
def test_nothing_raises_and_a_share_is_a_share(
    events: list[tuple[Event, float]], now_s: float, policy: BreakerPolicy
) -> None:
    breaker = went(*events, policy=policy)
    assert LEAST_SHARE <= weight_share(breaker, now_s, policy) <= 1.0
    assert changes_s(breaker, now_s) > now_s
    assert not (struck(breaker, now_s) and probe_due(breaker, now_s))


@SOME
@given(EVENTS, CLOCK, POLICIES)
def test_nobody_is_out_for_more_than_a_minute_and_a_probe(
    events: list[tuple[Event, float]], now_s: float, policy: BreakerPolicy
) -> None:
    """Whatever the clock did before `now_s`."""
    breaker = went(*events, policy=policy)
    moments = (now_s, now_s + LONGEST_S + 1e-6)
    assert any(not out(breaker, at_s) or probe_due(breaker, at_s) for at_s in moments)


@SOME
@given(EVENTS, CLOCK, POLICIES)
def test_a_clock_set_back_keeps_nobody_out(
    events: list[tuple[Event, float]], now_s: float, policy: BreakerPolicy
) -> None:
    breaker = went(*events, policy=policy)
    back_s = before(breaker.since_s)
    assert probe_due(breaker, back_s) == out(breaker, back_s)


@SOME
@given(st.lists(EVENTS, max_size=8), CLOCK, POLICIES)
def test_never_more_than_the_share_is_ejected(
    fleet: list[list[tuple[Event, float]]], now_s: float, policy: BreakerPolicy
) -> None:
    breakers = {str(n): went(*events, policy=policy) for n, events in enumerate(fleet)}
    left_out = ejected(breakers, now_s, policy)
    assert len(left_out) <= policy.max_ejected_share * len(breakers) + 1e-6
    assert all(breakers[key].condition is Condition.EJECTED for key in left_out)


@SOME
@given(EVENTS, CLOCK)
def test_enough_answers_lead_back_to_the_healthy_value(
    events: list[tuple[Event, float]], begin_s: float
) -> None:
    breaker = went(*events)
    ticks = int((LONGEST_S + POLICY.return_s) / STEP_S) + 2
    for now_s in (begin_s + STEP_S * tick for tick in range(ticks)):
        event = PROBE_ANSWERED if probe_due(breaker, now_s) else ANSWERED
        breaker = after(breaker, event, now_s, POLICY)
    assert breaker is CLOSED


@SOME
@given(EVENTS, CLOCK)
def test_no_room_counts_for_nothing_whenever_it_is_said(
    events: list[tuple[Event, float]], now_s: float
) -> None:
    breaker = settled(went(*events), now_s)
    full = after(breaker, FULL, now_s, POLICY)
    assert (full.failures, full.ejections) == (breaker.failures, breaker.ejections)
    was_ejected = breaker.condition is Condition.EJECTED
    assert (full.condition is Condition.EJECTED) == was_ejected


@SOME
@given(EVENTS, st.floats(-1e4, 1e4), st.floats(0.0, 1.0, exclude_max=True), POLICIES)
def test_before_it_changes_nothing_changes_but_the_share_by_a_step(
    events: list[tuple[Event, float]], now_s: float, part: float, policy: BreakerPolicy
) -> None:
    breaker = went(*events, policy=policy)
    until_s = min(changes_s(breaker, now_s), now_s + 1e5)
    then_s = min(now_s + part * (until_s - now_s), before(until_s))
    assert out(breaker, then_s) == out(breaker, now_s)
    assert settled(breaker, then_s).condition is settled(breaker, now_s).condition
    if not out(breaker, now_s):
        step = (1.0 - LEAST_SHARE) * STEP_S / policy.return_s
        grown = weight_share(breaker, then_s, policy) - weight_share(breaker, now_s, policy)
        assert -1e-9 <= grown <= step + 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_a_fleet_that_fails_as_a_whole_is_never_switched_off(seed: int) -> None:
    rng, breakers = Random(seed), dict.fromkeys("abcde", CLOSED)
    for tick in range(300):
        now_s = tick * 0.1
        key = rng.choice("abcde")
        event = rng.choice([FAILED, FAILED, PROBE_FAILED])
        breakers[key] = after(breakers[key], event, now_s, POLICY)
        assert len(breakers.keys() - ejected(breakers, now_s, POLICY)) >= 3
