"""What is no failure of a replica, and that never the whole fleet is ejected."""

import pytest

from breaker_site import ERRS, WELL, asks, backends, breaker, plane_of, statuses, thrown
from raw_client import request
from scripted_backend import (
    Backend,
    Received,
    answering,
    response,
)
from ullage_router.core.ask import Ask
from ullage_router.core.breaker import Breaker, Condition
from ullage_router.core.detail import candidates

pytestmark = pytest.mark.slow


# What is no failure


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 499, 501, 505])
async def test_an_answer_that_is_not_the_replicas_fault_never_ejects(status: int) -> None:
    """Report 16: 4xx trips the breaker."""
    refuses = answering(response(b"{}", status, b"Said", [(b"Retry-After", b"7")]))
    async with (
        Backend(refuses) as one,
        Backend(refuses) as two,
        plane_of(one, two, eject_after=1) as (plane, clock),
    ):
        assert statuses(await asks(plane, clock, 30)) == {status: 30}
        assert (breaker(plane, one), breaker(plane, two)) == (Breaker(), Breaker())
        # Report 15, too: no retry on a 4xx.
        assert len(one.requests) + len(two.requests) == 30
        assert min(len(one.requests), len(two.requests)) > 0


async def test_no_room_never_ejects_and_clears_by_itself() -> None:
    """Report 9: "overloaded" never clears."""
    full = True

    def answer(_: Received) -> bytes:
        return response(b"{}", 503, b"Busy") if full else response(b"well")

    async with (
        Backend(answering(answer)) as busy,
        Backend(WELL) as well,
        plane_of(busy, well, eject_after=1, set_aside_s=1.0) as (plane, clock),
    ):
        assert statuses(await asks(plane, clock, 40, every_s=0.5)) == {200: 40}
        said = len(busy.requests)
        assert said >= 5  # Of 20 moments at which it was not set aside.
        assert plane.router.tallies[busy.url].failures == {"full": said}
        assert breaker(plane, busy).failures == 0
        assert not thrown(plane)
        full = False
        clock.now_s += 1.0
        await asks(plane, clock, 40)
        assert len(busy.requests) >= said + 5
        assert breaker(plane, busy) == Breaker()


async def test_no_room_between_failures_neither_adds_to_them_nor_ends_their_run() -> None:
    said = iter([500, 503, 500, 503, 503, 500])

    def answer(_: Received) -> bytes:
        return response(b"{}", next(said), b"Said")

    async with Backend(answering(answer)) as odd, plane_of(odd) as (plane, clock):
        for failures in (1, 1, 2, 2, 2):
            await asks(plane, clock, 1, every_s=2.0)
            assert breaker(plane, odd).failures == failures
        await asks(plane, clock, 1)
        assert breaker(plane, odd).condition is Condition.EJECTED


async def test_one_good_answer_ends_a_run_of_failures() -> None:
    said = iter([500, 500, 200] * 5)

    def answer(_: Received) -> bytes:
        return response(b"{}", next(said), b"Said")

    async with Backend(answering(answer)) as odd, plane_of(odd) as (plane, clock):
        assert statuses(await asks(plane, clock, 15)) == {200: 5, 500: 10}
        assert breaker(plane, odd) == Breaker()


# Never the whole fleet


@pytest.mark.parametrize(
    ("replicas", "share", "out"), [(1, 0.5, 0), (2, 0.5, 1), (3, 0.5, 1), (4, 0.5, 2), (4, 0.0, 0)]
)
async def test_what_fails_as_a_whole_is_not_switched_off(
    replicas: int, share: float, out: int
) -> None:
    async with (
        backends(*[ERRS] * replicas) as all_,
        plane_of(*all_, max_ejected_share=share, eject_after=1) as (plane, clock),
    ):
        assert statuses(await asks(plane, clock, 60, every_s=0.01)) == {500: 60}
        ejected = [breaker(plane, b).condition is Condition.EJECTED for b in all_]
        assert all(ejected)
        assert len(thrown(plane)) == out
        assert all(len(backend.requests) > 0 for backend in all_)  # They change places.


async def test_more_than_half_failing_still_leaves_the_sound_one_most_requests() -> None:
    """Of three, two err: one is out, the other is let in with a tenth of its weight."""
    async with (
        Backend(ERRS) as bad,
        Backend(ERRS) as worse,
        Backend(WELL) as well,
        plane_of(bad, worse, well) as (plane, clock),
    ):
        await asks(plane, clock, 60, every_s=0.01)
        assert len(thrown(plane)) == 1
        told = candidates(plane.router.explain(Ask()))
        assert sorted(row.odds for row in told) == pytest.approx([0.1 / 1.1, 1.0 / 1.1])


async def test_a_poisonous_request_does_not_take_the_fleet_out() -> None:
    """It errs wherever it goes; the others' requests are all answered."""

    def answer(received: Received) -> bytes:
        poison = b"poison" in received.body
        return response(b"{}", 500 if poison else 200, b"Said")

    script = answering(answer)
    async with (
        Backend(script) as one,
        Backend(script) as two,
        Backend(script) as three,
        plane_of(one, two, three) as (plane, clock),
    ):
        client = await plane.client()
        most = 0
        for number in range(90):
            poison = number % 3 > 0
            said = await client.ask(request(body=b'{"poison": 1}' if poison else b"{}"))
            assert said.status == (500 if poison else 200)
            clock.now_s += 0.05
            most = max(most, len(thrown(plane)))
        assert most == 1
        assert len(one.requests) + len(two.requests) + len(three.requests) == 90
