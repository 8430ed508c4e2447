"""The aggregator's table, by a clock that is moved by hand."""

from snapshots import document, snapshot
from ullage_shared.aggregator.table import RENDER_EVERY_S, Table
from ullage_shared.snapshot import State, decode

A, B = "http://a:8000", "http://b:8000"
ONE, TWO = "http://node1:9400", "http://node2:9400"


def test_the_document_is_all_of_them_under_its_own_name() -> None:
    table = Table("agg")
    table.hear(ONE, document(snapshot(A)), 0.0)
    table.hear(TWO, document(snapshot(B)), 0.5)
    read, faults = decode(table.published(1.0, 0.0).body)
    assert (faults, read.node) == ((), "agg")
    assert [(r.id, r.age_s) for r in read.replicas] == [("a:8000", 1.0), ("b:8000", 0.5)]


def test_it_is_rendered_once_for_all_who_ask_within_a_moment() -> None:
    table = Table("agg")
    one = table.published(0.0, 0.0)
    assert table.published(RENDER_EVERY_S - 0.01, 0.0) is one
    assert table.published(RENDER_EVERY_S, 0.0) is not one
    assert table.renders == 2


def test_its_number_grows_with_its_content_and_with_an_age_and_else_not() -> None:
    table = Table("agg")
    table.hear(ONE, document(snapshot(A, seq=1)), 0.0)
    first = table.published(0.0, 0.0).seq
    table.vouch(ONE, 1.0)
    assert table.published(1.0, 0.0).seq == first
    aged = table.published(2.0, 0.0).seq
    assert aged > first
    table.hear(ONE, document(snapshot(A, seq=2)), 2.0)
    assert table.published(2.2, 0.0).seq > aged


def test_its_number_grows_over_restarts() -> None:
    before = Table("agg").published(1000.0, 0.0).seq
    assert Table("agg").published(1001.0, 0.0).seq > before


def test_what_is_vouched_for_is_young_again_and_what_was_never_heard_is_not_there() -> None:
    table = Table("agg")
    table.hear(ONE, document(snapshot(A, age_s=0.1)), 0.0)
    table.vouch(ONE, 5.0)
    table.vouch(TWO, 5.0)
    assert [r.age_s for r in table.published(5.0, 0.0).replicas] == [0.1]


def test_who_is_no_longer_asked_is_forgotten() -> None:
    table = Table("agg")
    table.hear(ONE, document(snapshot(A)), 0.0)
    table.forget(ONE)
    table.forget(TWO)
    assert table.published(1.0, 0.0).replicas == ()


def test_those_who_watch_are_told_of_who_comes_goes_and_changes_its_state_and_of_no_score() -> None:
    table = Table("agg")
    told: list[str] = []
    table.tell = lambda: told.append("now")
    table.hear(ONE, document(snapshot(A, 0.9)), 0.0)
    shown = table.published(0.0, 0.0)
    table.hear(ONE, document(snapshot(A, 0.1, seq=2)), 0.1)
    assert (len(told), table.moved(shown)) == (1, False)
    table.hear(ONE, document(snapshot(A, 0.1, seq=3, state=State.DRAINING)), 0.2)
    assert (len(told), table.moved(shown)) == (2, True)
    assert not table.moved(table.published(0.3, 0.0))
    table.forget(ONE)
    assert len(told) == 3
