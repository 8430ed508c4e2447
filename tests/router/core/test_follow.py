"""A line-up that follows a word of a few replicas is the one made anew, or is not there."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineups import A, B, C, D, heard, keys, lined_up, with_events
from snapshots import fleet_with, snapshot
from ullage_router.core.affinity import Memory
from ullage_router.core.breaker import Event
from ullage_router.core.decide import choose
from ullage_router.core.decision import Need
from ullage_router.core.expected import MOST_AT_ONCE
from ullage_router.core.fleet import Fleet, fleet_of, vouch
from ullage_router.core.follow import follow
from ullage_router.core.inflight import Hold, InFlight
from ullage_router.core.lineup import LineUp, line_up
from ullage_router.core.odds import Odds
from ullage_router.core.policy import Policy, Way
from ullage_router.core.prefixes import Prefixes
from ullage_router.core.rules import Rules
from ullage_shared.snapshot import RequestClass, Snapshot, State

SIZE = RequestClass.MIXED
WAYS = [Rules(choose=Policy(way)) for way in (Way.LEAST_WAIT, Way.WEIGHTED)]
URLS = [f"http://r{i}:8000" for i in range(24)]


def followed(
    before: LineUp, fleet: Fleet, now_s: float, rules: Rules = WAYS[0]
) -> tuple[LineUp, list[str]] | None:
    return follow(before, fleet, SIZE, now_s, rules)


def say(url: str, score: float | None, seq: int, **more: object) -> Snapshot:
    known = {"prefill_tokens_per_s": 9_000.0, "step_s": 0.02, "running": 3, "waiting": 0}
    return snapshot(url, score, seq=seq, **(known | more))


# What it follows


def test_of_nothing_new_it_is_the_same_at_a_later_moment() -> None:
    fleet = fleet_with({A: 0.9, B: 0.5})
    before = lined_up(fleet, 0.0)
    now, whom = followed(before, fleet, 1.0) or pytest.fail("must follow")
    assert (now.seats, whom, now.since_s, now.until_s) == (before.seats, [], 1.0, before.until_s)


def test_only_who_was_heard_is_judged_anew() -> None:
    fleet = heard(say(A, 0.9, 1), say(B, 0.5, 1))
    before = lined_up(fleet, 0.0)
    fleet = heard(say(B, 0.7, 2), fleet=fleet, now_s=1.0)
    now, whom = followed(before, fleet, 1.0) or pytest.fail("must follow")
    assert whom == [B]
    assert {seat.replica.key: seat.base for seat in now.seats} == {A: 0.9, B: 0.7}
    assert now.judged[A] is before.judged[A]
    assert now.holds(fleet, 1.0)


def test_who_is_vouched_for_is_known_to_be_as_it_was_until_later() -> None:
    fleet = heard(say(A, 0.9, 1))
    before = lined_up(fleet, 0.0)
    later = vouch(fleet, f"{A}/sidecar", 1.5)
    now, whom = followed(before, later, 1.5) or pytest.fail("must follow")
    assert whom == [A]
    assert now.seats[0].replica.received_s == 1.5
    assert now.until_s == before.until_s  # What others may do by then is not asked.


def test_who_stays_out_stays_out() -> None:
    fleet = heard(say(A, 0.9, 1), say(B, 0.9, 1, state=State.DRAINING), say(C, 0.01, 1))
    before = lined_up(fleet, 0.0)
    fleet = heard(say(B, 0.9, 2, state=State.DRAINING), say(C, 0.02, 2), fleet=fleet, now_s=1.0)
    now, whom = followed(before, fleet, 1.0) or pytest.fail("must follow")
    assert (keys(now), {*whom}, now.busy) == ({A}, {B, C}, before.busy)


def test_a_silent_one_that_stays_silent_keeps_its_seat() -> None:
    fleet = heard(say(A, None, 1), say(B, 0.8, 1))
    before = lined_up(fleet, 0.0)
    fleet = heard(say(A, None, 2), fleet=fleet, now_s=1.0)
    now, _ = followed(before, fleet, 1.0) or pytest.fail("must follow")
    seat = now.seats[now.at[A]]
    assert (seat.replica, seat.score, seat.base) == (fleet.replicas[A], None, 0.8)


# What makes it all anew


@pytest.mark.parametrize(
    "then",
    [
        pytest.param(lambda f: heard(say(A, 0.01, 2), fleet=f), id="one is full"),
        pytest.param(lambda f: heard(say(C, 0.9, 2), fleet=f), id="one has room again"),
        pytest.param(lambda f: heard(say(A, None, 2), fleet=f), id="one is silent"),
        pytest.param(
            lambda f: heard(say(A, 0.9, 2, state=State.DRAINING), fleet=f), id="one is drained"
        ),
        pytest.param(lambda f: heard(say(D, 0.9, 1), fleet=f), id="one joins"),
        pytest.param(lambda f: heard(say(A, 0.9, 2, models=("other",)), fleet=f), id="models"),
        pytest.param(lambda f: with_events(f, A, *[(Event.FAILED, 0.0)] * 3), id="one is ejected"),
    ],
)
def test_what_concerns_others_is_judged_whole(then: Callable[[Fleet], Fleet]) -> None:
    fleet = heard(say(A, 0.9, 1), say(B, 0.5, 1), say(C, 0.01, 1))
    assert followed(lined_up(fleet, 0.0), then(fleet), 0.5) is None


@pytest.mark.parametrize("now_s", [-0.1, 3.0, 100.0])
def test_so_it_is_once_time_changes_something_or_the_clock_is_set_back(now_s: float) -> None:
    fleet = heard(say(A, 0.9, 1), say(B, 0.5, 1))
    assert followed(lined_up(fleet, 0.0), fleet, now_s) is None


@pytest.mark.parametrize(
    ("score", "follows"), [(0.6, False), (0.9, True), (0.8, True), (0.05, False)]
)
def test_so_it_is_once_silent_ones_are_taken_for_something_else(
    score: float, *, follows: bool
) -> None:
    """They are taken for the worst, which B is; A takes its place, or does not."""
    fleet = heard(say(A, 0.9, 1), say(B, 0.7, 1), fleet=fleet_of([C]))
    before = lined_up(fleet, 0.0)
    assert before.silent_base == 0.7
    then = heard(say(A, score, 2), fleet=fleet, now_s=1.0)
    assert (followed(before, then, 1.0) is not None) is follows
    assert followed(before, heard(say(B, 0.75, 2), fleet=fleet, now_s=1.0), 1.0) is None


# It is the one made anew

WORDS = st.lists(
    st.tuples(
        st.integers(0, len(URLS) - 1),
        st.one_of(st.none(), st.floats(0.0, 1.0), st.floats(0.3, 1.0), st.floats(0.3, 1.0)),
        st.sampled_from([State.SERVING] * 6 + [State.RAMPING, State.DRAINING]),
        st.floats(0.0, 0.3),
        st.booleans(),
    ),
    max_size=60,
)
"""Whose, its score and state, how much later; and is a request sent there?"""


@settings(deadline=None, max_examples=150)
@given(st.integers(1, len(URLS)), st.sampled_from(WAYS), st.integers(0, 3), WORDS)
def test_whatever_is_heard_it_is_the_one_made_anew(
    size: int,
    rules: Rules,
    silent: int,
    words: list[tuple[int, float | None, State, float, bool]],
) -> None:
    urls, load, now_s = URLS[:size], InFlight(), 0.0
    scores = Random(size)
    fleet = fleet_of(urls)
    fleet = heard(*(say(url, scores.uniform(0.2, 1.0), 0) for url in urls[silent:]), fleet=fleet)
    candidates = line_up(fleet, None, SIZE, now_s, rules)
    odds, holds = Odds(candidates, load), list[Hold]()
    for seq, (index, score, state, later_s, sends) in enumerate(words, 1):
        url, now_s = urls[index % size], now_s + later_s
        if sends:
            holds.append(load.hold(url, 0.1, 100))
        elif holds:
            holds.pop(index % len(holds)).release()
        fleet = heard(say(url, score, seq, state=state), fleet=fleet, now_s=now_s)
        anew = line_up(fleet, None, SIZE, now_s, rules)
        then = follow(candidates, fleet, SIZE, now_s, rules)
        if then is None:
            candidates, odds = anew, Odds(anew, load)
            continue
        candidates, whom = then
        odds.follow(*then)
        assert whom == [url]
        assert (candidates.basis, candidates.seats) == (anew.basis, anew.seats)
        assert (candidates.at, candidates.busy) == (anew.at, anew.busy)
        assert (candidates.exponent, candidates.silent_base) == (anew.exponent, anew.silent_base)
        assert candidates.until_s <= anew.until_s
        assert candidates.judged.keys() == anew.judged.keys()
        of_new = Odds(anew, load)
        assert (odds.seats, odds.full) == (of_new.seats, of_new.full)
        assert (odds.scores, odds.weights) == (of_new.scores, of_new.weights)
        assert max(odds.weights, default=0.0) <= odds.field.top
        if odds.seats:
            places = range(len(odds.seats))
            mine, others = odds.expected(), of_new.expected()
            if mine.typical == others.typical:
                assert mine.rows(places) == others.rows(places)
            assert odds.late(places, [100] * len(places), 1.0) == of_new.late(
                places, [100] * len(places), 1.0
            )
            if odds.field.parts is not None:
                assert of_new.field.parts is not None
                assert odds.field.parts.bounds == of_new.field.parts.bounds


def test_nearly_every_word_is_followed() -> None:
    """Of replicas that serve and have room, all."""
    rng, fleet = Random(5), heard(*(say(url, 0.7, 0) for url in URLS))
    candidates = lined_up(fleet, 0.0, rules=WAYS[0])
    for seq in range(1, 100):
        said = say(rng.choice(URLS), rng.uniform(0.3, 1.0), seq)
        fleet = heard(said, fleet=fleet, now_s=seq * 0.01)
        candidates, _ = followed(candidates, fleet, seq * 0.01) or pytest.fail("must follow")


@pytest.mark.parametrize("others", [None, 1_000.0])
def test_what_is_typical_is_known_at_once_while_somebodys_speed_is_not_and_else_after_some_words(
    others: float | None,
) -> None:
    """Of two speeds the typical one is between."""
    fleet = heard(
        say(URLS[0], 0.7, 0, prefill_tokens_per_s=1_000.0),
        say(URLS[1], 0.7, 0, prefill_tokens_per_s=others),
    )
    candidates = lined_up(fleet, 0.0, rules=WAYS[0])
    odds = Odds(candidates, InFlight())
    seen = [odds.expected().typical.token_s]
    for seq in range(1, MOST_AT_ONCE + 1):
        fleet = heard(say(URLS[0], 0.7, seq, prefill_tokens_per_s=4_000.0), fleet=fleet)
        candidates, whom = followed(candidates, fleet, 0.1) or pytest.fail("must follow")
        odds.follow(candidates, whom)
        seen.append(odds.expected().typical.token_s)
    now = 1 / 4_000.0 if others is None else (1 / 1_000.0 + 1 / 4_000.0) / 2
    later = 1 if others is None else MOST_AT_ONCE
    assert seen == pytest.approx([1 / 1_000.0] * later + [now] * (len(seen) - later))


def test_a_replica_that_has_started_anew_knows_nothing_any_more() -> None:
    """By `least_wait`: what the other incarnation was sent is not in this one's cache."""
    fleet = heard(*(say(url, 0.7, 5) for url in URLS[:4]))
    prefixes, load, rng = Prefixes(100), InFlight(), Random(1)
    home = fleet.replicas[URLS[0]]
    prefixes.keep((1,), home)
    candidates = lined_up(fleet, 0.0, rules=WAYS[0])
    odds = Odds(candidates, load)
    need = Need(keys=(1,), prompt_tokens=5_000, shares=(1.0,))

    def chosen() -> str:
        decision = choose(odds, need, 0.0, rng, WAYS[0], Memory(1), prefixes)
        assert decision.replica is not None
        return decision.why

    assert chosen() == "affinity"
    fleet = heard(say(URLS[0], 0.7, 0, boot_id="next"), fleet=fleet, now_s=0.5)
    then = followed(candidates, fleet, 0.5)
    assert then is not None
    odds.follow(*then)
    assert chosen() == "wait"


def test_the_parts_of_a_large_field_weigh_what_is_known_now() -> None:
    """They are kept up by what snapshots say, not by what is sent."""
    rules = WAYS[1]
    fleet = heard(*(say(url, 0.5, 0) for url in URLS))
    candidates = lined_up(fleet, 0.0, rules=rules)
    odds = Odds(candidates, InFlight())
    for seq, url in enumerate(URLS[::3], 1):
        fleet = heard(say(url, 0.9, seq), fleet=fleet, now_s=0.1)
    then = followed(candidates, fleet, 0.1, rules)
    assert then is not None
    odds.follow(*then)
    anew = Odds(line_up(fleet, None, SIZE, 0.1, rules), InFlight())
    assert odds.field.parts is not None
    assert anew.field.parts is not None
    assert odds.field.parts.weights == pytest.approx(anew.field.parts.weights)


def test_another_order_of_replicas_is_another_company() -> None:
    """Who is whom is told by place."""
    fleet = heard(say(A, 0.9, 1), say(B, 0.5, 1))
    turned = MappingProxyType(dict(reversed(fleet.replicas.items())))
    other = replace(fleet, replicas=turned, keys=tuple(turned))
    assert followed(lined_up(fleet, 0.0), other, 0.0) is None
