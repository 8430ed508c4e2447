"""Many documents as one: ages, order, and who speaks for what two tell of."""

from random import Random

import msgspec
import pytest

from snapshots import document, snapshot
from ullage_shared.aggregator.gather import (
    OWNED_S,
    SAME_AGE_S,
    Heard,
    gather,
    normal,
    same,
    standing,
)
from ullage_shared.snapshot import Snapshot, State
from ullage_shared.sources import YOUNGER_S

A, B = "http://a:8000", "http://b:8000"
ONE, TWO = "http://node1:9400", "http://node2:9400"


def word(*replicas: Snapshot, at_s: float = 0.0) -> Heard:
    return Heard(document(*replicas), at_s)


def test_nobody_heard_is_an_empty_document() -> None:
    assert gather({}, {}, 1.0) == ((), {}, ())
    assert gather({ONE: word()}, {}, 1.0) == ((), {}, ())


@pytest.mark.parametrize(("sent_s", "held_s", "age_s"), [(0.0, 0.0, 0.0), (0.25, 1.5, 1.75)])
def test_an_age_is_the_senders_and_the_time_since(
    sent_s: float, held_s: float, age_s: float
) -> None:
    heard = {ONE: word(snapshot(A, age_s=sent_s), at_s=7.0)}
    assert gather(heard, {}, 7.0 + held_s).replicas[0].age_s == age_s


def test_a_clock_set_back_ages_nothing() -> None:
    assert gather({ONE: word(snapshot(A, age_s=0.25), at_s=9.0)}, {}, 1.0).replicas[0].age_s == 0.25


def test_all_but_the_age_passes_as_it_came() -> None:
    sent = snapshot(A, 0.3, id="gpu-01/a", seq=77, boot_id="b", ts=5.0, dp_rank=3, age_s=0.1)
    (passed,) = gather({ONE: word(sent)}, {}, 2.0).replicas
    assert msgspec.structs.replace(passed, age_s=0.1) == sent


def test_a_silent_source_removes_nothing_and_its_replicas_age() -> None:
    heard = {ONE: word(snapshot(A)), TWO: word(snapshot(B), at_s=100.0)}
    assert [r.age_s for r in gather(heard, {}, 100.0).replicas] == [100.0, 0.0]


def test_ranks_of_one_server_are_replicas_of_their_own() -> None:
    heard = {ONE: word(snapshot(A, dp_rank=0), snapshot(A, dp_rank=1))}
    assert len(gather(heard, {}, 0.0).replicas) == 2


def test_of_one_that_a_source_names_twice_the_first_counts() -> None:
    heard = {ONE: word(snapshot(A, 0.1), snapshot(A, 0.9))}
    assert [r.capacity_score for r in gather(heard, {}, 0.0).replicas] == [0.1]


def test_what_two_tell_of_is_there_once_and_stays_with_whoever_speaks_for_it() -> None:
    heard = {ONE: word(snapshot(A, seq=5)), TWO: word(snapshot(A, seq=6), at_s=YOUNGER_S)}
    first = gather(heard, {}, YOUNGER_S)
    assert (len(first.replicas), first.replicas[0].seq, first.disputed) == (1, 5, ())
    later = gather(heard, {(A, None): TWO}, YOUNGER_S)
    assert later.replicas[0].seq == 6


def test_whoever_is_much_younger_takes_over_and_keeps_it() -> None:
    heard = {ONE: word(snapshot(A, seq=5)), TWO: word(snapshot(A, seq=6), at_s=1.6)}
    taken = gather(heard, {(A, None): ONE}, 1.6)
    assert (taken.replicas[0].seq, taken.speakers) == (6, {(A, None): TWO})
    heard[ONE] = word(snapshot(A, seq=7), at_s=2.0)
    assert gather(heard, taken.speakers, 2.0).replicas[0].seq == 6


def test_two_sources_that_are_well_never_take_a_replica_from_each_other() -> None:
    rng, speakers = Random(5), {(A, None): TWO}
    heard = {ONE: word(snapshot(A)), TWO: word(snapshot(A))}
    for tenth in range(500):
        heard[rng.choice((ONE, TWO))] = word(snapshot(A), at_s=tenth / 10.0)
        if tenth % 5 == 0:
            heard = {name: word(snapshot(A), at_s=tenth / 10.0) for name in heard}
        gathered = gather(heard, speakers, tenth / 10.0)
        assert gathered.speakers == speakers


def test_one_that_another_claims_under_another_name_stays_and_the_claim_is_told_of() -> None:
    claimed = word(snapshot(A, 1.0, id="evil/x", seq=10**9), at_s=OWNED_S)
    for heard in ({ONE: word(snapshot(A)), TWO: claimed}, {TWO: claimed, ONE: word(snapshot(A))}):
        gathered = gather(heard, {(A, None): ONE}, OWNED_S)
        assert gathered.replicas[0].id == "a:8000"
        assert gathered.disputed == (f"evil/x of {TWO}: {ONE} speaks for {A}",)


def test_once_whoever_speaks_for_it_is_silent_another_may_claim_it() -> None:
    heard = {ONE: word(snapshot(A)), TWO: word(snapshot(A, id="next/x"), at_s=OWNED_S + 0.1)}
    gathered = gather(heard, {(A, None): ONE}, OWNED_S + 0.1)
    assert (gathered.replicas[0].id, gathered.speakers) == ("next/x", {(A, None): TWO})


def test_one_at_home_speaks_while_it_is_heard_whoever_was_first() -> None:
    home = "http://a:9400"
    for lie in ({}, {"id": "evil/x"}):
        lies = word(snapshot(A, 0.0, seq=10**9, **lie), at_s=1.0)
        for heard in (
            {ONE: lies, home: word(snapshot(A, 0.9))},
            {home: word(snapshot(A, 0.9)), ONE: lies},
        ):
            speaks = [gather(heard, {(A, None): ONE}, at_s).speakers for at_s in (1.0, 3.0, 3.1)]
            assert [by[A, None] for by in speaks] == [home, home, ONE]


@pytest.mark.parametrize(
    ("change", "alike"),
    [
        ({}, True),
        ({"age_s": SAME_AGE_S}, True),
        ({"age_s": SAME_AGE_S + 0.01}, False),
        ({"seq": 2}, False),
        ({"boot_id": "next"}, False),
        ({"id": "other"}, False),
        ({"dp_rank": 0}, False),
        ({"ts": 9.0}, True),
    ],
)
def test_a_document_stands_for_another_only_if_nothing_but_ts_differs(
    change: dict[str, object], alike: bool
) -> None:
    one, other = snapshot(A), snapshot(A, **change)
    assert same((one,), (other,)) is same((other,), (one,)) is alike
    assert not same((one,), ())
    assert same((), ())


def test_who_is_there_and_in_which_state_is_told_at_once_and_no_score() -> None:
    before = standing(document(snapshot(A, 0.9)))
    assert standing(document(snapshot(A, 0.1, seq=2, waiting=9))) == before
    for change in (
        document(snapshot(A, state=State.DRAINING)),
        document(snapshot(A, boot_id="next")),
        document(snapshot(A), snapshot(B)),
        document(),
    ):
        assert standing(change) != before


def test_urls_come_to_their_normal_form_and_those_that_have_none_are_named() -> None:
    sent = document(snapshot("HTTP://A:8000/"), snapshot("ftp://x", id="bad"), snapshot(B))
    sound, faults = normal(sent)
    assert [replica.url for replica in sound.replicas] == [A, B]
    assert len(faults) == 1
    assert faults[0].startswith("replica bad: url 'ftp://x'")
