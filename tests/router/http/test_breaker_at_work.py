"""Replicas that fail at once look empty: on real sockets, what one costs, and how it comes back.

The router's clock is moved by hand; which replica a request draws is left to the dice, so that
what is asserted holds whatever they say.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import aiohttp
import pytest

from data_plane import Plane, data_plane, eventually
from hand_clock import Clock
from mission import BY_SCORE
from raw_client import Answer, CutError, request
from scripted_backend import (
    Backend,
    Call,
    Received,
    Script,
    answering,
    chunk,
    chunked_head,
    refusing_url,
    response,
    silent,
)
from snapshots import document, fleet_with, snapshot
from ullage_router.config import Limits, RetryPolicy
from ullage_router.core.ask import Ask
from ullage_router.core.breaker import Breaker, BreakerPolicy, Condition
from ullage_router.core.detail import candidates
from ullage_router.core.fleet import Fleet, fleet_of, hear
from ullage_router.core.lineup import left_out
from ullage_router.core.policy import AffinityPolicy
from ullage_router.core.rules import Rules
from ullage_router.probe import Prober

pytestmark = pytest.mark.slow

WELL = answering(response(b"well"))
ERRS = answering(response(b"{}", 500, b"Broken"))
ASK = request(body=b"{}")
START_S = 1_000.0
KEYLESS = AffinityPolicy(enabled=False)


@asynccontextmanager
async def plane_of(
    *backends: Backend,
    fleet: Fleet | None = None,
    limits: Limits = Limits(),  # noqa: B008 -- frozen
    affinity: AffinityPolicy = KEYLESS,
    **policy: float,
) -> AsyncIterator[tuple[Plane, Clock]]:
    """A plane and its clock. `policy`: of the breaker."""
    rules = Rules(BY_SCORE, affinity=affinity, breaker=BreakerPolicy(**policy))  # type: ignore[arg-type]
    urls = [backend.url for backend in backends]
    async with data_plane(*urls, fleet=fleet, limits=limits, rules=rules) as plane:
        plane.router.now_s = clock = Clock(START_S)
        plane.proxy.budget.policy = RetryPolicy(share=1.0, spare=1000)
        yield plane, clock


@asynccontextmanager
async def backends(*scripts: Script) -> AsyncIterator[list[Backend]]:
    """Several at once."""
    if not scripts:
        yield []
        return
    async with Backend(scripts[0]) as first, backends(*scripts[1:]) as others:
        yield [first, *others]


def breaker(plane: Plane, backend: Backend) -> Breaker:
    return plane.router.fleet.replicas[backend.url].breaker


def thrown(plane: Plane) -> frozenset[str]:
    """Who is ejected, and left out for it."""
    router = plane.router
    return left_out(router.fleet, router.now_s(), router.rules)[1]


async def asks(plane: Plane, clock: Clock, number: int, every_s: float = 0.0) -> list[Answer]:
    """Ask so often, one after the other, on one connection."""
    client = await plane.client()
    answers = []
    for _ in range(number):
        answers.append(await client.ask(ASK))
        clock.now_s += every_s
    return answers


def statuses(answers: Sequence[Answer]) -> dict[int, int]:
    seen = [answer.status for answer in answers]
    return {status: seen.count(status) for status in sorted(set(seen))}


async def resets(call: Call) -> None:
    await call.read_request()
    call.reset()


async def closes(call: Call) -> None:
    await call.read_request()


async def no_http(call: Call) -> None:
    await call.read_request()
    await call.send(b"SSH-2.0-OpenSSH_9.6\r\n")


async def breaks_off(call: Call) -> None:
    """Dies in the midst of an answer."""
    await call.read_request()
    await call.send(chunked_head() + chunk(b'data: {"id": 1}\n\n'))
    call.reset()


# Black holes


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


# The way back


class Mended:
    """A replica that errs until it is mended, and is asked for its health by a real prober."""

    def __init__(self) -> None:
        self.well = False
        self.probes = 0
        self.backend = Backend(answering(self._answer))

    def _answer(self, received: Received) -> bytes:
        self.probes += received.target == b"/health"
        return response(b"well") if self.well else response(b"{}", 500, b"Broken")

    @property
    def asked(self) -> int:
        return len(self.backend.requests) - self.probes


@asynccontextmanager
async def probing(plane: Plane) -> AsyncIterator[None]:
    router = plane.router
    async with aiohttp.ClientSession() as session:
        prober = Prober(session, router.probes_due, router.probed)
        running = asyncio.ensure_future(prober.run(look_s=0.002, timeout_s=0.5))
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def one_ejected(
    **policy: float,
) -> AsyncIterator[tuple[Plane, Clock, Mended, Callable[[], list[float]]]]:
    """Three equal replicas of which one has been ejected; and the odds of a draw now, sorted."""
    mended = Mended()
    async with mended.backend as bad, Backend(WELL) as one, Backend(WELL) as two:
        scores = dict.fromkeys([bad.url, one.url, two.url], 0.5)
        fleet = fleet_with(scores, now_s=START_S)
        async with plane_of(fleet=fleet, eject_s=5.0, return_s=10.0, **policy) as (plane, clock):

            def odds() -> list[float]:
                heard = document(*(snapshot(url, 0.5, seq=2) for url in scores))
                router = plane.router
                router.fleet, _ = hear(router.fleet, "http://sidecar:9400", heard, clock.now_s)
                return sorted(row.odds for row in candidates(router.explain(Ask())))

            while not thrown(plane):
                await asks(plane, clock, 1)
            assert mended.asked == 3
            async with probing(plane):
                yield plane, clock, mended, odds


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
