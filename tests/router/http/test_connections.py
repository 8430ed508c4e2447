"""A client's connection: how long it lives, in which order it is answered, what ends it."""

import asyncio
from collections.abc import Iterable

import pytest

from data_plane import data_plane, eventually
from raw_client import Client, request
from scripted_backend import (
    LAST_CHUNK,
    Backend,
    Call,
    CallerGoneError,
    Received,
    answering,
    chunk,
    chunked_head,
    head,
    response,
    silent,
)
from ullage_router.config import Limits
from ullage_router.http.downstream import Downstream


def echo_target(received: Received) -> bytes:
    return response(received.target)


async def test_a_connection_carries_one_request_after_another() -> None:
    async with Backend(answering(echo_target)) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        for number in range(20):
            assert (await client.ask(request(b"/%d" % number))).body == b"/%d" % number
        assert backend.connections == 1
        assert len(plane.proxy.clients) == 1


async def test_pipelined_requests_are_answered_in_order() -> None:
    """The first of them takes longest, on another replica."""

    async def script(call: Call) -> None:
        while True:
            received = await call.read_request()
            if received.target == b"/0":
                await asyncio.sleep(0.05)
            await call.send(response(received.target))

    async with (
        Backend(script) as one,
        Backend(script) as two,
        data_plane(one.url, two.url) as plane,
    ):
        client = await plane.client()
        await client.send(b"".join(request(b"/%d" % n, b"x" * n) for n in range(50)))
        for number in range(50):
            assert (await client.answer()).body == b"/%d" % number


async def test_a_request_may_come_byte_by_byte() -> None:
    async with Backend(answering(echo_target)) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        for byte in request(b"/slow", b"hello"):
            await client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await client.answer()).body == b"/slow"
        assert backend.requests[0].body == b"hello"


async def test_connection_close_is_honoured() -> None:
    async with Backend(answering(echo_target)) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        answer = await client.ask(request(headers=[(b"Connection", b"close")]))
        assert answer.one(b"connection") == b"close"
        assert await client.closed() == b""
        assert backend.requests[0].all(b"connection") == []


OLD = b"POST /v1/completions HTTP/1.0\r\nContent-Length: 2\r\n"


async def test_http_1_0_gets_one_answer_and_the_end() -> None:
    async with Backend(answering(response(b"hello"))) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        answer = await client.ask(OLD + b"\r\n{}")
        assert (answer.body, answer.one(b"connection")) == (b"hello", b"close")
        assert await client.closed() == b""


async def test_http_1_0_may_ask_to_stay() -> None:
    async with Backend(answering(response(b"hello"))) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        for _ in range(2):
            answer = await client.ask(OLD + b"Connection: keep-alive\r\n\r\n{}")
            assert (answer.body, answer.one(b"connection")) == (b"hello", b"keep-alive")


async def test_http_1_0_gets_a_stream_without_chunks() -> None:
    stream = chunked_head() + chunk(b"hel") + chunk(b"lo") + LAST_CHUNK
    async with Backend(answering(stream)) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        answer = await client.ask(OLD + b"Connection: keep-alive\r\n\r\n{}")
        assert answer.one(b"transfer-encoding") is None
        assert (answer.body, answer.one(b"connection")) == (b"hello", b"close")


async def test_expect_100_continue_is_answered_before_the_body() -> None:
    """Measured on production-stack: hangs on a backend that does not answer it."""
    async with Backend(answering(echo_target)) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        whole = request(b"/x", b"hello", headers=[(b"Expect", b"100-continue")])
        for _ in range(2):
            await client.send(whole[:-5])
            assert await client.reader.readexactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
            answer = await client.ask(whole[-5:])
            assert (answer.status, answer.interim, answer.body) == (200, [], b"/x")
        assert [r.body for r in backend.requests] == [b"hello"] * 2
        assert all(r.all(b"expect") == [] for r in backend.requests)


async def test_a_body_that_came_with_its_head_needs_no_continue() -> None:
    async with Backend(answering(echo_target)) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        whole = request(b"/x", b"hello", headers=[(b"Expect", b"100-continue")])
        assert (await client.ask(whole)).interim == []


async def test_a_pipelined_request_that_waits_for_continue_gets_it_in_its_turn() -> None:
    async with Backend(answering(echo_target)) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        whole = request(b"/2", b"hello", headers=[(b"Expect", b"100-continue")])
        await client.send(request(b"/1") + whole[:-5])
        assert (await client.answer()).body == b"/1"
        assert await client.reader.readexactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await client.ask(whole[-5:])).body == b"/2"


async def test_a_wish_for_h2c_is_forwarded_once_as_a_plain_request() -> None:
    """curl --http2 and Java's HttpClient ask for h2c with every first POST."""
    wish = [
        (b"Connection", b"Upgrade, HTTP2-Settings"),
        (b"Upgrade", b"h2c"),
        (b"HTTP2-Settings", b"AAMAAABkAAQAAP__"),
    ]
    async with Backend(answering(echo_target)) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        for _ in range(2):
            assert (await client.ask(request(b"/x", b"hello", headers=wish))).body == b"/x"
        assert (await client.ask(request(b"/get", headers=wish))).body == b"/get"
        assert [(r.target, r.body) for r in backend.requests] == [
            (b"/x", b"hello"),
            (b"/x", b"hello"),
            (b"/get", b""),
        ]
        arrived = {n.lower() for r in backend.requests for n, _ in r.headers}
        assert not arrived & {b"upgrade", b"connection", b"http2-settings"}


SMALL = Limits(max_head_bytes=2048, max_body_bytes=10_000)
REFUSED = {
    "garbage": (b"\x00\xffgarbage\r\n\r\n", 400, "bad_request"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 100, 400, "bad_request"),
    "length and chunks": (
        request(body=b"0\r\n\r\n", headers=[(b"Transfer-Encoding", b"chunked")]),
        400,
        "bad_request",
    ),
    "two lengths": (request(body=b"x", headers=[(b"Content-Length", b"2")]), 400, "bad_request"),
    "bare LF": (b"GET / HTTP/1.1\nHost: a\n\n", 400, "bad_request"),
    "folding": (request(headers=[(b"X", b"a\r\n b")]), 400, "bad_request"),
    "coding": (request(headers=[(b"Transfer-Encoding", b"gzip")]), 501, "not_implemented"),
    "connect": (b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", 405, "method_not_allowed"),
    "large head": (request(headers=[(b"X", b"x" * 3000)]), 431, "headers_too_large"),
    "endless head": (b"GET / HTTP/1.1\r\nX: " + b"x" * 1_000_000, 431, "headers_too_large"),
    "large body": (request(body=b"x" * 10_001), 413, "body_too_large"),
    "huge body": (request(body=b"x" * 5_000_000), 413, "body_too_large"),
    "large chunked body": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"x" * 20_000),
        413,
        "body_too_large",
    ),
}


async def send_in_pieces(client: Client, data: bytes, size: int) -> None:
    for start in range(0, len(data), size):
        client.writer.write(data[start : start + size])
        await asyncio.sleep(0)


@pytest.mark.parametrize(("sent", "status", "code"), REFUSED.values(), ids=REFUSED.keys())
async def test_a_refused_request_gets_its_reason_then_the_end_and_harms_nobody_else(
    sent: bytes, status: int, code: str
) -> None:
    async with (
        Backend(answering(echo_target)) as backend,
        data_plane(backend.url, limits=SMALL) as plane,
    ):
        other, client = await plane.client(), await plane.client()
        await other.send(request(b"/other", b"half")[:-2])
        await send_in_pieces(client, sent, 50_000)
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (status, code)
        assert answer.error["type"] == ("invalid_request_error" if status < 500 else "server_error")
        assert answer.one(b"connection") == b"close"
        assert await client.closed() == b""
        assert (await other.ask(b"lf")).body == b"/other"
        assert [r.target for r in backend.requests] == [b"/other"]


async def test_a_client_that_expects_to_continue_is_refused_before_it_sends() -> None:
    async with data_plane(limits=SMALL) as plane:
        client = await plane.client()
        whole = request(body=b"x" * 10_001, headers=[(b"Expect", b"100-continue")])
        answer = await client.ask(whole[:-10_001])
        assert (answer.status, answer.interim) == (413, [])


async def test_what_came_before_the_refused_is_answered_first() -> None:
    async with Backend(answering(echo_target)) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        await client.send(request(b"/1") + request(b"/2") + b"nonsense\r\n\r\n")
        assert (await client.answer()).body == b"/1"
        assert (await client.answer()).body == b"/2"
        assert (await client.answer()).status == 400
        assert await client.closed() == b""


async def test_a_refused_client_that_sends_on_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read for a moment, so that it gets to see why, but not for ever."""
    monkeypatch.setattr("ullage_router.http.downstream._LEAVE_WITHIN_S", 0.1)
    async with data_plane(limits=SMALL) as plane:
        client = await plane.client()

        async def send_for_ever() -> None:
            await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n")
            while True:
                await client.send(b"x" * 1000)
                await asyncio.sleep(0.01)

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(send_for_ever(), 10.0)
        await eventually(lambda: not plane.proxy.clients)


@pytest.mark.parametrize("answers", [[response(b"a"), response(b"b")]])
async def test_a_reused_replica_connection_never_mixes_answers(answers: Iterable[bytes]) -> None:
    left = iter(answers)
    async with (
        Backend(answering(lambda _: next(left))) as backend,
        data_plane(backend.url) as plane,
    ):
        one, two = await plane.client(), await plane.client()
        assert (await one.ask(request())).body == b"a"
        assert (await two.ask(request())).body == b"b"
        assert backend.connections == 1


async def test_a_replica_that_answers_before_it_has_read_all_is_not_reused() -> None:
    """What is left of the request would be in front of the next."""

    async def script(call: Call) -> None:
        await call.reader.readuntil(b"\r\n\r\n")
        await call.send(response(b"early", 413, b"Too Large"))
        await asyncio.sleep(0.2)
        while True:
            await call.read_request()
            await call.send(response(b"next"))

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        answer = await client.ask(request(body=b"x" * 30_000_000))
        assert (answer.status, answer.body) == (413, b"early")
        assert (await client.ask(request(b"/next"))).status == 413
        assert backend.connections == 2


async def test_a_replica_that_closes_is_not_reused() -> None:
    closing = response(b"bye", headers=[(b"Connection", b"close")])

    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(closing)
        await call.gone()

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        for _ in range(3):
            answer = await client.ask(request())
            assert (answer.body, answer.one(b"connection")) == (b"bye", None)
        assert backend.connections == 3


async def test_idle_replica_connections_are_closed_in_time() -> None:
    limits = Limits(idle_upstream_s=0.05)
    async with (
        Backend(answering(response(b"x"))) as backend,
        data_plane(backend.url, limits=limits) as plane,
    ):
        await (await plane.client()).ask(request())
        assert plane.proxy.pool.idle == 1
        await eventually(lambda: backend.open == 0, 1.0)
        assert plane.proxy.pool.idle == 0
        assert not plane.proxy.pool._idle


async def test_the_list_of_models_is_the_routers_own() -> None:
    body = b'{"object":"list","data":[{"id":"m"}]}'
    async with (
        Backend(answering(echo_target)) as backend,
        data_plane(backend.url, models=lambda: body) as plane,
    ):
        client = await plane.client()
        answer = await client.ask(request(b"/v1/models"))
        assert (answer.status, answer.body) == (200, body)
        assert answer.one(b"content-type") == b"application/json"
        assert (await client.ask(request(b"/v1/models/m"))).body == b"/v1/models/m"
        assert (await client.ask(request(b"/v1/models", b"{}"))).body == b"/v1/models"
        await client.send(request(b"/v1/models", headers=[(b"Connection", b"close")]))
        assert (await client.answer()).one(b"connection") == b"close"
        assert await client.closed() == b""


async def test_an_unknown_list_of_models_is_asked_of_a_replica() -> None:
    guarded = response(b'{"error": "Unauthorized"}', 401, b"Unauthorized")
    async with Backend(answering(guarded)) as backend, data_plane(backend.url) as plane:
        key = [(b"Authorization", b"Bearer k")]
        answer = await (await plane.client()).ask(request(b"/v1/models", headers=key))
        assert answer.status == 401
        assert backend.requests[0].all(b"authorization") == [b"Bearer k"]


async def test_stopping_lets_a_stream_finish_and_closes_idle_connections_soon() -> None:
    """The clients want to keep their connections; a router that stops does not wait for them."""
    more = asyncio.Event()

    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(chunked_head() + chunk(b"1"))
        await more.wait()
        await call.send(chunk(b"2") + LAST_CHUNK)
        await call.gone()

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        idle, busy = await plane.client(), await plane.client()
        await busy.send(request())
        await busy.head()
        assert await busy.piece() == b"1"
        stopping = asyncio.ensure_future(plane.proxy.stop(grace_s=20.0))
        assert await idle.closed() == b""
        with pytest.raises(ConnectionRefusedError):
            await Client.connect(plane.address)
        more.set()
        assert [await busy.piece(), await busy.piece()] == [b"2", b""]
        await asyncio.wait_for(stopping, 2.0)
        assert await busy.closed() == b""


async def test_stopping_cuts_what_outlasts_its_grace() -> None:
    async with Backend(silent) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        await client.send(request())
        await eventually(lambda: backend.open)
        await asyncio.wait_for(plane.proxy.stop(grace_s=0.05), 2.0)
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (503, "router_stopping")
        assert await client.closed() == b""
        await eventually(lambda: not backend.open)


async def test_who_came_in_the_very_moment_of_stopping_is_seen_off_like_the_others() -> None:
    """Its connection is made, but whoever let it in has yet to hear of that."""

    class Moment(set[Downstream]):
        def add(self, client: Downstream) -> None:
            super().add(client)
            assert plane.proxy._listener is not None
            plane.proxy._listener.close()

    async with Backend(silent) as backend, data_plane(backend.url) as plane:
        plane.proxy.clients = Moment()
        client = await plane.client()
        await eventually(lambda: plane.proxy.clients)
        await plane.proxy.stop(grace_s=0.05)
        assert await client.closed() == b""
        assert not plane.proxy.clients


async def test_a_client_that_half_closes_has_gone() -> None:
    left = asyncio.Event()

    async def script(call: Call) -> None:
        try:
            await call.read_request()
            await call.gone()
        except CallerGoneError:
            pass
        left.set()

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        await client.send(request())
        await eventually(lambda: plane.in_flight)
        client.writer.write_eof()
        await asyncio.wait_for(left.wait(), 2.0)
        assert plane.in_flight == 0


async def test_a_head_answer_of_the_routers_own_has_no_body() -> None:
    async with data_plane() as plane:
        client = await plane.client()
        answer = await client.ask(request(method=b"HEAD"), bodiless=True)
        assert answer.status == 503
        assert answer.one(b"content-length") != b"0"
        assert (await client.ask(request())).status == 503


async def test_a_304_for_a_stream_that_was_asked_with_head_keeps_the_connection() -> None:
    sent = head(304, b"Not Modified", [(b"Content-Length", b"7")])
    async with Backend(answering(sent)) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        for _ in range(2):
            assert (await client.ask(request(method=b"HEAD"), bodiless=True)).status == 304
        assert backend.connections == 1


async def test_what_a_client_sends_behind_a_request_that_is_under_way_waits_in_the_kernel() -> None:
    """Else pipelined bodies would hold many times what `[queue]` and `[limits]` allow."""
    async with Backend(silent) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        await client.send(request(body=b"{}"))
        await eventually(lambda: plane.in_flight == 1)
        sending = asyncio.ensure_future(client.send(request(body=b"x" * 32_000_000)))
        (connection,) = plane.proxy.clients
        await eventually(lambda: connection._paused)
        await asyncio.sleep(0.03)
        assert connection._reader.body_bytes < 4_000_000
        sending.cancel()
