"""The look at sidecars, against aiohttp stand-ins."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random

import aiohttp
import pytest

from data_plane import eventually
from scripted_backend import Backend, Call, answering, refusing_url, response
from sidecar_stand_in import SidecarStandIn
from snapshots import document, snapshot
from ullage_router.core.ask import Ask
from ullage_router.core.decision import Why
from ullage_router.core.fleet import fleet_of
from ullage_router.core.lineup import Standing, stand
from ullage_router.core.rules import Rules
from ullage_router.feed import SidecarFeed
from ullage_router.pace import Pace
from ullage_router.replicas import replicas_page
from ullage_router.router import Router
from ullage_shared.feed import Poll
from ullage_shared.snapshot import SCHEMA, State, encode

A, B = "http://127.0.0.1:8001", "http://127.0.0.1:8002"
INTERVAL_S = 0.02


def new_router(*listed: str) -> Router:
    return Router(fleet_of(listed), Rules(), Random(1))


@asynccontextmanager
async def feeding(router: Router, *sidecars: str) -> AsyncIterator[list[SidecarFeed]]:
    """Run a feed per sidecar; when it ends, each must still be running."""
    async with aiohttp.ClientSession() as session:
        pace = Pace()
        feeds = [SidecarFeed(router, session, sidecar, pace) for sidecar in sidecars]
        tasks = [asyncio.ensure_future(feed.run(INTERVAL_S)) for feed in feeds]
        try:
            yield feeds
            assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_what_a_sidecar_publishes_is_in_the_table_by_the_next_look() -> None:
    router = new_router()
    async with (
        SidecarStandIn(document(snapshot(A, 0.9))) as sidecar,
        feeding(router, sidecar.url) as (feed,),
    ):
        await eventually(lambda: A in router.fleet.replicas)
        sidecar.published = document(snapshot(A, 0.2, seq=2), snapshot(B))
        await eventually(lambda: B in router.fleet.replicas)
        heard = router.fleet.replicas[A].snapshot
        assert heard is not None
        assert heard.capacity_score == 0.2
        assert feed.polls[Poll.NEW] >= 2
        assert feed.problem == ""


async def test_unchanged_renews_what_was_said_last() -> None:
    router = new_router()
    async with SidecarStandIn(document(snapshot(A))) as sidecar:
        sidecar.headers = {"ETag": '"1"'}
        async with feeding(router, sidecar.url) as (feed,):
            await eventually(lambda: feed.polls[Poll.NEW])
            received_s = router.fleet.replicas[A].received_s
            sidecar.status, sidecar.published = 304, b""
            await eventually(lambda: feed.polls[Poll.UNCHANGED])
            assert sidecar.etags[-1] == '"1"'
            assert router.fleet.replicas[A].received_s > received_s


async def test_unchanged_without_anything_to_compare_is_no_answer() -> None:
    router = new_router()
    async with SidecarStandIn(b"") as sidecar:
        sidecar.status = 304
        async with feeding(router, sidecar.url) as (feed,):
            await eventually(lambda: feed.polls[Poll.STATUS])
            assert "304" in feed.problem


async def test_after_rubbish_the_whole_document_is_asked_for() -> None:
    router = new_router()
    async with SidecarStandIn(document(snapshot(A))) as sidecar:
        sidecar.headers = {"ETag": '"1"'}
        async with feeding(router, sidecar.url) as (feed,):
            await eventually(lambda: feed.polls[Poll.NEW])
            sidecar.published = b"rubbish"
            await eventually(lambda: feed.polls[Poll.INVALID])
            looks = sidecar.looks
            await eventually(lambda: sidecar.looks > looks)
            assert sidecar.etags[-1] is None


async def test_a_document_of_several_packets_is_read_whole() -> None:
    router = new_router()
    many = [snapshot(f"http://10.0.0.{n}:8000") for n in range(40)]
    async with SidecarStandIn(document(*many)) as sidecar:
        sidecar.pieces_of_bytes = 5000
        async with feeding(router, sidecar.url) as (feed,):
            await eventually(lambda: sum(feed.polls.values()) > 1)
            assert feed.problem == ""
            assert len(router.fleet.replicas) == 40


async def test_a_document_without_end_does_not_fill_the_memory() -> None:
    router = new_router()
    async with (
        SidecarStandIn(b" " * 17_000_000) as sidecar,
        feeding(router, sidecar.url) as (feed,),
    ):
        await eventually(lambda: feed.polls)
        assert "larger than 16777216 bytes" in feed.problem


RUBBISH = {
    "nothing": b"",
    "not JSON": b"<html>",
    "a list": b"[]",
    "not UTF-8": b'{"schema": 1, "node": "\xff", "replicas": []}',
    "another schema": b'{"schema": 2, "node": "n", "replicas": []}',
    "no schema": b'{"node": "n", "replicas": []}',
    "no node": b'{"schema": 1, "replicas": []}',
    "replicas of another kind": b'{"schema": 1, "node": "n", "replicas": {}}',
    "nested without end": b'{"schema": 1, "node": "n", "more": ' + b"[" * 100_000,
    "cut off": encode(document(snapshot(A)))[:-10],
}


@pytest.mark.parametrize("rubbish", RUBBISH.values(), ids=RUBBISH.keys())
async def test_rubbish_changes_nothing_and_is_reported(rubbish: bytes) -> None:
    router = new_router()
    async with (
        SidecarStandIn(document(snapshot(A, 0.9))) as sidecar,
        feeding(router, sidecar.url) as (feed,),
    ):
        await eventually(lambda: feed.polls[Poll.NEW])
        said = router.fleet.replicas[A].snapshot
        sidecar.published = rubbish
        await eventually(lambda: feed.polls[Poll.INVALID])
        before = router.fleet
        await eventually(lambda: feed.polls[Poll.INVALID] >= 3)
        assert feed.problem
        assert router.fleet is before
        assert router.fleet.replicas[A].snapshot == said
        sidecar.published = document(snapshot(A, 0.1, seq=2))
        await eventually(lambda: feed.problem == "")


@pytest.mark.parametrize("status", [204, 301, 404, 500, 503])
async def test_another_status_changes_nothing_and_is_reported(status: int) -> None:
    router = new_router()
    async with SidecarStandIn(b"") as sidecar:
        sidecar.status = status
        async with feeding(router, sidecar.url) as (feed,):
            await eventually(lambda: feed.polls[Poll.STATUS] >= 2)
            assert feed.problem == f"/v1/snapshots answered {status}: is it a sidecar?"


@pytest.mark.parametrize("etag", [b'"a\x7fb"', b'"a\tb"', b'"\xe4"'])
async def test_an_etag_that_cannot_be_sent_back_ends_no_loop(etag: bytes) -> None:
    router = new_router()
    answer = response(encode(document(snapshot(A, 0.9))), headers=[(b"ETag", etag)])
    async with Backend(answering(answer)) as sidecar, feeding(router, sidecar.url) as (feed,):
        await eventually(lambda: feed.polls[Poll.NEW] >= 3)


@pytest.mark.parametrize("target", ["http://a..b/", "http://" + "x" * 70, "/elsewhere"])
async def test_a_redirect_is_not_followed(target: str) -> None:
    router = new_router()
    async with SidecarStandIn(b"") as sidecar:
        sidecar.status, sidecar.headers = 302, {"Location": target}
        async with feeding(router, sidecar.url) as (feed,):
            await eventually(lambda: feed.polls[Poll.STATUS] >= 2)


async def test_what_was_not_taken_in_is_asked_for_again_not_vouched_for() -> None:
    router = new_router()
    async with (
        SidecarStandIn(document(snapshot(A, 0.9, seq=10, state=State.DOWN))) as sidecar,
        feeding(router, sidecar.url) as (feed,),
    ):
        await eventually(lambda: feed.polls[Poll.NEW])
        sidecar.published = document(snapshot(A, 0.9, seq=5))
        await eventually(lambda: "seq 5 is older than 10" in feed.problem)
        seen = feed.polls[Poll.NEW]
        await eventually(lambda: feed.polls[Poll.NEW] > seen + 2)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "unheard-of"])
async def test_a_body_that_is_not_what_its_encoding_says_ends_no_loop(encoding: str) -> None:
    router = new_router()
    async with SidecarStandIn(b"not compressed at all") as sidecar:
        sidecar.headers = {"Content-Encoding": encoding}
        async with feeding(router, sidecar.url) as (feed,):
            await eventually(lambda: sum(feed.polls.values()) >= 2)
            assert feed.problem


@pytest.mark.parametrize(
    "said",
    [
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: nonsense://[\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: /v1/snapshots\r\nContent-Length: 0\r\n\r\n",
        b"",
    ],
)
async def test_a_sidecar_that_does_not_speak_http_ends_no_loop(said: bytes) -> None:
    async def script(call: Call) -> None:
        with suppress(asyncio.IncompleteReadError):  # The last one may be cut short by the end.
            await call.reader.readuntil(b"\r\n\r\n")
            await call.send(said)

    router = new_router()
    async with Backend(script) as sidecar, feeding(router, sidecar.url) as (feed,):
        await eventually(lambda: sum(feed.polls.values()) >= 2)
        assert feed.problem


async def test_a_sidecar_that_is_gone_removes_nothing() -> None:
    router = new_router()
    async with (
        SidecarStandIn(document(snapshot(A))) as sidecar,
        feeding(router, sidecar.url) as (feed,),
    ):
        await eventually(lambda: feed.polls[Poll.NEW])
        await sidecar.stop()
        await eventually(lambda: feed.polls[Poll.UNREACHABLE] >= 2)
        assert list(router.fleet.replicas) == [A]
        assert "refused" in feed.problem


async def test_a_sidecar_that_hangs_holds_up_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report 19, for sidecars."""
    monkeypatch.setattr("ullage_shared.feed._TIMEOUT_S", 0.5)
    router = new_router()
    async with (
        SidecarStandIn(document(snapshot(A))) as hangs,
        SidecarStandIn(document(snapshot(B))) as well,
    ):
        hangs.hangs = True
        async with feeding(router, hangs.url, well.url) as (hung, fine):
            await eventually(lambda: fine.polls[Poll.NEW] >= 5)
            assert not hung.polls
            await eventually(lambda: hung.polls[Poll.TIMEOUT])
            assert "0.5 s" in hung.problem


async def test_one_bad_replica_costs_only_itself() -> None:
    good = encode(document(snapshot(A, 0.9), snapshot(B, 0.5)))
    bad = good.replace(b'"capacity_score":0.5', b'"capacity_score":1.5')
    router = new_router()
    async with SidecarStandIn(bad) as sidecar, feeding(router, sidecar.url) as (feed,):
        await eventually(lambda: feed.polls[Poll.NEW])
        assert list(router.fleet.replicas) == [A]
        (fault,) = feed.faults
        assert "replicas[1]" in fault
        assert "capacity_score" in fault
        assert feed.problem == fault


async def test_a_missing_signal_is_an_error_that_names_it_not_a_zero() -> None:
    """Report 21: renamed or missing metrics read as 0."""
    renamed = encode(document(snapshot(A))).replace(b"capacity_score", b"headroom")
    router = new_router()
    async with SidecarStandIn(renamed) as sidecar, feeding(router, sidecar.url) as (feed,):
        await eventually(lambda: feed.polls[Poll.NEW])
        assert not router.fleet.replicas
        assert "capacity_score" in feed.problem


async def test_problems_are_logged_when_they_begin_and_end_not_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    router = new_router()
    with caplog.at_level("INFO", logger="ullage"):
        async with (
            SidecarStandIn(b"rubbish") as sidecar,
            feeding(router, sidecar.url) as (feed,),
        ):
            await eventually(lambda: feed.polls[Poll.INVALID] >= 3)
            sidecar.published = document()
            await eventually(lambda: feed.polls[Poll.NEW] >= 3)
    messages = [record.getMessage() for record in caplog.records]
    assert [m.split()[0] for m in messages] == ["sidecar_problem", "sidecar_well"]
    assert sidecar.url in messages[0]


async def test_a_replica_that_is_in_another_state_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    router = new_router()
    states = [{"stalled": True, "reason": "no step"}, {"state": State.HUNG}, {}, {"seq": 9}]
    with caplog.at_level("INFO", logger="ullage"):
        async with (
            SidecarStandIn(document(snapshot(A))) as sidecar,
            feeding(router, sidecar.url) as (feed,),
        ):
            await eventually(lambda: feed.polls[Poll.NEW])
            for seq, changes in enumerate(states, 2):
                count = feed.polls[Poll.NEW]
                sidecar.published = document(snapshot(A, **({"seq": seq} | changes)))
                await eventually(lambda count=count: feed.polls[Poll.NEW] > count + 1)
    told = [(r.levelname, r.getMessage()) for r in caplog.records if "_state" in r.getMessage()]
    begin = "replica_state replica=127.0.0.1:8001"
    assert told == [
        ("WARNING", f'{begin} was=serving now=stalled why="no step"'),
        ("WARNING", f"{begin} was=stalled now=hung"),
        ("INFO", f"{begin} was=hung now=serving"),
    ]


async def test_one_that_is_good_and_bad_by_turns_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    router = new_router()
    good, bad = document(snapshot(A)), b"{}"
    async with (
        SidecarStandIn(good) as sidecar,
        feeding(router, sidecar.url) as (feed,),
    ):
        with caplog.at_level("INFO", "ullage.router"):
            for turn in range(20):
                sidecar.published = bad if turn % 2 == 0 else good
                count = feed.polls.total()
                await eventually(lambda count=count: feed.polls.total() > count + 1)
    told = [record.message for record in caplog.records if "sidecar_" in record.message]
    assert len(told) <= 2


async def test_of_a_thousand_faults_a_few_are_told_and_none_at_length() -> None:
    router = new_router()
    faulty = document(*(snapshot("ftp:/" + "x" * 900, id=f"n/{n}") for n in range(1000)))
    async with (
        SidecarStandIn(faulty) as sidecar,
        feeding(router, sidecar.url) as (feed,),
    ):
        await eventually(lambda: len(feed.faults) > 0)
        assert feed.faults[-1] == "and 992 more"
        assert len("; ".join(feed.faults)) < 3000


async def test_when_all_sidecars_fall_silent_the_router_goes_by_its_own_counts() -> None:
    """Fail open: and `/replicas` says so."""
    clock_s = 100.0
    router = Router(fleet_of([A, B]), Rules(), Random(1), lambda: clock_s)
    published = document(snapshot(A, 0.9), snapshot(B, 0.8))
    async with SidecarStandIn(published) as sidecar, feeding(router, sidecar.url) as feeds:
        (feed,) = feeds
        pages = {sidecar.url: feed}
        await eventually(lambda: feed.polls[Poll.NEW])
        assert router.choose(Ask()).why is Why.WAIT
        assert replicas_page(router, pages, clock_s)["routing_by"] == "score"
        await sidecar.stop()
        await eventually(lambda: feed.polls[Poll.UNREACHABLE])
        clock_s += 60.0
        decision = router.choose(Ask())
        assert decision.replica is not None
        assert decision.why is Why.OWN_COUNTS
        page = replicas_page(router, pages, clock_s)
        assert page["routing_by"] == "own_counts"
        assert page["sidecars"][0]["problem"]


async def test_a_replica_that_its_sidecar_calls_down_gets_nothing() -> None:
    router = new_router(A)
    down = document(snapshot(A, None, state=State.DOWN, reason="no answer"))
    async with SidecarStandIn(down) as sidecar, feeding(router, sidecar.url):
        await eventually(lambda: router.fleet.replicas[A].snapshot)
        standing = stand(router.fleet.replicas[A], router.now_s(), router.rules.choose)
        assert standing is Standing.DOWN


async def test_an_unreachable_sidecar_says_why() -> None:
    router = new_router()
    async with feeding(router, refusing_url()) as (feed,):
        await eventually(lambda: feed.polls[Poll.UNREACHABLE])
        assert "refused" in feed.problem.lower()


def test_the_stand_in_speaks_the_schema_that_the_router_reads() -> None:
    assert document().schema == SCHEMA
