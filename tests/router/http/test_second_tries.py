"""A replica without room, or late: another one gets the request, within the budget, once."""

import asyncio
from collections.abc import Callable

import orjson
import pytest

from data_plane import Plane, data_plane, eventually
from raw_client import Answer, CutError, request
from scripted_backend import (
    LAST_CHUNK,
    Backend,
    Call,
    Script,
    answering,
    chunk,
    chunked_head,
    head,
    response,
    silent,
)
from ullage_router.config import Limits
from ullage_router.core.breaker import struck
from ullage_router.core.policy import RetryPolicy

ASK = request(body=b'{"prompt": "x"}')
WELL = answering(response(b"well"))
SAYS_503 = response(b'{"error": "full"}', 503, b"Busy", [(b"Retry-After", b"7")])


def error_event(code: int) -> bytes:
    error = {"message": "queue is full", "type": "x", "param": None, "code": code}
    return b"data: " + orjson.dumps({"error": error}) + b"\n\n"


def stream(*events: bytes) -> bytes:
    return chunked_head() + b"".join(map(chunk, events)) + LAST_CHUNK


SSE_503 = stream(error_event(503), b"data: [DONE]\n\n")
NO_ROOM = {"503": SAYS_503, "first event 503": SSE_503}


async def ask_first(plane: Plane, url: str) -> Answer:
    """Ask until the dice send a request to `url` first; that one's answer."""
    key = url
    for _ in range(100):
        before = plane.router.tallies[key].dispatched if key in plane.router.tallies else 0
        answer = await (await plane.client()).ask(ASK)
        tally = plane.router.tallies.get(key)
        if tally is not None and tally.dispatched > before:
            return answer
    raise AssertionError("the dice never chose it")


@pytest.mark.parametrize("no_room", NO_ROOM.values(), ids=NO_ROOM.keys())
async def test_a_replica_without_room_is_passed_over(no_room: bytes) -> None:
    async with (
        Backend(answering(no_room)) as full,
        Backend(WELL) as well,
        data_plane(full.url, well.url) as plane,
    ):
        assert (await ask_first(plane, full.url)).body == b"well"
        tally = plane.router.tallies[full.url]
        assert (tally.failures, sum(tally.responses.values())) == ({"full": 1}, 0)
        assert struck(plane.router.fleet.replicas[full.url].breaker, plane.router.now_s())
        assert well.requests[-1].body == full.requests[0].body == b'{"prompt": "x"}'


async def test_when_both_say_503_the_client_gets_the_second_answer_as_it_is() -> None:
    async with (
        Backend(answering(SAYS_503)) as one,
        Backend(answering(SAYS_503)) as two,
        Backend(answering(SAYS_503)) as three,
        data_plane(one.url, two.url, three.url) as plane,
    ):
        answer = await (await plane.client()).ask(ASK)
        assert (answer.status, answer.reason, answer.body) == (503, b"Busy", b'{"error": "full"}')
        assert answer.one(b"retry-after") == b"7"
        assert sum(len(b.requests) for b in (one, two, three)) == 2


async def test_the_only_replicas_503_is_passed_on() -> None:
    async with Backend(answering(SAYS_503)) as full, data_plane(full.url) as plane:
        answer = await (await plane.client()).ask(ASK)
        assert (answer.status, answer.body) == (503, b'{"error": "full"}')
        assert len(full.requests) == 1


async def test_a_stream_that_nobody_has_room_for_is_a_503_and_no_200() -> None:
    async with Backend(answering(SSE_503)) as full, data_plane(full.url) as plane:
        client = await plane.client()
        for _ in range(2):
            answer = await client.ask(ASK)
            assert (answer.status, answer.error["code"]) == (503, "no_capacity")
            assert "queue is full" in answer.error["message"]
            assert answer.one(b"retry-after") == b"1"
        assert plane.router.refusals == {"no_capacity": 2}
        assert full.connections == 1  # The replica's answer was whole: its connection goes on.


@pytest.mark.parametrize(
    "events",
    [[error_event(400), b"data: [DONE]\n\n"], [b'data: {"id": 1}\n\n', error_event(503)]],
    ids=["another error", "not first"],
)
async def test_any_other_event_is_the_clients(events: list[bytes]) -> None:
    async with (
        Backend(answering(stream(*events))) as one,
        Backend(answering(stream(*events))) as two,
        data_plane(one.url, two.url) as plane,
    ):
        answer = await (await plane.client()).ask(ASK)
        assert (answer.status, answer.body) == (200, b"".join(events))
        assert len(one.requests) + len(two.requests) == 1


def dies_after(*parts: bytes) -> Script:
    async def script(call: Call) -> None:
        await call.read_request()
        for part in parts:
            await call.send(part)
            await asyncio.sleep(0.005)

    return script


@pytest.mark.parametrize(
    "parts", [[chunked_head()], [chunked_head(), b"5"], [chunked_head() + chunk(b'data: {"err')]]
)
async def test_a_stream_that_dies_before_its_first_event_is_tried_elsewhere(
    parts: list[bytes],
) -> None:
    async with (
        Backend(dies_after(*parts)) as bad,
        Backend(WELL) as well,
        data_plane(bad.url, well.url) as plane,
    ):
        assert (await ask_first(plane, bad.url)).body == b"well"
        assert plane.router.tallies[bad.url].failures == {"closed": 1}
        assert plane.router.tallies[bad.url].cut == 0


@pytest.mark.parametrize("late", [silent, lambda call: _only_a_head(call)], ids=["silent", "head"])
async def test_a_late_replica_is_passed_over_and_seen_to_lose_its_client(late: Script) -> None:
    limits = Limits(first_byte_timeout_s=0.05)
    async with (
        Backend(late) as bad,
        Backend(WELL) as well,
        data_plane(bad.url, well.url, limits=limits) as plane,
    ):
        assert (await ask_first(plane, bad.url)).body == b"well"
        assert plane.router.tallies[bad.url].failures == {"timeout": 1}
        await eventually(lambda: bad.open == 0)


async def _only_a_head(call: Call) -> None:
    await call.read_request()
    await call.send(chunked_head())
    await call.gone()


async def test_the_only_replica_being_late_is_a_504() -> None:
    async with (
        Backend(silent) as bad,
        data_plane(bad.url, limits=Limits(first_byte_timeout_s=0.05)) as plane,
    ):
        answer = await (await plane.client()).ask(ASK)
        assert (answer.status, answer.error["code"]) == (504, "replica_timeout")
        assert "0.05 s" in answer.error["message"]


async def test_an_answer_that_has_begun_may_take_as_long_as_it_likes() -> None:
    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(chunked_head() + chunk(b"data: 1\n\n"))
        await asyncio.sleep(0.2)
        await call.send(chunk(b"data: 2\n\n") + LAST_CHUNK)

    limits = Limits(first_byte_timeout_s=0.05)
    async with Backend(script) as slow, data_plane(slow.url, limits=limits) as plane:
        answer = await (await plane.client()).ask(ASK)
        assert answer.body == b"data: 1\n\ndata: 2\n\n"


@pytest.mark.parametrize("fault", [answering(SAYS_503), answering(SSE_503), dies_after()])
async def test_beyond_the_budget_nothing_is_tried_again(fault: Script) -> None:
    """Report 15: retry amplification."""
    async with (
        Backend(fault) as one,
        Backend(fault) as two,
        data_plane(one.url, two.url) as plane,
    ):
        plane.proxy.budget.policy = RetryPolicy(share=0.0, spare=3)
        for _ in range(20):
            assert (await (await plane.client()).ask(ASK)).status in (502, 503)
        assert len(one.requests) + len(two.requests) == 23
        assert plane.router.tries_denied == 17


async def test_a_stream_that_breaks_off_ends_with_an_error_event() -> None:
    more = asyncio.Event()

    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(chunked_head() + chunk(b'data: {"id": 1}\n\n'))
        await more.wait()

    async with Backend(script) as bad, data_plane(bad.url) as plane:
        client = await plane.client()
        await client.send(ASK)
        await client.head()
        assert await client.piece() == b'data: {"id": 1}\n\n'
        more.set()
        last = await client.piece()
        with pytest.raises(CutError):
            await client.piece()
        error = orjson.loads(last.removeprefix(b"data: ").removesuffix(b"\n\n"))["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert (error["type"], error["code"]) == ("server_error", "replica_failed")
        assert plane.router.tallies[bad.url].cut == 1


NOT_BETWEEN_EVENTS = {
    "within an event": chunk(b'data: {"id": 1}\n\n') + chunk(b'data: {"i'),
    "within a chunk": chunk(b'data: {"id": 1}\n\n') + b"ff\r\ndata: x\n\n",
    "within a chunk, at what looks like its end": b"ff\r\ndata: x\n\n\r\n",
    "behind the last chunk's size": chunk(b"data: 1\n\n") + b"0\r\n",
    "behind a chunk, without its end": chunk(b"data: 1\n\n")[:-2],
}


@pytest.mark.parametrize("part", NOT_BETWEEN_EVENTS.values(), ids=NOT_BETWEEN_EVENTS.keys())
async def test_nothing_is_put_into_the_midst_of_an_event_or_a_chunk(part: bytes) -> None:
    await _is_cut_after(chunked_head() + part, lambda raw: raw.endswith(part))


@pytest.mark.parametrize(
    "headers",
    [
        [(b"Content-Type", b"application/json")],
        [(b"Content-Type", b"text/event-stream"), (b"Content-Encoding", b"gzip")],
    ],
    ids=["no events", "compressed"],
)
async def test_nothing_is_added_to_what_is_no_stream_of_events(
    headers: list[tuple[bytes, bytes]],
) -> None:
    part = chunk(b"data: 1\n\n")
    await _is_cut_after(chunked_head(headers) + part, lambda raw: raw.endswith(part))


async def test_nothing_is_added_to_a_sized_answer() -> None:
    sized = head(200, b"OK", [(b"Content-Type", b"text/event-stream"), (b"Content-Length", b"99")])
    await _is_cut_after(sized + b"data: 1\n\n", lambda raw: raw.endswith(b"\r\n\r\ndata: 1\n\n"))


async def _is_cut_after(sent: bytes, as_expected: Callable[[bytes], bool]) -> None:
    arrived = asyncio.Event()

    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(sent)
        await arrived.wait()

    async with Backend(script) as bad, data_plane(bad.url) as plane:
        client = await plane.client()
        await client.send(ASK)
        await client.reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.02)
        arrived.set()
        rest = await client.closed()
        assert as_expected(b"\r\n\r\n" + rest), rest
