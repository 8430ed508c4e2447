"""Replicas that fail: what is tried again, where, and what the client gets to know."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from time import perf_counter

import pytest

from data_plane import BY_LOAD, Plane, data_plane, eventually
from raw_client import Answer, CutError, request
from scripted_backend import (
    LAST_CHUNK,
    Backend,
    Call,
    Script,
    answering,
    black_hole,
    chunk,
    chunked_head,
    head,
    refusing_url,
    response,
    silent,
)
from snapshots import document, fleet_with, snapshot
from ullage_router.config import Limits
from ullage_router.core.breaker import BreakerPolicy, struck
from ullage_router.core.fleet import fleet_of, hear
from ullage_router.core.queue import QueuePolicy
from ullage_router.http import exchange
from ullage_router.http.pool import Pool
from ullage_router.http.upstream import Upstream
from ullage_shared.address import Address
from ullage_shared.snapshot import Snapshot

ASK = request(body=b'{"prompt": "x"}')
WELL = answering(response(b"well"))


async def dies(call: Call) -> None:
    """Takes the request, and ends the connection in good order."""
    await call.read_request()


async def resets(call: Call) -> None:
    await call.read_request()
    call.reset()


def dies_after(part: bytes) -> Script:
    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(part)

    return script


async def ask(plane: Plane) -> Answer:
    return await (await plane.client()).ask(ASK)


async def ask_until_tried(plane: Plane, url: str) -> list[Answer]:
    """Ask until the dice have chosen `url`."""
    answers = []
    while url not in plane.router.tallies or not plane.router.tallies[url].dispatched:
        answers.append(await ask(plane))
        assert len(answers) < 100
    return answers


async def test_a_replica_that_refuses_connections_is_passed_over_and_set_aside() -> None:
    dead = refusing_url()
    async with Backend(WELL) as well, data_plane(dead, well.url) as plane:
        answers = await ask_until_tried(plane, dead)
        assert {a.body for a in answers} == {b"well"}
        tally = plane.router.tallies[dead]
        assert (tally.dispatched, tally.failures) == (1, {"connect": 1})
        assert struck(plane.router.fleet.replicas[dead].breaker, plane.router.now_s())
        for _ in range(20):
            assert (await ask(plane)).body == b"well"
        assert tally.dispatched == 1


async def test_a_replica_set_aside_is_asked_again_after_a_while() -> None:
    """Report 9: what must clear, clears. SMG: a worker restarted at its address must rejoin."""
    url = refusing_url()
    rules = BY_LOAD._replace(breaker=BreakerPolicy(set_aside_s=0.05))
    async with Backend(WELL) as well, data_plane(url, well.url, rules=rules) as plane:
        await ask_until_tried(plane, url)
        async with Backend(answering(response(b"back")), int(url.rpartition(":")[2])) as back:
            await asyncio.sleep(0.06)
            while not back.requests:
                assert (await ask(plane)).status == 200


FAULTS: dict[str, tuple[Script, str]] = {
    "closes": (dies, "closed"),
    "resets": (resets, "closed"),
    "closes within the head": (dies_after(b"HTTP/1.1 200 OK\r\nContent-Le"), "closed"),
    "closes after an interim response": (dies_after(head(100, b"Continue", [])), "closed"),
    "is not HTTP": (dies_after(b"SSH-2.0-OpenSSH_9\r\n"), "invalid"),
    "says two lengths": (
        dies_after(head(200, b"OK", [(b"Content-Length", b"1"), (b"Content-Length", b"2")])),
        "invalid",
    ),
    "says more than it announced": (dies_after(response(b"ok") + b"excess"), "invalid"),
}


@pytest.mark.parametrize(("fault", "kind"), FAULTS.values(), ids=FAULTS.keys())
async def test_a_replica_that_fails_before_its_first_byte_is_passed_over(
    fault: Script, kind: str
) -> None:
    async with (
        Backend(fault) as bad,
        Backend(WELL) as well,
        data_plane(bad.url, well.url) as plane,
    ):
        answers = await ask_until_tried(plane, bad.url)
        assert {a.body for a in answers} == {b"well"}
        assert plane.router.tallies[bad.url].failures == {kind: 1}
        assert plane.router.fleet.replicas[bad.url].breaker.failures == 1
        assert well.requests[-1].body == bad.requests[0].body if bad.requests else True


@pytest.mark.parametrize(("fault", "kind"), FAULTS.values(), ids=FAULTS.keys())
async def test_the_only_replica_failing_is_a_502_that_names_it(fault: Script, kind: str) -> None:
    async with Backend(fault) as bad:
        named = document(snapshot(bad.url, 0.9, id="gpu-03/engine"))
        fleet, _ = hear(fleet_of([]), "http://sidecar:9400", named, 1e9)
        async with data_plane(fleet=fleet) as plane:
            client = await plane.client()
            for _ in range(2):
                answer = await client.ask(ASK)
                assert answer.status == 502
                assert answer.error["code"] == "replica_failed"
                assert answer.error["type"] == "server_error"
                assert "gpu-03/engine" in answer.error["message"]
                assert answer.one(b"x-request-id") is not None
            assert bad.connections == 2
            assert plane.router.refusals == {"replica_failed": 2}


async def test_a_third_replica_is_never_tried() -> None:
    """Report 15: retry amplification."""
    async with (
        Backend(dies) as a,
        Backend(dies) as b,
        Backend(dies) as c,
        data_plane(a.url, b.url, c.url) as plane,
    ):
        answer = await ask(plane)
        assert (answer.status, answer.error["code"]) == (502, "replica_failed")
        assert sorted([a.connections, b.connections, c.connections]) == [0, 1, 1]
        assert [d.second_try for d in plane.router.recent] == [False, True]


def ranks_of(url: str, count: int, score: float) -> list[Snapshot]:
    return [snapshot(url, score, id=f"{url}:{rank}", dp_rank=rank) for rank in range(count)]


@pytest.mark.parametrize("dead", [None, dies], ids=["refuses", "closes"])
async def test_the_other_ranks_of_a_server_that_is_gone_are_not_tried_instead(
    dead: Script | None,
) -> None:
    async with Backend(dead or WELL) as gone, Backend(WELL) as well:
        gone_url = gone.url if dead else refusing_url()
        ranks = document(*ranks_of(gone_url, 8, 1.0), *ranks_of(well.url, 1, 0.3))
        fleet, _ = hear(fleet_of([]), "http://sidecar:9400", ranks, 1e9)
        async with data_plane(fleet=fleet) as plane:
            answers = [await ask(plane) for _ in range(20)]
            assert {a.body for a in answers} == {b"well"}
            assert plane.router.second_tries >= 4


async def test_another_rank_is_tried_where_there_is_no_other_server() -> None:
    async with Backend(dies) as lone:
        ranks = document(*ranks_of(lone.url, 2, 1.0))
        fleet, _ = hear(fleet_of([]), "http://sidecar:9400", ranks, 1e9)
        async with data_plane(fleet=fleet) as plane:
            assert (await ask(plane)).status == 502
            assert lone.connections == 2


async def test_a_replica_that_refuses_and_no_other_is_asked_again_next_time() -> None:
    async with data_plane(refusing_url()) as plane:
        for _ in range(2):
            answer = await ask(plane)
            assert answer.status == 502
            assert "refused" in answer.error["message"]


async def test_failing_while_the_others_are_full_is_a_503() -> None:
    async with Backend(dies) as bad, Backend(WELL) as full:
        fleet = fleet_with({bad.url: 0.9, full.url: 0.1}, now_s=1e9)
        async with data_plane(fleet=fleet) as plane:
            answer = await ask(plane)
            assert (answer.status, answer.error["code"]) == (503, "no_capacity")
            assert full.connections == 0


@pytest.mark.parametrize("end", [Call.close, Call.reset])
async def test_a_reused_connection_that_closes_is_no_fault_of_the_replica(
    end: Callable[[Call], None],
) -> None:
    """Report 14: the keep-alive race. The same replica, once more, on a fresh connection."""

    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(response(b"%d" % call.number))
        await call.read_request()
        end(call)

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        assert [(await client.ask(ASK)).body for _ in range(3)] == [b"1", b"2", b"3"]
        assert not plane.router.tallies[backend.url].failures
        assert len(backend.requests) == 5


async def test_a_reused_connection_that_closes_after_some_work_is_not_an_idle_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The request may be what ended it: it is not sent to that replica again."""
    monkeypatch.setattr(exchange, "_IDLE_CLOSE_S", 0.03)

    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(response(b"first"))
        await call.read_request()
        await asyncio.sleep(0.05)

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        assert (await client.ask(ASK)).body == b"first"
        assert (await client.ask(ASK)).status == 502
        assert len(backend.requests) == 2


async def test_a_fresh_connection_that_closes_too_is_its_fault() -> None:
    async def script(call: Call) -> None:
        if call.number == 1:
            await call.read_request()
            await call.send(response(b"first"))
        await call.read_request()

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        assert (await client.ask(ASK)).body == b"first"
        assert (await client.ask(ASK)).status == 502
        assert (backend.connections, len(backend.requests)) == (2, 3)
        assert plane.router.tallies[backend.url].failures == {"closed": 1}


async def test_a_connection_that_the_replica_closed_while_idle_costs_nothing() -> None:
    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(response(b"ok"))

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        for number in range(1, 6):
            assert (await client.ask(ASK)).body == b"ok"
            await eventually(lambda: backend.open == 0)
            assert backend.connections == number


async def test_reuse_around_the_replicas_own_idle_limit_gives_no_5xx() -> None:
    """Report 14 (vllm#41567, llm-d#1564): both ends' idle limits run out at about the same time."""
    idle_s = 0.02

    async def script(call: Call) -> None:
        while True:
            async with asyncio.timeout(idle_s):
                await call.read_request()
            await call.send(response(b"ok"))

    async def forgiving(call: Call) -> None:
        try:
            await script(call)
        except TimeoutError:
            call.close()

    limits = Limits(idle_upstream_s=idle_s * 1.2)  # Too long, as an operator may set it.
    async with Backend(forgiving) as backend, data_plane(backend.url, limits=limits) as plane:
        client = await plane.client()
        for number in range(30):
            assert (await client.ask(ASK)).status == 200
            await asyncio.sleep(idle_s * (0.9 + 0.01 * number))
        assert backend.connections > 1


async def test_a_replica_that_does_not_accept_in_time_is_passed_over() -> None:
    limits = Limits(connect_timeout_s=0.05)
    async with black_hole() as hole, Backend(WELL) as well:
        async with data_plane(hole, well.url, limits=limits) as plane:
            answers = await ask_until_tried(plane, hole)
            assert {a.body for a in answers} == {b"well"}
            assert plane.router.tallies[hole].failures == {"connect": 1}
        async with data_plane(hole, limits=limits) as plane:
            assert "in time" in (await ask(plane)).error["message"]


async def nonsense(call: Call) -> None:
    await call.send(b"nonsense\r\n")
    await call.gone()


CUT = {
    "chunked, closes": (chunked_head() + chunk(b"data: 1\n\n"), Call.close, CutError),
    "chunked, resets": (chunked_head() + chunk(b"data: 1\n\n"), Call.reset, CutError),
    "chunked, within a chunk": (chunked_head() + b"ff\r\ndata: 1\n\n", Call.close, CutError),
    "chunked, within the last": (chunked_head() + chunk(b"1") + b"0\r\n", Call.close, CutError),
    "sized, closes": (response(b"data: 1\n\n" * 9)[:-20], Call.close, CutError),
    "sized, resets": (response(b"data: 1\n\n" * 9)[:-20], Call.reset, CutError),
    "until close, resets": (
        head(200, b"OK", []) + b"data: 1\n\n",
        Call.reset,
        ConnectionResetError,
    ),
    "chunked, sends nonsense": (chunked_head() + chunk(b"data: 1\n\n"), nonsense, CutError),
}


@pytest.mark.parametrize(("part", "end", "seen"), CUT.values(), ids=CUT.keys())
async def test_a_replica_that_dies_mid_answer_leaves_no_answer_that_looks_whole(
    part: bytes, end: Callable[[Call], Awaitable[None] | None], seen: type[Exception]
) -> None:
    """Measured on the Rust routers: silent truncation."""
    arrived = asyncio.Event()

    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(part)
        await arrived.wait()
        if (ending := end(call)) is not None:
            await ending

    async with Backend(script) as bad, data_plane(bad.url) as plane:
        client = await plane.client()
        await client.send(ASK)
        assert (await client.head()).status == 200
        arrived.set()
        with pytest.raises(seen):
            _ = [piece async for piece in client.pieces()]
        tally = plane.router.tallies[bad.url]
        assert (tally.cut, tally.failures, sum(tally.responses.values())) == (1, {}, 0)
        assert bad.connections == 1  # Never again after the first byte.


async def test_a_stream_without_chunks_for_http_1_0_is_reset_when_its_replica_dies() -> None:
    more = asyncio.Event()

    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(chunked_head() + chunk(b"1"))
        await more.wait()

    async with Backend(script) as bad, data_plane(bad.url) as plane:
        client = await plane.client()
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        await client.head()
        assert await client.piece() == b"1"
        more.set()
        with pytest.raises(ConnectionResetError):
            await client.piece()


@pytest.mark.parametrize("gap_s", [0.0, 0.02])
@pytest.mark.parametrize(
    "sent",
    [response(b"hello"), chunked_head() + chunk(b"hello") + LAST_CHUNK],
    ids=["sized", "chunked"],
)
async def test_bytes_behind_an_answer_never_reach_a_client(sent: bytes, gap_s: float) -> None:
    """Response splitting: what comes behind must not become the answer to somebody else."""

    async def script(call: Call) -> None:
        while True:
            await call.read_request()
            await call.send(sent[:-1])
            await asyncio.sleep(0.01)
            await call.send(sent[-1:] + (b"" if gap_s else response(b"EVIL")))
            await asyncio.sleep(gap_s)
            await call.send(response(b"EVIL"))

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        for _ in range(3):
            client = await plane.client()
            await client.send(ASK)
            assert (await client.head()).status == 200
            with contextlib.suppress(CutError):
                body = b"".join([piece async for piece in client.pieces()])
                assert body == b"hello"
            await asyncio.sleep(gap_s * 2)
        assert backend.connections == 3


async def test_a_hung_replica_slows_nobody_else() -> None:
    """Report 19: one hung backend stalls the others."""
    async with (
        Backend(silent) as hung,
        Backend(WELL) as well,
        data_plane(hung.url, well.url) as plane,
    ):
        for _ in range(100):
            await (await plane.client()).send(ASK)
        await eventually(lambda: well.requests and len(well.requests) + hung.connections == 100)
        assert plane.in_flight == hung.connections
        # By its own counts, the router now favours the one that answers.
        assert len(well.requests) > 5 * hung.connections


async def latencies_s(plane: Plane, clients: int = 8, each: int = 60) -> list[float]:
    """Of whole answers, sorted."""

    async def ask_often() -> list[float]:
        client, took = await plane.client(), []
        for _ in range(each):
            began_s = perf_counter()
            assert (await client.ask(ASK)).body == b"well"
            took.append(perf_counter() - began_s)
        return took

    took_by_client = await asyncio.gather(*(ask_often() for _ in range(clients)))
    return sorted(took_s for took in took_by_client for took_s in took)


async def test_others_wait_no_longer_beside_hundreds_of_hung_requests() -> None:
    """Report 19, in figures: the p99 of those that are answered, with and without."""
    async with Backend(WELL) as well:
        async with data_plane(well.url) as plane:
            alone_s = await latencies_s(plane)
        async with Backend(silent) as hung, data_plane(well.url) as plane:
            stuck = fleet_of([hung.url])
            plane.router.fleet, spared = stuck, plane.router.fleet
            for _ in range(300):
                await (await plane.client()).send(ASK)
            await eventually(lambda: hung.connections == 300)
            plane.router.fleet = spared
            beside_s = [await latencies_s(plane) for _ in range(3)]
            assert plane.in_flight == 300
    p99 = len(alone_s) * 99 // 100
    # The least of three: a machine that others use only ever adds.
    assert min(took_s[p99] for took_s in beside_s) < 2.0 * alone_s[p99] + 0.02


async def test_a_burst_over_equal_replicas_that_no_sidecar_speaks_for_spreads_evenly() -> None:
    """Report 7: what was just dispatched counts at once."""
    async with (
        Backend(silent) as a,
        Backend(silent) as b,
        Backend(silent) as c,
        data_plane(a.url, b.url, c.url) as plane,
    ):
        for _ in range(60):
            await (await plane.client()).send(ASK)
        await eventually(lambda: plane.in_flight == 60)
        counts = plane.router.in_flight.by_replica.values()
        assert max(counts) - min(counts) <= 8


async def test_everybody_full_is_a_503_that_says_when_to_come_back() -> None:
    async with (
        Backend(WELL) as full,
        data_plane(fleet=fleet_with({full.url: 0.15}, now_s=1e9)) as plane,
    ):
        plane.proxy.waiting.policy = QueuePolicy(max_requests=0)
        client = await plane.client()
        for _ in range(2):
            answer = await client.ask(ASK)
            assert (answer.status, answer.error["code"]) == (503, "no_capacity")
            assert answer.one(b"retry-after") == b"30"
            assert answer.error["type"] == "server_error"
        assert full.connections == 0
        assert plane.router.decisions == {"full": 2}
        assert plane.router.refusals == {"no_capacity": 2}


async def test_nobody_serving_is_a_503_of_its_own() -> None:
    async with data_plane() as plane:
        answer = await ask(plane)
        assert (answer.status, answer.error["code"]) == (503, "no_replica")
        assert answer.one(b"retry-after") == b"1"


async def test_a_router_that_was_busy_itself_holds_nothing_against_a_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What came while it could not look is looked at before a time limit counts."""
    loop, connect = asyncio.get_running_loop(), Pool.connect

    def keep_busy(turns: int) -> None:
        time.sleep(0.03)
        if turns > 1:
            loop.call_soon(keep_busy, turns - 1)

    async def busily(pool: Pool, address: Address) -> Upstream:
        keep_busy(10)
        return await connect(pool, address)

    monkeypatch.setattr(Pool, "connect", busily)
    limits = Limits(connect_timeout_s=0.02)
    async with Backend(WELL) as backend, data_plane(backend.url, limits=limits) as plane:
        assert (await ask(plane)).status == 200
