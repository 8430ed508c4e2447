"""Who may be given a request, and what it is worth: staleness, the score, own dispatches.

Judging by state and score: see `test_decide`.
"""

from dataclasses import replace
from math import ceil, inf, nextafter, sqrt
from types import MappingProxyType

import pytest

from lineups import SHARE, A, B, C, base_of, by_now, decided, heard, keys, lined_up
from snapshots import fleet_with, snapshot
from ullage_router.core.decision import Why
from ullage_router.core.fleet import (
    SHOWN_AFTER_S,
    Fleet,
    fleet_of,
    vouch,
)
from ullage_router.core.inflight import NOMINAL_SEQS, InFlight, share_of
from ullage_router.core.lineup import Basis, exponent_for
from ullage_router.core.odds import Odds
from ullage_router.core.policy import Policy, Way
from ullage_shared.snapshot import RequestClass, Scores

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
