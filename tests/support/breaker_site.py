"""Replicas that fail at once, on real sockets, before a router whose clock is moved by hand."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import aiohttp

from data_plane import Plane, data_plane
from hand_clock import Clock
from mission import BY_SCORE
from raw_client import Answer, request
from scripted_backend import (
    Backend,
    Call,
    Received,
    Script,
    answering,
    chunk,
    chunked_head,
    response,
)
from snapshots import document, fleet_with, snapshot
from ullage_router.config import Limits, RetryPolicy
from ullage_router.core.ask import Ask
from ullage_router.core.breaker import Breaker, BreakerPolicy
from ullage_router.core.detail import candidates
from ullage_router.core.fleet import Fleet, hear
from ullage_router.core.lineup import left_out
from ullage_router.core.policy import AffinityPolicy
from ullage_router.core.rules import Rules
from ullage_router.probe import Prober

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
