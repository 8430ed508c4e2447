"""Replicas that fail at once look empty: on real sockets, what one costs.

Which replica a request draws is left to the dice, so that what is asserted holds whatever they say.
"""

import pytest

from breaker_site import (
    ASK,
    ERRS,
    START_S,
    WELL,
    asks,
    breaker,
    breaks_off,
    closes,
    no_http,
    plane_of,
    resets,
    statuses,
    thrown,
)
from data_plane import eventually
from raw_client import CutError
from scripted_backend import (
    Backend,
    Script,
    refusing_url,
    silent,
)
from snapshots import fleet_with
from ullage_router.config import Limits
from ullage_router.core.breaker import Breaker, Condition
from ullage_router.core.fleet import fleet_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("scored", [True, False], ids=["by score", "by own counts"])
@pytest.mark.parametrize("eject_after", [1, 3])
async def test_one_that_errs_at_once_costs_eject_after_requests_and_gets_no_more(
    eject_after: int, scored: bool
) -> None:
    async with Backend(ERRS) as bad, Backend(WELL) as one, Backend(WELL) as two:
        urls = [backend.url for backend in (bad, one, two)]
        fleet = fleet_with(dict.fromkeys(urls, 0.5), now_s=START_S) if scored else fleet_of(urls)
        async with plane_of(fleet=fleet, eject_after=eject_after) as (plane, clock):
            answers = await asks(plane, clock, 90)
            assert statuses(answers) == {200: 90 - eject_after, 500: eject_after}
            assert len(bad.requests) == eject_after
            assert len(one.requests) + len(two.requests) == 90 - eject_after
            assert min(len(one.requests), len(two.requests)) > 0
            assert thrown(plane) == {bad.url}
            assert plane.router.tallies[bad.url].ejections == 1


FATAL: dict[str, tuple[Script, str]] = {
    "resets": (resets, "closed"),
    "closes": (closes, "closed"),
    "no HTTP": (no_http, "invalid"),
}


@pytest.mark.parametrize(("fault", "kind"), FATAL.values(), ids=FATAL.keys())
async def test_one_that_gives_no_answer_costs_no_request_and_three_second_tries(
    fault: Script, kind: str
) -> None:
    """Report 15: retry amplification. What goes out is the requests, and three more."""
    async with (
        Backend(fault) as bad,
        Backend(WELL) as one,
        Backend(WELL) as two,
        plane_of(bad, one, two) as (plane, clock),
    ):
        answers = await asks(plane, clock, 90, every_s=0.2)
        assert statuses(answers) == {200: 90}
        sent = [len(backend.requests) for backend in (bad, one, two)]
        assert (sent[0], sum(sent)) == (3, 93)
        assert plane.router.tallies[bad.url].failures == {kind: 3}
        assert plane.router.second_tries == 3


async def test_one_that_gave_no_answer_is_left_out_for_a_moment_before_it_is_ejected() -> None:
    async with (
        Backend(resets) as bad,
        Backend(WELL) as well,
        plane_of(bad, well, set_aside_s=1.0) as (plane, clock),
    ):
        for failures in (1, 2):
            while len(bad.requests) < failures:
                await asks(plane, clock, 1)
            await asks(plane, clock, 30)
            assert len(bad.requests) == failures
            assert breaker(plane, bad).condition is Condition.STRUCK
            clock.now_s += 1.0
        while len(bad.requests) < 3:
            await asks(plane, clock, 1)
        assert breaker(plane, bad).condition is Condition.EJECTED
        clock.now_s += 3_600.0  # Time alone lets it in no more.
        await asks(plane, clock, 30)
        assert len(bad.requests) == 3


async def test_a_refused_connection_counts_like_any_other_failure() -> None:
    dead = refusing_url()
    async with Backend(WELL) as one, Backend(WELL) as two:
        fleet = fleet_of([dead, one.url, two.url])
        async with plane_of(fleet=fleet) as (plane, clock):
            answers = await asks(plane, clock, 60, every_s=0.5)
            assert statuses(answers) == {200: 60}
            assert plane.router.tallies[dead].failures == {"connect": 3}
            assert thrown(plane) == {dead}


async def test_answers_that_break_off_midway_count_as_failures() -> None:
    async with (
        Backend(breaks_off) as bad,
        Backend(WELL) as one,
        Backend(WELL) as two,
        plane_of(bad, one, two) as (plane, clock),
    ):
        cut = 0
        for _ in range(60):
            client = await plane.client()
            try:
                await client.ask(ASK)
            except CutError:
                cut += 1
            clock.now_s += 0.5
        assert (cut, len(bad.requests)) == (3, 3)
        assert plane.router.tallies[bad.url].cut == 3
        assert thrown(plane) == {bad.url}


async def test_a_client_that_leaves_is_held_against_nobody() -> None:
    async with Backend(silent) as one, plane_of(one, eject_after=1) as (plane, _):
        for number in range(1, 4):
            client = await plane.client()
            await client.send(ASK)
            await eventually(lambda: one.connections == number)  # noqa: B023
            client.reset()
            await eventually(lambda: not plane.in_flight)
        assert breaker(plane, one) == Breaker()


async def test_a_hung_replica_is_ejected_and_nobody_waits_for_it_any_more() -> None:
    """Report 19: one hung backend stalls the others."""
    limits = Limits(first_byte_timeout_s=0.04)
    async with (
        Backend(silent) as hung,
        Backend(WELL) as one,
        Backend(WELL) as two,
        plane_of(hung, one, two, limits=limits) as (plane, clock),
    ):
        answers = await asks(plane, clock, 60, every_s=0.5)
        assert statuses(answers) == {200: 60}
        assert plane.router.tallies[hung.url].failures == {"timeout": 3}
        assert hung.connections == 3
        assert thrown(plane) == {hung.url}
