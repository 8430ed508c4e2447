"""Totals are summed as differences, so a lost datagram loses no token."""

import pytest

from ullage_sidecar.core.counts import Counts, birth
from ullage_sidecar.core.reading import Reading

FIRST = Reading(7, 10, 1.0, 0, 0, 0.0, 100, 50, 1, 80, 40)


def test_a_step_adds_its_difference_to_the_one_before():
    later = FIRST._replace(seq=11, prompt_tokens=130, generated_tokens=58, prefix_hits=45)
    assert Counts().with_step(FIRST, later) == Counts(
        received=1, prompt_tokens=30, generated_tokens=8, preemptions=0, prefix_queries=0,
        prefix_hits=5,
    )  # fmt: skip


def test_a_gap_in_the_numbers_is_lost_readings_and_no_lost_tokens():
    later = FIRST._replace(seq=15, prompt_tokens=200)
    counts = Counts().with_step(FIRST, later)
    assert (counts.received, counts.lost, counts.prompt_tokens) == (1, 4, 100)


def test_a_sender_counts_from_its_birth_when_its_first_step_is_heard():
    counts = Counts().with_step(birth(7), FIRST._replace(seq=1, prompt_tokens=12))
    assert (counts.received, counts.lost, counts.prompt_tokens) == (1, 0, 12)


@pytest.mark.parametrize("known", [None, 500])
def test_a_total_that_is_not_told_stays_as_it_was(known):
    counts = Counts(prompt_tokens=known).with_step(
        FIRST, FIRST._replace(seq=11, prompt_tokens=None)
    )
    assert counts.prompt_tokens == known


def test_a_total_told_again_after_a_gap_goes_on_from_there():
    untold = FIRST._replace(seq=11, prompt_tokens=None)
    told = FIRST._replace(seq=12, prompt_tokens=900)
    counts = Counts(prompt_tokens=5).with_step(FIRST, untold).with_step(untold, told)
    assert counts.prompt_tokens == 5
    assert counts.with_step(told, told._replace(seq=13, prompt_tokens=903)).prompt_tokens == 8


def test_a_total_never_falls():
    smaller = FIRST._replace(seq=11, prompt_tokens=1)
    assert Counts(prompt_tokens=9).with_step(FIRST, smaller).prompt_tokens == 9


def test_a_heartbeat_is_neither_received_nor_lost():
    before = Counts(received=3, lost=1, heartbeats=1).with_heartbeat(FIRST, FIRST)
    assert (before.received, before.lost, before.heartbeats) == (3, 1, 2)


def test_a_heartbeat_may_tell_of_more_tokens_than_the_step_it_repeats():
    again = FIRST._replace(prompt_tokens=FIRST.prompt_tokens + 5)
    assert Counts(prompt_tokens=4).with_heartbeat(FIRST, again).prompt_tokens == 9
