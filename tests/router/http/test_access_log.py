"""Each request is told once, when it has ended, however it ended."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from data_plane import Plane, data_plane, eventually
from raw_client import CutError, request
from scripted_backend import (
    LAST_CHUNK,
    Backend,
    Call,
    Script,
    answering,
    chunk,
    chunked_head,
    refusing_url,
    response,
    silent,
)
from snapshots import fleet_with
from ullage_router.access import AccessLog, access_line
from ullage_router.config import Config, Limits
from ullage_router.core.queue import QueuePolicy
from ullage_router.http.exchange import Exchange
from ullage_router.http.story import Story, ToldExchange
from ullage_shared.log import Line

WELL = response(b"well")
ID = (b"X-Request-Id", b"mine")
PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ASK = request(body=b'{"model": "m", "prompt": "secret"}', headers=[ID])


@asynccontextmanager
async def told(*urls: str, limits: Limits | None = None) -> AsyncIterator[tuple[Plane, list[Line]]]:
    """A data plane, and the lines of its access log."""
    lines: list[Line] = []
    async with data_plane(*urls, limits=limits or Limits()) as plane:
        plane.proxy.tell([AccessLog(lines.append)])
        yield plane, lines


async def test_a_line_says_what_was_asked_who_answered_and_how_long_it_took() -> None:
    async with Backend(answering(WELL)) as backend, told(backend.url) as (plane, lines):
        ask = request(b"/v1/completions?key=secret", b'{"model": "m"}', headers=[ID])
        answer = await (await plane.client()).ask(ask)
        assert answer.body == b"well"
        (line,) = lines
    fields = dict(line.fields)
    assert 0.0 <= fields.pop("ttft_s") <= fields.pop("duration_s") < 5.0  # type: ignore[operator]
    assert 0.0 <= fields.pop("waited_s") < 1.0  # type: ignore[operator]
    assert fields.pop("sent_bytes") > len(WELL)  # type: ignore[operator]
    assert (line.event, fields) == (
        "request",
        {
            "id": "mine",
            "client": "127.0.0.1",
            "method": "POST",
            "path": "/v1/completions",
            "model": "m",
            "replica": backend.url.removeprefix("http://"),
            "why": "own_counts",
            "status": 200,
            "end": "whole",
            "tries": 1,
        },
    )


async def test_every_byte_that_the_client_was_sent_is_counted() -> None:
    stream = chunked_head() + b"".join(chunk(b"data: x\n\n") for _ in range(100)) + LAST_CHUNK
    async with Backend(answering(stream)) as backend, told(backend.url) as (plane, lines):
        client = await plane.client()
        await client.send(ASK)
        came = await client.reader.readuntil(LAST_CHUNK)
        assert [line.fields["sent_bytes"] for line in lines] == [len(came)]


@pytest.mark.parametrize(
    ("said", "trace_id"),
    [
        (PARENT, "0af7651916cd43dd8448eb211c80319c"),
        (PARENT.replace(b"00-", b"cc-") + b"-more", "0af7651916cd43dd8448eb211c80319c"),
        (b"00-nonsense", None),
        (b"", None),
    ],
)
async def test_the_trace_is_named_that_the_client_says_it_belongs_to(
    said: bytes, trace_id: str | None
) -> None:
    async with Backend(answering(WELL)) as backend, told(backend.url) as (plane, lines):
        await (await plane.client()).ask(request(headers=[(b"Traceparent", said)]))
        assert lines[0].fields.get("trace_id") == trace_id


async def cut(call: Call) -> None:
    await call.read_request()
    await call.send(chunked_head() + chunk(b"data: x\n\n"))
    call.close()


async def unfinished(call: Call) -> None:
    await call.read_request()
    await call.send(chunked_head() + chunk(b"data: x\n\n"))
    await call.gone()


def ends(lines: list[Line]) -> list[tuple[object, object, object]]:
    return [(line.fields["end"], line.fields.get("status"), line.fields["tries"]) for line in lines]


async def test_a_second_try_is_counted_and_the_one_that_answered_named() -> None:
    async with Backend(answering(WELL)) as well, told(refusing_url(), well.url) as (plane, lines):
        while not plane.router.second_tries:
            assert (await (await plane.client()).ask(ASK)).body == b"well"
        assert ends(lines)[-1] == ("whole", 200, 2)
        assert lines[-1].fields["replica"] == well.url.removeprefix("http://")


async def test_a_request_that_all_fail_is_told_once_with_the_refusals_code() -> None:
    async with told(refusing_url(), refusing_url()) as (plane, lines):
        assert (await (await plane.client()).ask(ASK)).status == 502
        assert ends(lines) == [("replica_failed", 502, 2)]
        assert "ttft_s" not in lines[0].fields


async def test_a_refusal_before_any_try_is_told() -> None:
    async with told() as (plane, lines):
        assert (await (await plane.client()).ask(ASK)).status == 503
        bad = request(body=b"{}", headers=[(b"x-ullage-priority", b"secret")])
        assert (await (await plane.client()).ask(bad)).status == 400
        assert ends(lines) == [("no_replica", 503, 0), ("invalid_priority", 400, 0)]


@pytest.mark.parametrize("leaves", [False, True])
async def test_one_that_has_waited_in_vain_is_told_with_its_wait(leaves: bool) -> None:
    lines: list[Line] = []
    fleet = fleet_with({"http://127.0.0.1:1": 0.1}, now_s=1e9)  # Never stale.
    async with data_plane(fleet=fleet) as plane:
        plane.proxy.tell([AccessLog(lines.append)])
        plane.proxy.waiting.policy = QueuePolicy(max_wait_s=5.0 if leaves else 0.05)
        client = await plane.client()
        await client.send(ASK)
        await eventually(lambda: plane.proxy.waiting.waiting)
        await asyncio.sleep(0.02)
        if leaves:
            client.close()
        await eventually(lambda: lines)
    assert ends(lines) == [("client_gone", None, 0) if leaves else ("no_capacity", 503, 0)]
    fields = lines[0].fields
    assert 0.02 <= fields["waited_s"] <= fields["duration_s"] < 2.0  # type: ignore[operator]


async def test_what_is_no_request_is_told_without_a_word_of_it() -> None:
    async with told() as (plane, lines):
        client = await plane.client()
        await client.send(b"GET /secret HTTP/1.1\r\nsecret\r\n\r\n")
        said = await client.reader.read()
        assert ends(lines) == [("bad_request", 400, 0)]
        assert lines[0].fields["sent_bytes"] == len(said)
        assert lines[0].fields["client"] == "127.0.0.1"
        assert "secret" not in lines[0]


async def test_an_answer_that_is_cut_is_told_as_cut() -> None:
    async with Backend(cut) as backend, told(backend.url) as (plane, lines):
        client = await plane.client()
        await client.send(ASK)
        with pytest.raises(CutError):
            await client.answer()
        await eventually(lambda: lines)
    assert ends(lines) == [("cut", 200, 1)]


@pytest.mark.parametrize(("script", "status"), [(unfinished, 200), (silent, None)])
async def test_a_client_that_leaves_is_told_as_gone(script: Script, status: int | None) -> None:
    async with Backend(script) as backend, told(backend.url) as (plane, lines):
        client = await plane.client()
        await client.send(ASK)
        await eventually(lambda: backend.open)
        if status is not None:
            await client.head()
        client.close()
        await eventually(lambda: lines)
    assert ends(lines) == [("client_gone", status, 1)]


@pytest.mark.parametrize(
    ("script", "end"),
    [(unfinished, ("stopped", 200, 1)), (silent, ("router_stopping", 503, 1))],
)
async def test_what_the_stop_ends_is_told(script: Script, end: object) -> None:
    async with Backend(script) as backend, told(backend.url) as (plane, lines):
        client = await plane.client()
        await client.send(ASK)
        await eventually(lambda: plane.in_flight and backend.open)
        if script is unfinished:
            await client.head()
        await plane.proxy.stop(0.0)
        assert ends(lines) == [end]


async def test_a_late_replica_is_told_by_the_refusals_code() -> None:
    limits = Limits(first_byte_timeout_s=0.05)
    async with Backend(silent) as backend, told(backend.url, limits=limits) as (plane, lines):
        assert (await (await plane.client()).ask(ASK)).status == 504
        assert ends(lines) == [("replica_timeout", 504, 1)]


SWITCHES = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


async def echoes(call: Call) -> None:
    await call.read_request()
    await call.send(SWITCHES)
    while data := await call.reader.read(65_536):
        await call.send(data)


async def test_a_tunnel_is_told_when_it_ends_with_all_its_bytes() -> None:
    async with Backend(echoes) as backend, told(backend.url) as (plane, lines):
        client = await plane.client()
        wish = [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
        await client.send(request(b"/v1/realtime", headers=wish))
        head = await client.reader.readuntil(b"\r\n\r\n")
        await client.send(b"x" * 10_000)
        await client.reader.readexactly(10_000)
        assert lines == []
        client.close()
        await eventually(lambda: lines)
    assert ends(lines) == [("whole", 101, 1)]
    assert lines[0].fields["sent_bytes"] == len(head) + 10_000


async def test_what_the_router_answers_itself_is_told() -> None:
    lines: list[Line] = []
    async with data_plane(models=lambda: b"{}") as plane:
        plane.proxy.tell([AccessLog(lines.append)])
        last = (b"Connection", b"close")
        client = await plane.client()
        await client.send(request(b"/v1/models", headers=[ID, last]))
        said = await client.reader.read()
    assert ends(lines) == [("whole", 200, 0)]
    assert (lines[0].fields["path"], lines[0].fields["id"]) == ("/v1/models", "mine")
    assert lines[0].fields["sent_bytes"] == len(said)


async def test_requests_of_one_connection_are_told_one_by_one() -> None:
    async with Backend(answering(WELL)) as backend, told(backend.url) as (plane, lines):
        client = await plane.client()
        await client.send(ASK * 3)
        for _ in range(3):
            await client.answer()
        assert ends(lines) == [("whole", 200, 1)] * 3


async def test_it_can_be_turned_on_and_off_while_requests_run() -> None:
    release = asyncio.Event()

    async def waits(call: Call) -> None:
        while True:
            await call.read_request()
            await release.wait()
            await call.send(WELL)

    lines: list[Line] = []
    async with Backend(waits) as backend, data_plane(backend.url) as plane:
        first, second = await plane.client(), await plane.client()
        await first.send(ASK)
        await eventually(lambda: plane.in_flight == 1)
        plane.proxy.tell([AccessLog(lines.append)])
        await second.send(ASK)
        await eventually(lambda: plane.in_flight == 2)
        plane.proxy.tell([])
        release.set()
        assert (await first.answer()).body == (await second.answer()).body == b"well"
        assert ends(lines) == [("whole", 200, 1)]
        assert plane.proxy.exchange is Exchange


async def test_while_nobody_wants_to_be_told_requests_run_as_if_there_were_none_of_this() -> None:
    async with data_plane() as plane:
        noted = plane.proxy.noted
        assert plane.proxy.exchange is Exchange
        plane.proxy.tell([AccessLog(lambda _: None)])
        assert plane.proxy.exchange is ToldExchange
        plane.proxy.tell([])
        plane.proxy.configure(Config())
        assert (plane.proxy.exchange, plane.proxy.noted) == (Exchange, noted)


def test_what_is_not_known_is_no_field() -> None:
    said = access_line(Story(end="head_timeout", status=408))
    assert (
        said == "request status=408 end=head_timeout tries=0 waited_s=0 duration_s=0 sent_bytes=0"
    )
