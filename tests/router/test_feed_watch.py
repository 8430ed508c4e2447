"""Watching sidecars, against scripts that push exactly what they are told to."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import aiohttp
import pytest

from data_plane import eventually
from scripted_backend import Backend, Call, Received, answering, chunk, chunked_head, response
from serving import serving
from sidecar_stand_in import SidecarStandIn
from snapshots import document, snapshot
from ullage_router.config import Config
from ullage_router.core.fleet import fleet_of
from ullage_router.core.rules import Rules
from ullage_router.feed import SidecarFeed
from ullage_router.pace import Pace
from ullage_router.router import Router
from ullage_shared import peer
from ullage_shared.feed import Poll
from ullage_shared.snapshot import INTERVAL_HEADER, LINES_TYPE, State, encode

A, B = "http://127.0.0.1:8001", "http://127.0.0.1:8002"
HEAD = chunked_head([(b"Content-Type", LINES_TYPE.encode())])
SHORT_S, LONG_S = 0.02, 60.0


def line(score: float = 0.5, seq: int = 1, **changes: object) -> bytes:
    """A document about A, as it is pushed."""
    return encode(document(snapshot(A, score, seq=seq, **changes))) + b"\n"


@asynccontextmanager
async def watching(
    script: Callable[[Call], object], interval_s: float = LONG_S
) -> AsyncIterator[tuple[Router, SidecarFeed, Backend]]:
    """A feed that looks at a scripted sidecar; when it ends it must still be running."""
    router = Router(fleet_of([]), Rules(), Random(1))
    async with Backend(script) as sidecar, aiohttp.ClientSession() as session:
        feed = SidecarFeed(router, session, sidecar.url, Pace())
        task = asyncio.ensure_future(feed.run(interval_s))
        try:
            yield router, feed, sidecar
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def pushing(*texts: bytes | float) -> Callable[[Call], object]:
    """A script: push these texts, in chunks of their own, with pauses between; then hold on."""

    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(HEAD)
        for text in texts:
            await (asyncio.sleep(text) if isinstance(text, float) else call.send(chunk(text)))
        await call.gone()

    return script


def score_of(router: Router, url: str = A) -> float | None:
    replica = router.fleet.replicas.get(url)
    return replica.snapshot.capacity_score if replica and replica.snapshot else None


async def test_what_is_pushed_is_in_the_table_at_once_over_one_connection() -> None:
    async with watching(pushing(line(0.9), 0.05, line(0.2, seq=2))) as (router, feed, sidecar):
        await eventually(lambda: score_of(router) == 0.2, within_s=1.0)
        assert feed.watching
        assert feed.polls == {Poll.NEW: 2}
        assert (sidecar.connections, feed.problem) == (1, "")


@pytest.mark.parametrize(("interval_s", "asked"), [(0.5, b"500"), (0.02, b"20"), (60.0, b"60000")])
async def test_the_routers_interval_is_what_is_asked_for(interval_s: float, asked: bytes) -> None:
    async with watching(pushing(line()), interval_s) as (_, feed, sidecar):
        await eventually(lambda: feed.polls)
        (request,) = sidecar.requests
        target, _, query = request.target.partition(b"?")
        assert target == b"/v1/snapshots"
        assert [pair.rstrip(b"=") for pair in query.split(b"&")] == [
            b"watch",
            b"interval_ms=" + asked,
        ]


async def test_an_empty_line_vouches_for_the_document_before() -> None:
    async with watching(pushing(line(0.9), 0.03, b"\n")) as (router, feed, _):
        await eventually(lambda: feed.polls[Poll.NEW])
        received_s = router.fleet.replicas[A].received_s
        await eventually(lambda: feed.polls[Poll.UNCHANGED])
        assert router.fleet.replicas[A].received_s > received_s
        assert score_of(router) == 0.9


async def test_an_empty_line_vouches_for_nothing_that_was_not_taken_in() -> None:
    """The document is heard again in its place, until it is."""

    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(HEAD + chunk(line(0.9, seq=10)))
        await asyncio.sleep(0.05)
        await call.send(chunk(line(0.1, seq=5)))
        await asyncio.sleep(0.05)
        await call.send(chunk(b"\n"))
        await call.gone()

    async with watching(script) as (router, feed, _):
        await eventually(lambda: feed.polls[Poll.NEW] == 2)
        received_s = router.fleet.replicas[A].received_s
        await eventually(lambda: feed.polls[Poll.UNCHANGED])
        assert "seq 5 is older than 10" in feed.problem
        assert router.fleet.replicas[A].received_s == received_s


async def test_a_watch_that_begins_with_an_empty_line_is_rubbish() -> None:
    async with watching(pushing(b"\n"), SHORT_S) as (_, feed, _):
        await eventually(lambda: feed.polls[Poll.INVALID] >= 2)
        assert feed.problem == "its watch begins with an empty line"


async def test_of_lines_that_come_together_the_newest_counts() -> None:
    many = b"".join(line(seq / 100.0, seq=seq) for seq in range(1, 50)) + b"\n\n"
    async with watching(pushing(line(0.9, seq=0), 0.03, many)) as (router, feed, _):
        await eventually(lambda: score_of(router) == 0.49)
        assert feed.polls == {Poll.NEW: 2}


async def test_a_line_in_pieces_is_one_line() -> None:
    text = line(0.3)
    pieces = [part for at in range(0, len(text), 50) for part in (text[at : at + 50], 0.001)]
    async with watching(pushing(*pieces)) as (router, feed, _):
        await eventually(lambda: score_of(router) == 0.3)
        assert feed.polls == {Poll.NEW: 1}


@pytest.mark.parametrize("how", ["reset", "end", "close"])
async def test_a_cut_in_the_midst_of_a_line_takes_in_no_half_of_it_and_loses_nothing(
    how: str,
) -> None:
    async def script(call: Call) -> None:
        await call.read_request()
        if call.number > 1:
            await call.send(HEAD + chunk(line(0.4, seq=3)))
            await call.gone()
        await call.send(HEAD + chunk(line(0.9)))
        await asyncio.sleep(0.05)
        await call.send(chunk(line(0.2, seq=2)[:-40]))
        await asyncio.sleep(0.02)
        if how == "end":
            await call.send(b"0\r\n\r\n")
        if how == "reset":
            call.reset()

    async with watching(script, SHORT_S) as (router, feed, _):
        seen = set()

        def whole() -> bool:
            seen.add(score_of(router))
            return score_of(router) == 0.4

        await eventually(whole)
        assert seen <= {None, 0.9, 0.4}
        assert feed.polls[Poll.INVALID] == 0
        assert feed.polls[Poll.UNREACHABLE] == (how != "end")


@pytest.mark.parametrize("rubbish", [b"rubbish\n", b"{}\n", b"\xff\n", b'{"schema": 2}\n'])
async def test_rubbish_ends_a_watch_and_another_is_asked_for(rubbish: bytes) -> None:
    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(HEAD + chunk(line(0.9)))
        await asyncio.sleep(0.05)
        await call.send(chunk(rubbish + b"\n") if call.number == 1 else chunk(line(0.4, seq=2)))
        await call.gone()

    async with watching(script, SHORT_S) as (router, feed, sidecar):
        await eventually(lambda: feed.polls[Poll.INVALID])
        assert score_of(router) == 0.9
        await eventually(lambda: score_of(router) == 0.4)
        assert (sidecar.connections, feed.problem) == (2, "")
        assert feed.polls[Poll.UNCHANGED] == feed.polls[Poll.TIMEOUT] == 0


async def test_a_line_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "MOST_BYTES", 100_000)
    texts = [line(0.9), *[b" " * 30_000] * 4]
    async with watching(pushing(*texts), SHORT_S) as (router, feed, _):
        await eventually(lambda: feed.polls[Poll.INVALID])
        assert feed.problem == "a line of its answer is larger than 100000 bytes"
        assert score_of(router) == 0.9


async def test_a_watch_that_falls_silent_is_asked_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ullage_shared.feed._TIMEOUT_S", 0.2)
    async with watching(pushing(line(0.9)), SHORT_S) as (router, feed, sidecar):
        await eventually(lambda: feed.polls[Poll.TIMEOUT])
        await eventually(lambda: sidecar.connections >= 2)
        assert score_of(router) == 0.9


async def test_a_long_interval_is_waited_for_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ullage_shared.feed._TIMEOUT_S", 0.1)
    texts = [line(0.9), 0.25, b"\n", 0.25, b"\n"]
    async with watching(pushing(*texts), 0.1) as (_, feed, sidecar):
        await eventually(lambda: feed.polls[Poll.UNCHANGED] == 2)
        assert sidecar.connections == 1
        await eventually(lambda: feed.problem == "no line within 0.3 s")


@pytest.mark.parametrize(
    ("told", "waited"), [(b"200", "0.6"), (b"1", "0.3"), (b"soon", "0.3"), (b"999999999", "0.3")]
)
async def test_who_says_that_its_lines_come_less_often_is_waited_for_so_much_longer(
    monkeypatch: pytest.MonkeyPatch, told: bytes, waited: str
) -> None:
    monkeypatch.setattr("ullage_shared.feed._TIMEOUT_S", 0.1)
    head = chunked_head([(b"Content-Type", LINES_TYPE.encode()), (INTERVAL_HEADER.encode(), told)])

    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(head + chunk(line(0.9)))
        await call.gone()

    async with watching(script, 0.1) as (_, feed, _):
        await eventually(lambda: feed.problem == f"no line within {waited} s")


async def test_those_who_wait_to_be_asked_lose_none_of_their_time_and_who_watches_keeps_none_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand at once would all take too long."""
    monkeypatch.setattr("ullage_shared.feed._TIMEOUT_S", 0.2)

    async def slow(call: Call) -> None:
        await call.read_request()
        await asyncio.sleep(0.15)
        await call.send(HEAD + chunk(line(0.9)))
        await call.gone()

    router, pace, at_once = Router(fleet_of([]), Rules(), Random(1)), Pace(), asyncio.Semaphore()
    async with Backend(slow) as sidecar, aiohttp.ClientSession() as session:
        feeds = [SidecarFeed(router, session, sidecar.url, pace, at_once=at_once) for _ in range(4)]
        tasks = [asyncio.ensure_future(feed.run(LONG_S)) for feed in feeds]
        await eventually(lambda: all(feed.watching for feed in feeds))
        assert [feed.polls[Poll.TIMEOUT] for feed in feeds] == [0, 0, 0, 0]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_watch_that_is_not_heard_is_lost_once_and_others_may_speak_then() -> None:
    """Two tell of A: see `core/test_two_sources.py`."""
    async with (
        SidecarStandIn(document(snapshot(A, 0.9))) as dies,
        Backend(pushing(line(0.9), 0.3, line(0.5, seq=2))) as lives,
        aiohttp.ClientSession() as session,
    ):
        router, pace = Router(fleet_of([]), Rules(), Random(1)), Pace()
        feeds = [SidecarFeed(router, session, each.url, pace) for each in (dies, lives)]
        tasks = [asyncio.ensure_future(feeds[0].run(SHORT_S))]
        await eventually(lambda: score_of(router))
        tasks.append(asyncio.ensure_future(feeds[1].run(LONG_S)))
        await eventually(lambda: feeds[1].polls)
        assert router.fleet.replicas[A].source == dies.url
        await dies.stop()
        await eventually(lambda: score_of(router) == 0.5)
        assert router.fleet.replicas[A].source == lives.url
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_sidecar_that_ends_its_watch_is_asked_again_and_has_done_nothing_wrong(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(HEAD + chunk(line(0.9, seq=call.number)) + b"0\r\n\r\n")

    async with watching(script, SHORT_S) as (_, feed, sidecar):
        await eventually(lambda: sidecar.connections >= 3)
        assert feed.polls.keys() == {Poll.NEW}
        assert not [r for r in caplog.records if r.levelname != "INFO"]


async def test_an_old_sidecar_is_polled() -> None:
    answer = response(line(0.9), headers=[(b"Content-Type", b"application/json")])
    async with watching(answering(answer), SHORT_S) as (router, feed, sidecar):
        await eventually(lambda: feed.polls[Poll.NEW] >= 3)
        assert score_of(router) == 0.9
        assert (feed.problem, feed.watching) == ("", False)
        assert sidecar.connections == 1


async def test_an_old_sidecar_that_is_replaced_by_a_new_one_is_watched() -> None:
    old = response(line(0.9), headers=[(b"Content-Type", b"application/json")])

    async def script(call: Call) -> None:
        for _ in range(3):
            await call.read_request()
            await call.send(old)
        await pushing(line(0.4, seq=2))(call)

    async with watching(script, SHORT_S) as (router, feed, _):
        await eventually(lambda: score_of(router) == 0.4)
        assert feed.watching


@pytest.mark.parametrize("status", [400, 503])
async def test_who_refuses_a_watch_is_polled_and_asked_for_none_for_a_while(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: Received) -> bytes:
        return response(b"no", status) if b"watch" in request.target else response(line(0.9))

    monkeypatch.setattr("ullage_shared.feed._REFUSED_FOR_S", 0.2)
    async with watching(answering(answer), SHORT_S) as (router, feed, sidecar):
        await eventually(lambda: feed.polls[Poll.NEW] >= 4)
        assert score_of(router) == 0.9
        assert feed.polls.keys() == {Poll.NEW}
        assert sum(b"watch" in request.target for request in sidecar.requests) == 1
        await eventually(lambda: sum(b"watch" in r.target for r in sidecar.requests) == 2)


async def test_a_drain_that_is_pushed_keeps_requests_away_at_once() -> None:
    def drained() -> bytes:
        return line(0.0, seq=2, state=State.DRAINING)

    async with watching(pushing(line(0.9), 0.05, drained())) as (router, _, _):
        await eventually(lambda: router.breathing(None) == 1)
        await eventually(lambda: router.breathing(None) == 0, within_s=0.5)


async def test_a_sidecar_that_is_removed_is_watched_no_more() -> None:
    async with Backend(pushing(line(0.9))) as leaves, Backend(pushing(line(0.4))) as stays:
        config = Config(sidecars=(leaves.url, stays.url))
        async with serving(config) as running:
            assert (leaves.open, stays.open) == (1, 1)
            page = await running.page("/replicas")
            assert [sidecar["watched"] for sidecar in page["sidecars"]] == [True, True]
            running.service.reload(lambda: Config(sidecars=(stays.url,)))
            await eventually(lambda: leaves.open == 0, within_s=0.5)
            assert stays.open == 1
