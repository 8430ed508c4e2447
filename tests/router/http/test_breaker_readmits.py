"""An ejected replica is probed, and comes back gradually; a dead one pins no key."""

import asyncio

import pytest

from breaker_site import START_S, asks, breaker, one_ejected, plane_of, thrown
from data_plane import eventually
from raw_client import request
from scripted_backend import (
    Backend,
    Call,
    response,
)
from snapshots import document, snapshot
from ullage_router.core.ask import Ask
from ullage_router.core.breaker import Breaker
from ullage_router.core.detail import candidates
from ullage_router.core.fleet import hear
from ullage_router.core.policy import AffinityPolicy

pytestmark = pytest.mark.slow


async def test_it_is_probed_once_every_eject_s_and_stays_out_as_long_as_it_errs() -> None:
    async with one_ejected() as (plane, clock, mended, odds):
        await asyncio.sleep(0.01)
        assert mended.probes == 0
        clock.now_s = START_S + 4.999
        await asyncio.sleep(0.01)
        assert mended.probes == 0
        clock.now_s = START_S + 5.0
        for probes in (1, 2, 3):
            await eventually(lambda: mended.probes == probes)  # noqa: B023
            await asyncio.sleep(0.01)
            assert mended.probes == probes
            clock.now_s += 5.0
        assert odds() == [0.5, 0.5]
        await asks(plane, clock, 30)
        assert mended.asked == 3


async def test_one_that_answers_its_probe_returns_gradually_from_a_tenth_to_its_whole_share() -> (
    None
):
    async with one_ejected() as (plane, clock, mended, odds):
        mended.well = True
        clock.now_s += 5.0
        await eventually(lambda: not thrown(plane))
        assert mended.probes == 1
        back_s = clock.now_s
        for after_s, share in ((0.0, 0.1), (2.0, 0.28), (5.0, 0.55), (9.0, 0.91), (10.0, 1.0)):
            clock.now_s = back_s + after_s
            assert odds()[0] == pytest.approx(share / (2.0 + share))
        await asks(plane, clock, 30)
        assert mended.asked > 3
        assert breaker(plane, mended.backend) == Breaker()


async def test_while_it_returns_it_gets_its_share_of_real_requests() -> None:
    """A tenth of a weight beside two whole ones: 1 in 21, within 4 σ."""
    async with one_ejected() as (plane, clock, mended, odds):
        mended.well = True
        clock.now_s += 5.0
        await eventually(lambda: not thrown(plane))
        assert odds()[0] == pytest.approx(1 / 21)
        await asks(plane, clock, 420)
        expected, sigma = 420 / 21, (420 * (1 / 21) * (20 / 21)) ** 0.5
        assert abs(mended.asked - 3 - expected) < 4 * sigma


async def test_a_row_of_500s_while_it_returns_ejects_it_again_and_for_twice_as_long() -> None:
    async with one_ejected() as (plane, clock, mended, odds):
        mended.well = True
        clock.now_s += 5.0
        await eventually(lambda: not thrown(plane))
        mended.well = False
        before = mended.asked
        while not thrown(plane):
            await asks(plane, clock, 1)
        assert mended.asked == before + 3
        assert plane.router.tallies[mended.backend.url].ejections == 2
        again_s, probes = clock.now_s, mended.probes
        clock.now_s = again_s + 9.999
        await asyncio.sleep(0.01)
        assert mended.probes == probes
        mended.well = True
        clock.now_s = again_s + 10.0
        await eventually(lambda: not thrown(plane))
        assert odds()[0] == pytest.approx(1 / 21)


async def test_one_that_has_started_anew_has_nothing_held_against_it() -> None:
    async with one_ejected() as (plane, clock, mended, _odds):
        url, router = mended.backend.url, plane.router
        again = document(snapshot(url, 0.5, boot_id="boot-2", seq=1))
        router.fleet, faults = hear(router.fleet, "http://sidecar-2:9400", again, START_S + 3.1)
        assert not faults
        assert not thrown(plane)
        assert breaker(plane, mended.backend) == Breaker()
        assert [row.odds for row in candidates(router.explain(Ask()))].count(
            pytest.approx(1 / 3)
        ) == 3
        mended.well = True
        await asks(plane, clock, 60)
        assert mended.asked > 3
        assert mended.probes == 0


async def test_the_same_start_heard_again_clears_nothing() -> None:
    async with one_ejected() as (plane, _, mended, odds):
        before = breaker(plane, mended.backend)
        assert odds() == [0.5, 0.5]
        assert breaker(plane, mended.backend) is before


# Keys


class Mortal:
    """A replica that answers until it is dead; then it errs, or resets each connection."""

    def __init__(self, *, errs: bool) -> None:
        self.dead = False
        self._errs = errs
        self.backend = Backend(self._script)

    async def _script(self, call: Call) -> None:
        while True:
            await call.read_request()
            if not self.dead:
                await call.send(response(b"well"))
            elif self._errs:
                await call.send(response(b"{}", 500, b"Broken"))
            else:
                call.reset()
                return


@pytest.mark.parametrize("errs", [False, True], ids=["resets", "errs"])
async def test_affinity_does_not_pin_a_dead_replica(errs: bool) -> None:
    """Report 11: affinity pins a dead replica. A reset costs no request, an error three."""
    mortals = [Mortal(errs=errs) for _ in range(3)]
    one, two, three = (mortal.backend for mortal in mortals)
    async with (
        one,
        two,
        three,
        plane_of(one, two, three, affinity=AffinityPolicy()) as (plane, clock),
    ):
        keyed = request(body=b"{}", headers=[(b"x-ullage-cache-key", b"talk")])
        client = await plane.client()
        assert [(await client.ask(keyed)).status for _ in range(5)] == [200] * 5
        (home,) = (mortal for mortal in mortals if mortal.backend.requests)
        home.dead = True
        answers = []
        for _ in range(20):
            answers.append((await client.ask(keyed)).status)
            clock.now_s += 0.1
        assert answers == [500] * 3 + [200] * 17 if errs else [200] * 20
        (new,) = (m for m in mortals if m is not home and m.backend.requests)
        assert len(new.backend.requests) == answers.count(200)
        assert plane.router.recent[-1].decision.why == "affinity"
