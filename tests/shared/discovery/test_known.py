"""What a look at a source changes: every row of the table."""

import pytest

from ullage_shared.discovery.known import Known, after, merged, together
from ullage_shared.discovery.listed import Found

A, B = "http://a:1", "http://b:1"
WELL = Known((A, B), holds=True)


@pytest.mark.parametrize("known", [Known(), WELL, Known((A,), "ill", holds=True)])
def test_who_is_named_is_known_whole(known: Known) -> None:
    assert after(known, Found((B,))) == Known((B,), holds=True)


@pytest.mark.parametrize("known", [Known(), WELL])
def test_that_there_is_nobody_is_believed_of_one_who_says_so(known: Known) -> None:
    assert after(known, Found((), meant=True)) == Known((), holds=True)


def test_an_empty_answer_is_suspicious_and_keeps_the_last_list() -> None:
    assert after(WELL, Found(())) == Known(
        (A, B), "it names nobody, the 2 of before are kept", holds=True
    )
    assert after(Known(), Found(())) == Known((), "it names nobody, nor did it before")


def test_what_cannot_be_read_keeps_the_last_list() -> None:
    assert after(WELL, "no answer") == Known((A, B), "no answer", holds=True)
    assert after(Known(), "no answer") == Known((), "no answer")


def test_bad_entries_are_a_problem_and_the_others_hold() -> None:
    many = tuple(f"[0].targets[{i}]: no" for i in range(5))
    known = after(WELL, Found((A,), many))
    assert known.urls == (A,)
    assert known.problem.startswith("[0].targets[0]: no; ")
    assert known.problem.endswith("; and 2 more")


def test_a_list_of_bad_entries_alone_keeps_the_last_one() -> None:
    known = after(WELL, Found((), ("[0].targets[0]: no",)))
    assert known.urls == (A, B)
    assert "kept; [0].targets[0]: no" in known.problem


def test_a_problem_is_over_with_the_next_good_answer() -> None:
    assert after(after(WELL, "ill"), Found((A, B))) == WELL


def test_others_words_are_cut_and_ascii() -> None:
    assert after(Known(), "é" * 1000).problem == ("\\xe9" * 50)


def test_several_files_are_one_source() -> None:
    parts = [WELL, Known((B, "http://c:1"), "ill", holds=True), Known((), "worse")]
    assert together(parts) == Known((A, B, "http://c:1"), "ill; worse", holds=True)
    assert together([]) == Known()
    assert not together([Known((), "ill")]).holds


def test_lists_are_merged_in_order_each_entry_once() -> None:
    assert merged([(B, A), (), (A, "http://c:1")]) == (B, A, "http://c:1")
