"""Who may be given a request: staleness, own dispatches, breakers, each at its edges.

Judging by state and score: see `test_decide`.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, inf, nextafter, sqrt
from random import Random
from types import MappingProxyType

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mission import AS_ASKED
from snapshots import document, fleet_with, snapshot
from ullage_router.core.affinity import Memory
from ullage_router.core.breaker import (
    LEAST_SHARE,
    STEP_S,
    BreakerPolicy,
    Event,
    after,
)
from ullage_router.core.decide import Decision, Need, Why, decide
from ullage_router.core.fleet import (
    SHOWN_AFTER_S,
    Fleet,
    fleet_of,
    hear,
    vouch,
    with_breaker,
)
from ullage_router.core.inflight import NOMINAL_SEQS, Hold, InFlight, share_of
from ullage_router.core.lineup import Basis, LineUp, exponent_for, line_up, seed_of
from ullage_router.core.odds import Odds
from ullage_router.core.policy import Policy, Way
from ullage_router.core.rules import Rules
from ullage_shared.snapshot import RequestClass, Scores, Snapshot, State

A, B, C, D = (f"http://{name}:8000" for name in "abcd")
SIDECAR = "http://sidecar:9400"
RULES = AS_ASKED
SEQS = 16
"""Of the replicas that `snapshot` makes: one request takes a sixteenth."""
SHARE = 1 / SEQS


def lined_up(
    fleet: Fleet,
    now_s: float = 0.0,
    *,
    rules: Rules = RULES,
    size: RequestClass = RequestClass.MIXED,
    tried: tuple[str, ...] = (),
) -> LineUp:
    return line_up(fleet, None, size, now_s, rules, tried)


def keys(candidates: LineUp) -> set[str]:
    return {seat.replica.key for seat in candidates.seats}


def base_of(candidates: LineUp, key: str) -> float:
    return candidates.seats[candidates.at[key]].base


def by_now(candidates: LineUp, load: InFlight) -> Mapping[str, float]:
    """What each is worth by now."""
    odds = Odds(candidates, load)
    worth = zip(odds.seats, odds.scores, strict=True)
    return {seat.replica.key: score for seat, score in worth} | odds.full


def decided(fleet: Fleet, now_s: float = 0.0, load: InFlight | None = None) -> Decision:
    return decide(fleet, Need(), now_s, Random(1), RULES, load or InFlight(), Memory(10))


def heard(
    *snapshots: Snapshot,
    fleet: Fleet | None = None,
    now_s: float = 0.0,
    load: InFlight | None = None,
) -> Fleet:
    """Each replica has a sidecar of its own."""
    fleet, load = fleet or fleet_of([]), load or InFlight()
    load.note(now_s)
    for one in snapshots:
        fleet, _ = hear(fleet, f"{one.url}/sidecar", document(one), now_s, load.taken_at)
    return fleet


# Staleness


def test_a_snapshot_past_its_time_no_longer_vouches_and_own_counts_do() -> None:
    fleet = fleet_with({A: 0.9, B: 0.0}, now_s=100.0)
    fresh, stale = lined_up(fleet, 103.0), lined_up(fleet, nextafter(103.0, inf))
    assert (fresh.basis, keys(fresh)) == (Basis.SCORE, {A})
    assert (stale.basis, keys(stale)) == (Basis.OWN_COUNTS, {A, B})


def test_a_replica_silent_for_too_long_is_left_out() -> None:
    fleet = heard(snapshot(B, 0.5), fleet=heard(snapshot(A, 0.9), now_s=0.0), now_s=59.0)
    assert keys(lined_up(fleet, 60.0)) == {A, B}
    assert keys(lined_up(fleet, nextafter(60.0, inf))) == {B}


def test_silent_for_too_long_are_let_in_where_all_are() -> None:
    fleet = fleet_with({A: 0.9, B: 0.1}, now_s=0.0)
    candidates = lined_up(fleet, 1e6)
    assert (candidates.basis, keys(candidates)) == (Basis.OWN_COUNTS, {A, B})


def test_one_that_was_never_heard_is_silent_and_not_lost() -> None:
    fleet = heard(snapshot(A, 0.9), fleet=fleet_of([B]))
    assert keys(lined_up(fleet, 1e6)) == {B}


def test_an_older_snapshot_never_beats_a_newer_one_nor_the_boot_of_before_the_one_after() -> None:
    """Report 8: old snapshot beats new."""
    fleet = heard(snapshot(A, 0.9, seq=5, boot_id="first"))
    fleet = heard(snapshot(A, 0.2, seq=4, boot_id="first"), fleet=fleet)
    assert base_of(lined_up(fleet), A) == 0.9
    fleet = heard(snapshot(A, 0.3, seq=1, boot_id="second"), fleet=fleet)
    assert base_of(lined_up(fleet), A) == 0.3
    fleet = heard(snapshot(A, 0.8, seq=6, boot_id="first"), fleet=fleet)
    assert base_of(lined_up(fleet), A) == 0.3


# The score


def test_a_request_is_judged_by_the_score_of_its_size() -> None:
    fleet = heard(snapshot(A, 0.5, scores=Scores(short=0.9, long=0.1)))
    assert base_of(lined_up(fleet, size=RequestClass.SHORT), A) == 0.9
    assert base_of(lined_up(fleet, size=RequestClass.MIXED), A) == 0.5
    assert lined_up(fleet, size=RequestClass.LONG).basis is Basis.FULL


def test_without_a_score_of_its_size_the_mixed_one_counts() -> None:
    fleet = heard(snapshot(A, 0.5, scores=Scores(long=None)))
    for size in RequestClass:
        assert base_of(lined_up(fleet, size=size), A) == 0.5


def falling(*scores: float) -> Fleet:
    fleet = fleet_of([])
    for seq, score in enumerate(scores, start=1):
        fleet = heard(snapshot(A, score, seq=seq), fleet=fleet, now_s=seq / 2)
    return fleet


def test_a_replica_that_keeps_falling_is_weighed_by_where_it_is_heading() -> None:
    load = InFlight()
    candidates = lined_up(falling(0.7, 0.6, 0.5), 1.5)
    assert Odds(candidates, load).weights == [pytest.approx(0.3**2)]
    load.hold(A, SHARE)
    assert Odds(candidates, load).weights == [pytest.approx((0.3 - SHARE) ** 2)]
    assert by_now(candidates, load)[A] == pytest.approx(0.5 - SHARE)


def test_a_falling_replica_is_weighted_down_but_not_refused_before_it_is_full() -> None:
    """Mission R3: the floor is held against the score. R6: falling, it is *weighted* down."""
    assert decided(falling(0.48, 0.38, 0.28), 1.5).why is Why.SCORE


@pytest.mark.parametrize(
    ("candidates", "exponent"),
    [
        (0, 2.0),
        (1, 2.0),
        (8, 2.0),
        (9, 1.0 + sqrt(8 / 9)),
        (32, 1.5),
        (128, 1.25),
        (800, 1.1),
    ],
)
def test_the_automatic_exponent_shrinks_as_the_cluster_grows(
    candidates: int, exponent: float
) -> None:
    assert exponent_for(Policy(Way.WEIGHTED, exponent="auto"), candidates) == pytest.approx(
        exponent, rel=1e-15
    )
    assert exponent_for(Policy(Way.WEIGHTED, exponent=3.0), candidates) == 3.0


# What this router has sent since


def test_what_was_sent_since_the_snapshot_is_taken_off() -> None:
    load = InFlight()
    load.hold(A, SHARE)  # The snapshot shows this one already.
    load.note(0.0)
    fleet = heard(snapshot(A, 0.9), now_s=1.0, load=load)
    for _ in range(3):
        load.hold(A, SHARE)
    assert by_now(lined_up(fleet, 1.0), load)[A] == pytest.approx(0.9 - 3 * SHARE)


@pytest.mark.parametrize("age_s", [0.0, 1.0])
def test_what_a_snapshot_cannot_show_yet_is_taken_off_though_it_came_later(age_s: float) -> None:
    """Report 7: a snapshot overwrites what was just dispatched. An aggregator's may be 1 s old."""
    load, sent_s = InFlight(), 10.0
    fleet = heard(snapshot(A, 0.9), now_s=sent_s, load=load)
    load.hold(A, SHARE)
    load.note(sent_s + 0.2)
    shown_s = sent_s + SHOWN_AFTER_S + age_s
    for now_s, score in ((nextafter(shown_s, 0.0), 0.9 - SHARE), (shown_s + 2.0, 0.9)):
        fleet = heard(snapshot(A, 0.9, seq=2, age_s=age_s), fleet=fleet, now_s=now_s, load=load)
        assert by_now(lined_up(fleet, now_s), load)[A] == pytest.approx(score)


def test_what_has_ended_since_the_snapshot_makes_no_room() -> None:
    """Others may have come from elsewhere."""
    load = InFlight()
    holds = [load.hold(A, SHARE) for _ in range(3)]
    load.note(0.0)
    fleet = heard(snapshot(A, 0.4), now_s=1.0, load=load)
    for hold in holds:
        hold.release()
    assert by_now(lined_up(fleet, 1.0), load)[A] == 0.4


def test_a_replica_filled_by_this_router_gets_nothing_more_until_it_is_heard_again() -> None:
    load = InFlight()
    fleet = heard(snapshot(A, 0.375), now_s=1.0, load=load)
    sent = 0
    while (decision := decided(fleet, 1.0, load)).replica is not None:
        load.hold(A, SHARE)
        sent += 1
    assert decision.why is Why.FULL
    assert sent == 4  # At 0.375, 0.3125, 0.25 and 0.1875; then it would be at 0.125.
    load.note(1.1)
    shown_s = 1.1 + SHOWN_AFTER_S
    fleet = heard(snapshot(A, 0.25, seq=2), fleet=fleet, now_s=shown_s, load=load)
    assert decided(fleet, shown_s, load).replica is not None


def test_a_replica_filled_by_this_router_has_room_once_its_requests_have_ended() -> None:
    load, fleet = InFlight(), heard(snapshot(A, 0.2))
    with load.hold(A, SHARE):
        assert decided(fleet, 0.0, load).why is Why.FULL
    assert decided(fleet, 0.0, load).replica is not None


def test_what_a_confirmed_snapshot_shows_is_not_taken_off_twice() -> None:
    load, fleet = InFlight(), heard(snapshot(A, 0.4))
    load.hold(A, SHARE)
    load.note(0.0)
    fleet = vouch(fleet, f"{A}/sidecar", 0.5, load.taken_at)
    assert by_now(lined_up(fleet, 0.5), load)[A] == 0.4


def test_a_silent_replica_beside_full_ones_takes_what_it_may_have_room_for_and_no_more() -> None:
    """Else one sidecar that hangs turns overload protection off: all of it goes there."""
    fleet, load, sent = heard(snapshot(A, 0.1), fleet=fleet_of([B])), InFlight(), 0
    while (decision := decided(fleet, 0.0, load)).replica is not None:
        assert (decision.replica.url, decision.score) == (B, None)
        load.hold(B, share_of(None, 0))
        sent += 1
    assert decision.why is Why.FULL
    assert sent == ceil(0.85 * NOMINAL_SEQS)


def test_where_all_are_silent_none_is_ever_full() -> None:
    load = InFlight()
    for _ in range(1_000):
        load.hold(A, share_of(None, 0))
        load.hold(B, share_of(None, 0))
    assert decided(fleet_of([A, B]), 0.0, load).why is Why.OWN_COUNTS


def test_a_silent_replica_is_judged_like_the_worst_that_may_be_chosen() -> None:
    candidates = lined_up(heard(snapshot(A, 0.8), snapshot(B, 0.4), fleet=fleet_of([C])))
    assert base_of(candidates, C) == 0.4


def test_a_silent_replica_is_not_weighed_down_because_another_is_falling() -> None:
    falls = falling(0.48, 0.38, 0.28)  # Heading for 0.14.
    fleet = replace(falls, replicas=MappingProxyType({**falls.replicas, **fleet_of([B]).replicas}))
    odds = Odds(lined_up(fleet, 1.5), InFlight())
    weights = {s.replica.key: w for s, w in zip(odds.seats, odds.weights, strict=True)}
    assert weights == {A: pytest.approx(0.14**2), B: pytest.approx(0.28**2)}


def test_by_own_counts_a_replica_is_judged_by_its_requests_in_flight() -> None:
    load = InFlight()
    for _ in range(3):
        load.hold(A)
    assert by_now(lined_up(fleet_of([A, B])), load) == {A: 0.25, B: 1.0}


def test_who_is_filled_leaves_those_that_may_be_chosen_and_comes_back() -> None:
    load = InFlight()
    odds = Odds(lined_up(fleet_with({A: 0.5, B: 0.9})), load)
    for _ in range(2):
        with load.hold(A, 0.4):
            odds.catch_up()
            assert ([s.replica.key for s in odds.seats], odds.scores) == ([B], [0.9])
            assert odds.full == {A: pytest.approx(0.1)}
            assert (odds.place(A), odds.place(B)) == (None, 0)
        odds.catch_up()
        assert {s.replica.key for s in odds.seats} == {A, B}
        assert odds.full == {}


@pytest.mark.parametrize("others", [0, 1, 1_023, 1_024, 5_000])
@pytest.mark.parametrize("size", [1, 1_200])
def test_no_change_is_missed_however_many_have_come_since_the_last_look(
    others: int, size: int
) -> None:
    load = InFlight()
    fleet = fleet_with({A: 0.9} | {f"http://r{i}:8000": 0.8 for i in range(1, size)})
    odds = Odds(lined_up(fleet), load)
    load.hold(A, SHARE)
    for _ in range(others):
        load.hold("elsewhere")
    odds.catch_up()
    place = odds.place(A)
    assert place is not None
    assert odds.scores[place] == 0.9 - SHARE


# Breakers

BREAKER = BreakerPolicy()


def with_events(fleet: Fleet, key: str, *events: tuple[Event, float]) -> Fleet:
    for event, now_s in events:
        fleet = with_breaker(fleet, key, after(fleet.replicas[key].breaker, event, now_s, BREAKER))
    return fleet


def eject(fleet: Fleet, *gone: str) -> Fleet:
    for key in gone:
        fleet = with_events(fleet, key, *[(Event.FAILED, 0.0)] * BREAKER.eject_after)
    return fleet


EQUAL = {A: 0.9, B: 0.9, C: 0.9, D: 0.9}


def test_a_struck_replica_is_left_out_for_its_moment() -> None:
    fleet = with_events(fleet_with(EQUAL), A, (Event.FAILED, 0.0))
    end_s = BREAKER.set_aside_s
    assert keys(lined_up(fleet, 0.0)) == keys(lined_up(fleet, nextafter(end_s, 0.0))) == {B, C, D}
    assert A in lined_up(fleet, 0.0).busy  # Its keys wait for it.
    assert keys(lined_up(fleet, end_s)) == EQUAL.keys()


def test_an_ejected_replica_is_left_out_until_a_probe_is_answered() -> None:
    fleet = eject(fleet_with(EQUAL), A)
    policy = Policy(Way.WEIGHTED, stale_after_s=1e4)
    candidates = lined_up(fleet, 1_000.0, rules=Rules(choose=policy))
    assert keys(candidates) == {B, C, D}
    assert A not in candidates.busy  # Its keys move at once.
    back = with_events(fleet, A, (Event.PROBE_ANSWERED, 2.0))
    assert keys(lined_up(back, 2.0)) == EQUAL.keys()


def test_a_returning_replica_has_a_growing_share_of_its_weight() -> None:
    fleet = with_events(eject(fleet_with(EQUAL), A), A, (Event.PROBE_ANSWERED, 0.5))

    def share_at(now_s: float) -> float:
        candidates = lined_up(
            fleet, now_s, rules=Rules(choose=Policy(Way.WEIGHTED, stale_after_s=100.0))
        )
        return candidates.seats[candidates.at[A]].share

    assert share_at(0.5) == pytest.approx(LEAST_SHARE)
    assert share_at(0.5 + BREAKER.return_s / 2) == pytest.approx((LEAST_SHARE + 1.0) / 2)
    assert share_at(0.5 + BREAKER.return_s) == 1.0


def test_a_returning_replica_gets_its_share_of_the_requests() -> None:
    fleet = with_events(eject(fleet_with(EQUAL), A), A, (Event.PROBE_ANSWERED, 0.0))
    rng, draws = Random(5), 4_000
    chosen = 0
    for _ in range(draws):
        decision = decide(fleet, Need(), 0.0, rng, RULES, InFlight(), Memory(1))
        assert decision.replica is not None
        chosen += decision.replica.key == A
    share = 0.1 / 3.1
    assert abs(chosen - draws * share) <= 4 * sqrt(draws * share * (1 - share))


def test_struck_ones_are_let_in_where_nobody_else_is_left() -> None:
    fleet = fleet_with({A: 0.9, B: 0.8})
    for key in (A, B):
        fleet = with_events(fleet, key, (Event.FAILED, 0.0))
    assert keys(lined_up(fleet)) == {A, B}


def test_struck_ones_are_let_in_before_ejected_ones() -> None:
    fleet = with_events(eject(fleet_with({A: 0.9, B: 0.9}), A), B, (Event.FAILED, 0.0))
    assert keys(lined_up(fleet)) == {B}


def test_no_more_than_half_of_the_fleet_is_ejected() -> None:
    assert len(keys(lined_up(eject(fleet_with(EQUAL), A, B, C)))) == 2
    assert keys(lined_up(eject(fleet_with({A: 0.9}), A))) == {A}


def test_a_second_try_finds_the_struck_one_where_the_other_was_tried() -> None:
    fleet = with_events(fleet_with({A: 0.9, B: 0.9}), A, (Event.FAILED, 0.0))
    assert keys(lined_up(fleet, tried=(B,))) == {A}


@pytest.mark.parametrize("state", [State.DRAINING, State.DOWN, State.STARTING])
def test_a_struck_one_is_let_in_where_the_others_serve_nobody(state: State) -> None:
    """One reset connection, beside a replica that drains, must not refuse everything for 1 s."""
    fleet = heard(snapshot(A, 0.9), snapshot(B, 0.9, state=state))
    fleet = with_events(fleet, A, (Event.FAILED, 0.0))
    assert keys(lined_up(fleet)) == {A}


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
