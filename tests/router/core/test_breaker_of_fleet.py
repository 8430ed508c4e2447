"""The breakers of a whole fleet; statuses; clocks; and what holds after any events on any clock."""

from itertools import accumulate
from math import inf
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakers import (
    ANSWERED,
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
    LONGEST_S,
    STEP_S,
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


@pytest.mark.parametrize("condition", [Condition.STRUCK, Condition.RETURNING])
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
