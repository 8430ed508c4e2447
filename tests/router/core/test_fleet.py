from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshots import document, snapshot
from ullage_router.core.breaker import CLOSED, Breaker, Condition
from ullage_router.core.fleet import (
    OWNED_S,
    SHOWN_AFTER_S,
    Fleet,
    fleet_of,
    forget,
    hear,
    key_of,
    learn_models,
    lost,
    relist,
    vouch,
    with_breaker,
)
from ullage_shared.address import AddressError
from ullage_shared.snapshot import Snapshot
from ullage_shared.sources import YOUNGER_S

A, B, C = (f"http://{name}:8000" for name in "abc")
STRUCK = Breaker(Condition.STRUCK, until_s=9.0)
ONE, TWO = "http://node1:9400", "http://node2:9400"


def heard(
    *snapshots: Snapshot, fleet: Fleet | None = None, source: str = ONE, now_s: float = 1.0
) -> Fleet:
    after, faults = hear(fleet or fleet_of([]), source, document(*snapshots), now_s)
    assert faults == ()
    return after


def test_listed_replicas_are_there_before_anything_is_heard() -> None:
    fleet = fleet_of(["HTTP://A:8000/", B])
    assert list(fleet.replicas) == [A, B]
    assert fleet.replicas[A].snapshot is None
    assert fleet.replicas[A].id == "a:8000"
    assert fleet.replicas[A].age_s(9.0) is None


def test_an_ipv6_replica_keeps_its_brackets() -> None:
    """Report 22: IPv6 addresses lost."""
    fleet = heard(snapshot("http://[::1]:8000", 0.5, id="six"))
    replica = fleet.replicas["http://[::1]:8000"]
    assert (replica.address.host, str(replica.address)) == ("::1", "[::1]:8000")


def test_a_list_with_a_bad_url_is_the_operators_error() -> None:
    with pytest.raises(AddressError, match="ftp://a"):
        fleet_of(["ftp://a"])


def test_a_published_replica_joins_under_its_sidecars_name_for_it() -> None:
    replica = heard(snapshot(A, 0.5, id="node/engine")).replicas[A]
    assert (replica.id, replica.source, replica.received_s) == ("node/engine", ONE, 1.0)


def test_a_published_replica_is_matched_with_the_list_by_its_url() -> None:
    fleet = heard(snapshot("http://A:8000/", 0.5), fleet=fleet_of([A]))
    assert list(fleet.replicas) == [A]
    assert fleet.replicas[A].snapshot is not None


def test_an_older_snapshot_never_beats_a_newer_one() -> None:
    """Report 8: old snapshot beats new."""
    fleet = heard(snapshot(A, 0.9, seq=7), now_s=1.0)
    older = document(snapshot(A, 0.1, seq=6))
    after, faults = hear(fleet, ONE, older, 2.0)
    assert after.replicas[A] == fleet.replicas[A]
    assert faults == ("replica a:8000: seq 6 is older than 7",)


def test_who_says_something_old_of_its_replica_still_tells_of_it() -> None:
    fleet = heard(snapshot(A, 0.9, seq=7), now_s=1.0)
    after, _ = hear(fleet, ONE, document(snapshot(A, 0.1, seq=6)), 2.0)
    assert A in after.named[ONE]
    assert vouch(after, ONE, 3.0).replicas[A].received_s == 3.0


def test_the_same_seq_again_renews_the_age() -> None:
    fleet = heard(snapshot(A, 0.9, seq=7, age_s=0.0), now_s=1.0)
    after = heard(snapshot(A, 0.9, seq=7, age_s=0.5), fleet=fleet, now_s=2.0)
    assert after.replicas[A].age_s(2.0) == 0.5


def test_a_new_boot_starts_counting_anew() -> None:
    fleet = heard(snapshot(A, 0.9, seq=1000, boot_id="first"))
    after = heard(snapshot(A, 0.1, seq=0, boot_id="second"), fleet=fleet)
    assert after.replicas[A].snapshot is not None
    assert after.replicas[A].snapshot.capacity_score == 0.1


def test_a_new_boot_may_serve_other_models() -> None:
    fleet = heard(snapshot(A, 0.9, boot_id="first", models=("x",)))
    after = heard(snapshot(A, 0.9, boot_id="second", models=("y",)), fleet=fleet)
    assert after.replicas[A].models == {"y"}


def test_a_replica_that_its_sidecar_no_longer_names_leaves() -> None:
    fleet = heard(snapshot(A), snapshot(B))
    assert list(heard(snapshot(B), fleet=fleet).replicas) == [B]


def test_a_listed_replica_stays_when_its_sidecar_no_longer_names_it() -> None:
    fleet = heard(snapshot(A), snapshot(B), fleet=fleet_of([A]))
    after = heard(snapshot(B), fleet=fleet)
    assert list(after.replicas) == [A, B]
    assert after.replicas[A].snapshot is None


def test_a_listed_replica_that_its_sidecar_drops_keeps_its_models_and_stays_struck() -> None:
    fleet = with_breaker(heard(snapshot(A, models=("x",)), fleet=fleet_of([A])), A, STRUCK)
    fleet = learn_models(fleet, A, frozenset({"x", "lora"}))
    after = heard(fleet=fleet).replicas[A]
    assert (after.models, after.breaker) == ({"x", "lora"}, STRUCK)


def test_what_a_server_said_of_its_models_outlives_later_snapshots() -> None:
    fleet = learn_models(heard(snapshot(A, models=("x",))), A, frozenset({"x", "lora"}))
    after = heard(snapshot(A, models=("x",), seq=2), fleet=fleet)
    assert after.replicas[A].models == {"x", "lora"}


def test_a_sidecar_does_not_touch_the_replicas_of_another() -> None:
    """Report 10: two publishers clobber one field."""
    fleet = heard(snapshot(B), fleet=heard(snapshot(A, 0.9), source=ONE), source=TWO)
    after = heard(fleet=fleet, source=TWO)
    assert list(after.replicas) == [A]
    assert after.replicas[A] == fleet.replicas[A]


def test_a_replica_that_moves_to_another_sidecar_is_not_dropped_by_the_first() -> None:
    fleet = heard(snapshot(A, seq=1), source=ONE, now_s=0.0)
    moved = heard(snapshot(A, seq=2), fleet=fleet, source=TWO, now_s=OWNED_S + 0.1)
    assert list(heard(fleet=moved, source=ONE, now_s=OWNED_S + 0.2).replicas) == [A]


def test_a_replica_stays_with_the_sidecar_that_speaks_for_it() -> None:
    fleet = heard(snapshot(A, 0.9), source=ONE)
    fleet = vouch(fleet, ONE, 5.0)
    impostor = document(snapshot(A, None, id="other", seq=99))
    after, faults = hear(fleet, TWO, impostor, 5.0 + OWNED_S)
    assert after.replicas[A] == fleet.replicas[A]
    assert faults == (f"replica other: {ONE} speaks for {A}",)
    after, _ = hear(after, TWO, document(), 5.0 + OWNED_S)
    assert list(after.replicas) == [A]


HOME = "http://a:9400"
"""The sidecar of the host where `A` is."""


@pytest.mark.parametrize(
    "lie",
    [
        {"seq": 2**63 - 1},
        {"seq": 2**63 - 1, "id": "other"},
        {"boot_id": "made-up", "id": "other"},
        {"age_s": 0.0, "boot_id": None},
    ],
)
def test_a_sidecar_at_home_speaks_for_its_replica_whatever_another_has_said(
    lie: dict[str, object],
) -> None:
    """The liar was first, as after a router's start: it may not keep what it has claimed."""
    lies, truth = snapshot(A, 0.0, **lie), snapshot(A, 0.9, age_s=0.1)
    fleet, faults = hear(heard(lies), HOME, document(truth), 1.0)
    assert (faults, fleet.replicas[A].snapshot, fleet.replicas[A].source) == ((), truth, HOME)
    for later_s in (0.0, YOUNGER_S, YOUNGER_S + 0.5, OWNED_S):
        lied_to, _ = hear(fleet, ONE, document(lies), 1.0 + later_s)
        assert (lied_to.replicas[A].snapshot, lied_to.replicas[A].source) == (truth, HOME)
        back, faults = hear(lied_to, HOME, document(truth), 1.0 + later_s)
        assert (faults, back.replicas[A].snapshot) == ((), truth)
    fleet, _ = hear(back, ONE, document(), 1.1 + OWNED_S)
    assert fleet.replicas[A].source == HOME


def test_once_a_sidecar_at_home_is_silent_another_may_speak_until_it_is_back() -> None:
    fleet = heard(snapshot(A, 0.9), source=HOME)
    fleet = heard(snapshot(A, 0.1), fleet=fleet, now_s=1.0 + 2.0 * OWNED_S)
    assert fleet.replicas[A].source == ONE
    fleet = heard(snapshot(A, 0.9), fleet=fleet, source=HOME, now_s=1.0 + 2.0 * OWNED_S)
    assert fleet.replicas[A].source == HOME


def test_data_parallel_ranks_take_the_place_of_the_listed_url() -> None:
    ranks = [snapshot(A, 0.5, id=f"n/e:{rank}", dp_rank=rank) for rank in (0, 1)]
    fleet = heard(*ranks, fleet=fleet_of([A]))
    assert list(fleet.replicas) == [f"{A}#0", f"{A}#1"]
    assert list(heard(fleet=fleet).replicas) == [A]


def test_learned_models_hold_for_every_rank_of_a_server() -> None:
    ranks = [snapshot(A, dp_rank=rank) for rank in (0, 1)]
    fleet = learn_models(heard(*ranks, snapshot(B)), A, frozenset({"x"}))
    assert [r.models for r in fleet.replicas.values()] == [{"x"}, {"x"}, {"tiny"}]


def test_what_a_server_says_again_of_its_models_changes_nothing() -> None:
    """A thousand servers say it every ten seconds."""
    fleet = learn_models(heard(snapshot(A), snapshot(B)), A, frozenset({"tiny"}))
    assert fleet.replicas[A].learned
    assert learn_models(fleet, A, frozenset({"tiny"})) is fleet
    assert learn_models(fleet, C, frozenset({"tiny"})) is fleet


def test_ranks_inherit_what_was_learned_of_their_url() -> None:
    fleet = learn_models(fleet_of([A]), A, frozenset({"x", "lora"}))
    after = heard(snapshot(A, dp_rank=0, models=("x",)), fleet=fleet)
    assert after.replicas[f"{A}#0"].models == {"x", "lora"}


def test_a_replica_published_twice_counts_once_and_is_named() -> None:
    published = document(snapshot(A, 0.9, id="first"), snapshot(A, 0.1, id="second"))
    fleet, faults = hear(fleet_of([]), ONE, published, 1.0)
    assert fleet.replicas[A].id == "first"
    assert faults == (f"replica second: {A} is published twice",)


def test_replicas_of_one_name_go_by_their_addresses() -> None:
    """Two nodes configured alike: their metrics must not become one series."""
    fleet = fleet_of([])
    for source, url in (("http://s1:1", "http://a:8000"), ("http://s2:1", "http://b:8000")):
        fleet, _ = hear(fleet, source, document(snapshot(url, id="node/vllm")), 0.0)
    assert [replica.id for replica in fleet.replicas.values()] == ["a:8000", "b:8000"]

    fleet, _ = hear(fleet, "http://s2:1", document(), 0.0)
    assert [replica.id for replica in fleet.replicas.values()] == ["node/vllm"]


def test_a_bad_url_costs_only_the_replica_that_has_it() -> None:
    published = document(snapshot("ftp://a:1", id="bad"), snapshot(B))
    fleet, faults = hear(fleet_of([]), ONE, published, 1.0)
    assert list(fleet.replicas) == [B]
    assert len(faults) == 1
    assert "bad" in faults[0]
    assert "ftp://a:1" in faults[0]


def test_vouching_renews_the_replicas_of_that_sidecar_alone() -> None:
    fleet = heard(snapshot(B), fleet=heard(snapshot(A)), source=TWO)
    after = vouch(fleet, ONE, 5.0)
    assert after.replicas[A].age_s(5.0) == 0.0
    assert after.replicas[B].age_s(5.0) == 4.0


def test_a_new_list_adds_and_removes_and_leaves_the_rest_as_it_is() -> None:
    """Report 23: reload keeps removed backends (production-stack#680)."""
    fleet = with_breaker(learn_models(fleet_of([A, B]), B, frozenset({"x"})), B, STRUCK)
    after = relist(fleet, [C, "HTTP://B:8000/"])
    assert list(after.replicas) == [B, C]
    assert after.replicas[B] == fleet.replicas[B]
    assert after.listed == {B, C}


def test_a_replica_that_a_sidecar_publishes_outlives_the_list() -> None:
    fleet = heard(snapshot(A, 0.9), fleet=fleet_of([A, B]))
    after = relist(fleet, [])
    assert after.replicas == {A: fleet.replicas[A]}
    assert not heard(fleet=after).replicas


def test_a_new_list_does_not_add_a_server_whose_ranks_are_there() -> None:
    ranks = [snapshot(A, 0.5, id=f"n/e:{rank}", dp_rank=rank) for rank in (0, 1)]
    after = relist(heard(*ranks), [A])
    assert list(after.replicas) == [f"{A}#0", f"{A}#1"]
    assert list(heard(fleet=after).replicas) == [A]


def test_a_new_list_with_a_bad_url_is_the_operators_error() -> None:
    with pytest.raises(AddressError, match="ftp://a"):
        relist(fleet_of([A]), ["ftp://a"])


def test_the_replicas_of_a_sidecar_that_is_no_longer_asked_leave() -> None:
    fleet = heard(
        snapshot(C), fleet=heard(snapshot(A), snapshot(B), fleet=fleet_of([A])), source=TWO
    )
    after = forget(fleet, ONE)
    assert list(after.replicas) == [A, C]
    assert after.replicas[A].snapshot is None
    assert after.replicas[C] == fleet.replicas[C]


def test_a_clock_set_back_ages_nothing() -> None:
    assert heard(snapshot(A, age_s=0.25), now_s=9.0).replicas[A].age_s(1.0) == 0.25


def test_what_is_held_against_a_replica_that_has_left_changes_nothing() -> None:
    fleet = heard(snapshot(A))
    assert with_breaker(fleet, B, STRUCK) is fleet


def test_what_is_held_against_a_replica_survives_the_next_snapshot() -> None:
    fleet = with_breaker(heard(snapshot(A)), A, STRUCK)
    assert heard(snapshot(A, seq=2), fleet=fleet).replicas[A].breaker is STRUCK


def test_a_fleet_is_mixed_only_when_known_models_differ() -> None:
    same = heard(snapshot(A, models=("x",)), snapshot(B, models=("x",)), snapshot(C, models=()))
    assert not same.mixed
    assert heard(snapshot(A, models=("x",)), snapshot(B, models=("y",))).mixed


urls = st.sampled_from([A, B, C, "http://a:8000/", "nonsense", "https://a:8000"])
snapshots = st.builds(
    snapshot,
    urls,
    st.none() | st.floats(0.0, 1.0),
    dp_rank=st.none() | st.integers(0, 2),
    seq=st.integers(0, 5),
    boot_id=st.sampled_from(["first", "second", None]),
    models=st.sampled_from([(), ("x",), ("y",)]),
)
events = st.one_of(
    st.tuples(st.just("hear"), st.sampled_from([ONE, TWO]), st.lists(snapshots, max_size=4)),
    st.tuples(st.just("vouch"), st.sampled_from([ONE, TWO]), st.none()),
    st.tuples(st.just("forget"), st.sampled_from([ONE, TWO]), st.none()),
    st.tuples(st.just("lost"), st.sampled_from([ONE, TWO]), st.none()),
    st.tuples(st.just("relist"), st.sampled_from([A, B, C]), st.none()),
    st.tuples(st.just("learn"), st.sampled_from([A, B]), st.none()),
    st.tuples(st.just("aside"), st.sampled_from([A, B, "gone"]), st.none()),
)


def assert_as_if_made_anew(fleet: Fleet) -> None:
    """What only some of it was changed for is what all of it would have become."""
    anew = relist(fleet, fleet.listed)
    assert anew == fleet
    assert list(anew.replicas) == list(fleet.replicas)


def test_one_who_takes_over_a_replica_and_drops_its_own_leaves_nothing_behind() -> None:
    fleet = heard(snapshot(A))
    fleet = heard(snapshot(B), fleet=fleet, source=TWO)
    fleet = heard(snapshot(B, seq=2), fleet=fleet, now_s=1.0 + 2.0 * OWNED_S)
    assert list(fleet.replicas) == [B]


@settings(deadline=None, max_examples=100)
@given(st.sets(st.sampled_from([A, B])), st.lists(events, max_size=12))
def test_whatever_is_heard_the_fleet_stays_sound(
    listed: set[str], history: Sequence[tuple[str, str, list[Snapshot] | None]]
) -> None:
    fleet = fleet_of(listed)
    for now_s, (event, name, published) in enumerate(history):
        before = fleet
        if event == "hear":
            assert published is not None
            fleet, _ = hear(fleet, name, document(*published), float(now_s))
            mine = {r.key for r in fleet.replicas.values() if r.source == name}
            assert len(mine) <= len(published)
            assert mine <= {key_of(s.url.rstrip("/"), s.dp_rank) for s in published}
            assert_as_if_made_anew(fleet)
        elif event == "vouch":
            fleet = vouch(fleet, name, float(now_s))
        elif event == "forget":
            fleet = forget(fleet, name)
            assert all(r.source != name for r in fleet.replicas.values())
        elif event == "lost":
            fleet = lost(fleet, name)
            assert fleet.replicas.keys() == before.replicas.keys()
        elif event == "relist":
            listed = {name}
            fleet = relist(fleet, listed)
        elif event == "learn":
            fleet = learn_models(fleet, name, frozenset({"x", "y"}))
            assert_as_if_made_anew(fleet)
        else:
            fleet = with_breaker(fleet, name, STRUCK)

        assert list(fleet.replicas) == sorted(fleet.replicas)
        assert all(key == replica.key for key, replica in fleet.replicas.items())
        assert fleet.listed == listed
        assert listed <= {replica.url for replica in fleet.replicas.values()}
        for replica in fleet.replicas.values():
            assert (replica.snapshot is None) == (replica.source is None)
            assert replica.source is not None or replica.url in listed
            assert replica.source is None or replica.key in fleet.named[replica.source]
            old = before.replicas.get(replica.key)
            if old and old.snapshot and replica.snapshot:
                is_same = old.boot_id in (None, replica.boot_id)
                is_fresh = now_s - old.received_s <= OWNED_S
                older = replica.snapshot.seq < old.snapshot.seq
                assert not (is_same and is_fresh and older)


def test_what_is_held_against_a_server_is_forgotten_once_it_has_started_anew() -> None:
    fleet = with_breaker(heard(snapshot(A)), A, STRUCK)
    assert heard(snapshot(A, boot_id="next"), fleet=fleet).replicas[A].breaker is CLOSED


def test_the_boot_before_never_beats_the_one_that_followed_it() -> None:
    """Report 8: old beats new."""
    fleet = heard(snapshot(A, 0.9, boot_id="next"), fleet=heard(snapshot(A, 0.1)))
    fleet = heard(snapshot(A, None, boot_id=None), fleet=fleet)
    late = document(snapshot(A, 0.1, seq=99))
    after, faults = hear(fleet, ONE, late, 1.0 + OWNED_S)
    assert after.replicas[A].snapshot == fleet.replicas[A].snapshot
    assert faults == ("replica a:8000: boot_id boot is older than next",)


def test_what_is_known_of_a_server_holds_while_its_restarted_sidecar_has_not_heard_of_it() -> None:
    fleet = with_breaker(heard(snapshot(A, models=("x",), seq=1)), A, STRUCK)
    unheard = heard(snapshot(A, None, models=(), boot_id=None, seq=2), fleet=fleet)
    assert unheard.replicas[A].snapshot == snapshot(A, None, models=(), boot_id=None, seq=2)
    for after in (unheard, heard(snapshot(A, models=("x",), seq=3), fleet=unheard)):
        assert after.replicas[A].breaker is STRUCK
        assert after.replicas[A].models == {"x"}
    assert heard(snapshot(A, boot_id="next", seq=3), fleet=unheard).replicas[A].breaker is CLOSED


def test_an_older_seq_is_heard_once_the_newer_one_is_silent() -> None:
    """So that a clock that was set back costs seconds, and not the replica."""
    fleet = heard(snapshot(A, 0.9, seq=9), now_s=1.0)
    late = document(snapshot(A, 0.1, seq=1))
    assert hear(fleet, ONE, late, 1.0 + OWNED_S)[1] == ("replica a:8000: seq 1 is older than 9",)
    assert hear(fleet, ONE, late, 1.1 + OWNED_S)[1] == ()


def test_the_boot_before_is_heard_again_once_the_one_that_followed_is_silent() -> None:
    """So that a boot_id that was given twice costs seconds, and not the replica."""
    fleet = heard(snapshot(A, 0.9, boot_id="next"), fleet=heard(snapshot(A, 0.1)))
    after = heard(snapshot(A, 0.1), fleet=fleet, now_s=1.1 + OWNED_S)
    assert after.replicas[A].snapshot == snapshot(A, 0.1)


def test_a_snapshot_knows_what_this_router_had_sent_by_then() -> None:
    """Report 7: not what it has sent since, nor just before, which no snapshot shows yet."""

    def taken_at(then_s: float) -> dict[str, float]:
        return {A: then_s}

    said = document(snapshot(A, age_s=0.25), snapshot(B))
    fleet, _ = hear(fleet_of([]), ONE, said, 9.0, taken_at)
    taken = [replica.taken_then for replica in fleet.replicas.values()]
    assert taken == [pytest.approx(9.0 - 0.25 - SHOWN_AFTER_S), 0.0]
    later = vouch(fleet, ONE, 10.0, taken_at).replicas[A]
    assert later.taken_then == pytest.approx(10.0 - SHOWN_AFTER_S)


def test_a_score_that_falls_leaves_its_trend() -> None:
    fleet = heard(snapshot(A, 0.9, seq=1), now_s=1.0)
    for seq in (2, 3):
        fleet = heard(snapshot(A, 0.9 - seq / 10, seq=seq), fleet=fleet, now_s=float(seq))
    assert fleet.replicas[A].trend.falls == 2
    assert vouch(fleet, ONE, 4.0).replicas[A].trend.falls == 2  # The same one, once more.
    assert vouch(fleet, ONE, 5.5).replicas[A].trend.falls == 0
    started_anew = heard(snapshot(A, 0.1, boot_id="next"), fleet=fleet, now_s=4.0)
    assert started_anew.replicas[A].trend.falls == 0


def test_models_that_the_same_replicas_serve_are_alike() -> None:
    """Thirty adapters of one fleet are one kind of request."""
    fleet = heard(snapshot(A, models=("base", "lora-1", "lora-2")), snapshot(B, models=("base",)))
    assert fleet.mixed
    assert fleet.alike == {"base": "base", "lora-1": "lora-1", "lora-2": "lora-1"}
