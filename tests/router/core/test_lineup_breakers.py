"""Replicas that were set aside or ejected, in the line-up: who is let in, and with what share."""

from math import nextafter, sqrt
from random import Random

import pytest

from lineups import BREAKER, RULES, A, B, C, D, eject, heard, keys, lined_up, with_events
from snapshots import fleet_with, snapshot
from ullage_router.core.affinity import Memory
from ullage_router.core.breaker import (
    LEAST_SHARE,
    Event,
)
from ullage_router.core.decide import decide
from ullage_router.core.decision import Need
from ullage_router.core.inflight import InFlight
from ullage_router.core.policy import Policy, Way
from ullage_router.core.rules import Rules
from ullage_shared.snapshot import State

# Breakers

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
