"""How long a line-up holds, and that one kept up is the one made anew."""

from dataclasses import replace
from math import inf, nextafter
from types import MappingProxyType

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineups import BREAKER, RULES, SHARE, A, B, heard, keys, lined_up, with_events
from snapshots import fleet_with, snapshot
from ullage_router.core.breaker import (
    STEP_S,
    Event,
)
from ullage_router.core.fleet import (
    Fleet,
    fleet_of,
)
from ullage_router.core.inflight import Hold, InFlight
from ullage_router.core.lineup import Basis, line_up, seed_of
from ullage_router.core.odds import Odds
from ullage_router.core.policy import Policy, Way
from ullage_router.core.rules import Rules
from ullage_shared.snapshot import RequestClass, State

# How long it holds


def test_a_line_up_holds_until_time_changes_it() -> None:
    fleet = fleet_with({A: 0.9}, now_s=100.0)
    candidates = lined_up(fleet, 101.0)
    assert candidates.holds(fleet, 101.0)
    assert candidates.holds(fleet, nextafter(103.0, 0.0))
    assert not candidates.holds(fleet, 103.0)
    assert not candidates.holds(fleet, 100.9)  # A clock set back.


def test_a_line_up_of_those_who_were_never_heard_holds_forever() -> None:
    assert lined_up(fleet_of([A])).until_s == inf


def test_a_line_up_made_on_a_clock_set_back_ends_where_an_ejection_counts_again() -> None:
    """Of two only one may be ejected: the one that failed last, as far as the clock has come."""
    fleet = with_events(fleet_with({A: 0.9, B: 0.9}), A, *[(Event.FAILED, 0.0)] * 3)
    fleet = with_events(fleet, B, *[(Event.FAILED, 1.0)] * 3)
    made = lined_up(fleet, 0.5)
    assert (keys(made), keys(lined_up(fleet, 1.0))) == ({B}, {A})
    assert made.until_s == 1.0


MOMENTS = st.floats(0.0, 100.0)
EVENTS = st.lists(st.tuples(st.sampled_from(Event), MOMENTS), max_size=5)
Row = tuple[float | None, State, float, float, list[tuple[Event, float]], bool]
"""Score, state, age, when heard, what it did, and was it heard at all."""
REPLICAS = st.tuples(
    st.one_of(st.none(), st.floats(0.0, 1.0)),
    st.sampled_from(State),
    st.floats(0.0, 5.0),
    MOMENTS,
    EVENTS,
    st.booleans(),
)


def fleet_from(rows: list[Row], first: int = 0) -> Fleet:
    fleet = fleet_of(f"http://r{i}:8000" for i in range(first, first + len(rows)))
    for index, (score, state, age_s, heard_s, events, is_heard) in enumerate(rows, first):
        url = f"http://r{index}:8000"
        if is_heard:
            said = snapshot(url, score, state=state, age_s=age_s)
            fleet = heard(said, fleet=fleet, now_s=heard_s)
        fleet = with_events(fleet, url, *events)
    return fleet


@settings(deadline=None, max_examples=100)
@given(st.lists(REPLICAS, max_size=5), MOMENTS, st.floats(0.0, 1.0))
def test_while_a_line_up_holds_another_made_anew_would_be_the_same(
    rows: list[Row],
    made_s: float,
    part: float,
) -> None:
    fleet = fleet_from(
        [(*row[:4], [(e, min(t, made_s)) for e, t in row[4]], row[5]) for row in rows]
    )
    rules = Rules(choose=Policy(Way.WEIGHTED, stale_after_s=3.0, forget_after_s=20.0))
    made = lined_up(fleet, made_s, rules=rules)
    later_s = made_s + part * (min(made.until_s, 200.0) - made_s)
    if not made.holds(fleet, later_s):
        return
    anew = lined_up(fleet, later_s, rules=rules)
    assert (made.basis, keys(made), made.busy) == (anew.basis, keys(anew), anew.busy)
    step = STEP_S / rules.breaker.return_s
    for one, other in zip(made.seats, anew.seats, strict=True):
        alike = msgspec.structs.replace(one, share=other.share)
        assert alike == other
        assert one.share == pytest.approx(other.share, abs=step)


@settings(deadline=None, max_examples=100)
@given(st.lists(REPLICAS, max_size=5), MOMENTS, MOMENTS, st.integers(0, 4), REPLICAS)
def test_judging_only_what_has_changed_leads_to_the_same(
    rows: list[Row], before_s: float, now_s: float, changed: int, to: Row
) -> None:
    fleet = fleet_from(rows)
    before = lined_up(fleet, before_s)
    if changed < len(rows):
        rest = dict(fleet.replicas)
        rest |= {
            f"http://r{changed}:8000": [*fleet_from([*rows[:changed], to]).replicas.values()][-1]
        }
        fleet = replace(fleet, replicas=MappingProxyType(rest))
    known = line_up(fleet, None, RequestClass.MIXED, now_s, RULES, (), before)
    anew = lined_up(fleet, now_s)
    assert (known.basis, known.busy, keys(known)) == (anew.basis, anew.busy, keys(anew))
    for one, other in zip(known.seats, anew.seats, strict=True):
        assert one.replica is other.replica
        assert one.base == other.base
        assert one.share == pytest.approx(other.share, abs=STEP_S / BREAKER.return_s)


@settings(deadline=None, max_examples=100)
@given(st.lists(REPLICAS, max_size=5), MOMENTS)
def test_a_line_up_sits_in_the_order_of_its_seeds_and_knows_who_sits_where(
    rows: list[Row], now_s: float
) -> None:
    candidates = lined_up(fleet_from(rows), now_s)
    seats = candidates.seats
    assert [seat.seed for seat in seats] == sorted(seed_of(seat.replica.key) for seat in seats)
    assert [candidates.at[seat.replica.key] for seat in seats] == [*range(len(candidates.at))]
    assert bool(seats) == (candidates.basis in (Basis.SCORE, Basis.OWN_COUNTS))


@settings(deadline=None, max_examples=100)
@given(
    st.lists(REPLICAS, min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans()), max_size=40),
    st.integers(1, 2_000),
)
def test_odds_that_are_kept_up_are_those_made_anew(
    rows: list[Row], sent: list[tuple[int, bool, bool]], sent_at_once: int
) -> None:
    """Requests come and go, to candidates and others; now and then someone looks."""
    load, candidates = InFlight(), lined_up(fleet_from(rows), 50.0)
    odds = Odds(candidates, load)
    holds: list[Hold] = []
    for number, (index, ends, look) in enumerate(sent):
        if ends and holds:
            holds.pop(index % len(holds)).release()
        else:
            holds.append(load.hold(f"http://r{index}:8000", SHARE))
        if number == len(sent) // 2:
            for _ in range(sent_at_once):
                load.hold("http://r0:8000").release()
        if look:
            odds.catch_up()
            anew = Odds(candidates, load)
            assert odds.seats == anew.seats
            assert (odds.scores, odds.weights) == (anew.scores, anew.weights)
            assert odds.full == anew.full
