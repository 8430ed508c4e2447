"""One replica, two sources: two aggregators over the same sidecars, or one and a sidecar."""

from random import Random

import pytest

from snapshots import document, snapshot
from ullage_router.core.fleet import (
    SHOWN_AFTER_S,
    Fleet,
    fleet_of,
    forget,
    hear,
    lost,
    speaks_for_all,
    vouch,
)
from ullage_shared.sources import YOUNGER_S, heir, takes_over, telling

A, B = "http://a:8000", "http://b:8000"
ONE, TWO = "http://aggregator1:9402", "http://aggregator2:9402"


def heard(fleet: Fleet, source: str, now_s: float, *, seq: int = 1, age_s: float = 0.0) -> Fleet:
    """`source` says this of A; nothing may be wrong with it."""
    after, faults = hear(fleet, source, document(snapshot(A, seq=seq, age_s=age_s)), now_s)
    assert faults == ()
    return after


def both(now_s: float = 0.0) -> Fleet:
    """ONE speaks for A, and TWO stands by."""
    return heard(heard(fleet_of([]), ONE, now_s), TWO, now_s)


def test_it_is_one_replica_and_nothing_is_wrong() -> None:
    fleet = both()
    assert [*fleet.replicas] == [A]
    assert fleet.replicas[A].source == ONE
    assert (speaks_for_all(fleet, ONE), speaks_for_all(fleet, TWO)) == (True, False)


def test_who_is_hardly_younger_stands_by() -> None:
    fleet = both()
    after = heard(fleet, TWO, YOUNGER_S, seq=2)
    assert after.replicas == fleet.replicas
    assert heard(fleet, TWO, YOUNGER_S + 1.0, seq=2, age_s=1.0).replicas == fleet.replicas


def test_who_is_much_younger_takes_over() -> None:
    """The first is cut off from its sidecar, and says so; or it says nothing."""
    cut_off = heard(both(), ONE, 2.0, age_s=2.0)
    for fleet in (cut_off, both()):
        after = heard(fleet, TWO, 2.0, seq=2, age_s=0.2)
        assert (after.replicas[A].source, after.replicas[A].age_s(2.0)) == (TWO, 0.2)
        assert speaks_for_all(after, TWO)


def test_who_has_lost_a_replica_gets_it_back_only_when_it_is_much_the_younger() -> None:
    fleet = heard(both(), TWO, 2.0, seq=2)
    assert heard(fleet, ONE, 3.0, seq=3).replicas == fleet.replicas
    assert heard(fleet, ONE, 4.0, seq=3).replicas[A].source == ONE


def test_two_that_are_well_never_take_a_replica_from_each_other() -> None:
    """Each reports every second, and its picture is up to half a second old by then."""
    rng, fleet = Random(8), both()
    for tenth in range(1, 600):
        for source, phase in ((ONE, 0), (TWO, 7)):
            if tenth % 10 == phase:
                now_s = tenth / 10.0
                age_s = rng.uniform(0.0, 0.5)
                fleet = heard(fleet, source, now_s, seq=int(10 * (now_s - age_s)), age_s=age_s)
        assert fleet.replicas[A].source == ONE
        assert (fleet.replicas[A].age_s(tenth / 10.0) or 0.0) <= YOUNGER_S


def test_it_does_not_leave_while_one_of_them_tells_of_it() -> None:
    """The first was restarted, and has not heard of it yet."""
    fleet = both()
    after, _ = hear(fleet, ONE, document(), 1.0)
    assert after.replicas[A].source == TWO
    assert after.replicas[A].snapshot == fleet.replicas[A].snapshot
    assert not hear(after, TWO, document(), 1.0)[0].replicas


def test_it_stays_when_one_of_them_is_no_longer_asked() -> None:
    after = forget(both(), ONE)
    assert after.replicas[A].source == TWO
    assert not forget(after, TWO).replicas
    assert not forget(after, TWO).named


def test_who_stood_by_and_tells_of_it_no_more_inherits_nothing() -> None:
    fleet, _ = hear(both(), TWO, document(snapshot(B)), 0.5)
    assert [*forget(fleet, ONE).replicas] == [B]


def test_of_one_that_is_lost_the_other_takes_over_at_its_next_word_however_young() -> None:
    fleet = lost(both(), ONE)
    assert fleet.replicas[A].source == TWO
    assert heard(fleet, TWO, 0.1, seq=2).replicas[A].received_s == 0.1
    assert vouch(fleet, TWO, 0.1).replicas[A].received_s == 0.1


def test_of_one_that_is_lost_alone_everything_stays_and_ages() -> None:
    alone = heard(fleet_of([]), ONE, 0.0)
    assert lost(alone, ONE) is alone
    assert lost(both(), TWO).replicas == both().replicas
    assert lost(Fleet(), ONE) == Fleet()


def test_one_that_was_lost_and_is_back_stands_by() -> None:
    fleet = heard(lost(both(), ONE), TWO, 0.5, seq=2)
    assert heard(fleet, ONE, 1.0, seq=3).replicas == fleet.replicas


def test_who_calls_it_otherwise_is_no_second_source() -> None:
    """Another node that claims the URL: see `test_fleet`."""
    fleet = heard(fleet_of([]), ONE, 0.0)
    claimed = document(snapshot(A, id="other/engine", seq=99))
    after, faults = hear(fleet, TWO, claimed, 2.0)
    assert (after.replicas, len(faults)) == (fleet.replicas, 1)
    assert lost(after, ONE) is after
    assert not forget(after, ONE).replicas


def test_a_restart_of_the_engine_that_one_knows_earlier_is_no_fault_of_the_other() -> None:
    fleet, faults = hear(both(), ONE, document(snapshot(A, boot_id="next", seq=9)), 0.5)
    assert faults == ()
    assert heard(fleet, TWO, 0.6, seq=5).replicas == fleet.replicas


def test_what_this_router_sent_counts_by_the_age_of_whoever_takes_over() -> None:
    def taken_at(then_s: float) -> dict[str, float]:
        return {A: then_s}

    fleet, _ = hear(both(), TWO, document(snapshot(A, seq=2, age_s=0.5)), 9.0, taken_at)
    assert fleet.replicas[A].taken_then == pytest.approx(9.0 - 0.5 - SHOWN_AFTER_S)


def test_a_source_inherits_from_others_only() -> None:
    named = telling(telling({}, ONE, {A, B}), TWO, {A})
    assert (heir(named, ONE, A), heir(named, ONE, B), heir(named, TWO, B)) == (TWO, None, ONE)
    assert telling(named, TWO, {A}) is named
    assert telling(named, TWO, set()) == {ONE: {A, B}}
    assert (takes_over(1.6, 0.0), takes_over(1.5, 0.0), takes_over(9.0, 8.0)) == (
        True,
        False,
        False,
    )
