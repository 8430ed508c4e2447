"""What reaches the replica, and what reaches the client, over real sockets."""

import gzip
import random
import re

import pytest

from data_plane import Plane, data_plane
from raw_client import Answer, request
from scripted_backend import (
    LAST_CHUNK,
    Backend,
    Call,
    Header,
    Received,
    answering,
    chunk,
    chunked_head,
    head,
    response,
)
from snapshots import document, snapshot
from ullage_router.core.breaker import Condition
from ullage_router.core.fleet import fleet_of, hear

BLOB = random.Random(5).randbytes(20_000_000)


async def forwarded(sent: bytes, answer: bytes = response(b"ok"), **options: object) -> Received:
    """What the replica gets for the request `sent`."""
    async with Backend(answering(answer)) as backend, data_plane(backend.url) as plane:
        await (await plane.client()).ask(sent)
        (received,) = backend.requests
        return received


async def returned(answer: bytes, sent: bytes = request()) -> Answer:
    """What the client gets of the replica's `answer`."""
    async with Backend(answering(answer)) as backend, data_plane(backend.url) as plane:
        return await (await plane.client()).ask(sent)


@pytest.mark.parametrize(
    "target",
    [b"/a%2Fb/%C3%A4?q=%20&r=a+b&s=%2f", b"/v1//completions", b"/?", b"/a?b?c=/../d", b"/%00"],
)
async def test_the_target_goes_on_as_it_was_sent(target: bytes) -> None:
    assert (await forwarded(request(target))).target == target


@pytest.mark.parametrize(
    ("absolute", "origin"),
    [
        (b"http://router.test/a%2Fb?c=d", b"/a%2Fb?c=d"),
        (b"HTTP://router.test:8080?c", b"/?c"),
        (b"http://router.test", b"/"),
    ],
)
async def test_an_absolute_target_goes_on_in_origin_form(absolute: bytes, origin: bytes) -> None:
    assert (await forwarded(request(absolute))).target == origin


async def test_the_host_of_an_absolute_target_beats_the_host_field() -> None:
    """RFC 9112, section 3.2.2."""
    received = await forwarded(request(b"http://asked.test:81/a"))
    assert received.all(b"x-forwarded-host") == [b"asked.test:81"]


@pytest.mark.parametrize("method", [b"GET", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"])
async def test_every_method_and_path_goes_on(method: bytes) -> None:
    received = await forwarded(request(b"/score", method=method))
    assert (received.method, received.target) == (method, b"/score")


async def test_headers_keep_their_order_case_and_repeats() -> None:
    """Report 22: headers lost."""
    sent = [
        (b"X-CusTom", b"1"),
        (b"user-agent", b"me/1"),
        (b"Authorization", b"Bearer secret"),
        (b"Cookie", b"a=1"),
        (b"x-custom", b"2"),
        (b"traceparent", b"00-aa-bb-01"),
        (b"X-Empty", b""),
        (b"X-Odd", b'a , "b"; c=\xe4'),
        (b"Accept-Encoding", b"gzip"),
        (b"Cookie", b"b=2"),
    ]
    received = await forwarded(request(headers=sent))
    names = {name for name, _ in sent}
    assert [h for h in received.headers if h[0] in names] == sent


async def test_hop_by_hop_headers_and_those_that_connection_names_end_here() -> None:
    sent = [
        (b"Connection", b"X-Private , keep-alive"),
        (b"X-Private", b"1"),
        (b"x-private", b"2"),
        (b"Keep-Alive", b"timeout=5"),
        (b"Proxy-Connection", b"keep-alive"),
        (b"Proxy-Authorization", b"Basic eA=="),
        (b"TE", b"trailers"),
        (b"Trailer", b"X"),
        (b"Upgrade", b"h2c"),
        (b"X-Public", b"3"),
    ]
    received = await forwarded(request(headers=sent))
    arrived = {name.lower() for name, _ in received.headers}
    assert arrived == {
        b"host",
        b"x-public",
        b"x-forwarded-for",
        b"x-forwarded-proto",
        b"x-forwarded-host",
        b"x-request-id",
    }


async def test_connection_cannot_name_away_the_length() -> None:
    named = [(b"Connection", b"content-length, transfer-encoding, host")]
    received = await forwarded(request(body=b"hello", headers=named))
    assert received.body == b"hello"
    assert len(received.all(b"host")) == 1


async def test_the_replica_sees_its_own_host_and_who_asked_for_what() -> None:
    async with Backend(answering(response())) as backend, data_plane(backend.url) as plane:
        await (await plane.client()).ask(request())
    (received,) = backend.requests
    assert received.all(b"host") == [backend.url.removeprefix("http://").encode()]
    assert received.all(b"x-forwarded-host") == [b"router.test"]
    assert received.all(b"x-forwarded-for") == [b"127.0.0.1"]
    assert received.all(b"x-forwarded-proto") == [b"http"]


async def test_earlier_proxies_stay_named_and_cannot_be_forged_elsewhere() -> None:
    sent = [
        (b"X-Forwarded-For", b"192.0.2.1"),
        (b"x-forwarded-for", b"192.0.2.2, 192.0.2.3"),
        (b"X-Forwarded-Host", b"forged"),
        (b"X-Forwarded-Proto", b"https"),
    ]
    received = await forwarded(request(headers=sent))
    assert received.all(b"x-forwarded-for") == [b"192.0.2.1, 192.0.2.2, 192.0.2.3, 127.0.0.1"]
    assert received.all(b"x-forwarded-host") == [b"router.test"]
    assert received.all(b"x-forwarded-proto") == [b"http"]


async def test_a_request_id_is_made_once_and_told_to_both_sides() -> None:
    async with Backend(answering(response())) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        answers = [await client.ask(request()) for _ in range(2)]
    told = [r.all(b"x-request-id") for r in backend.requests]
    assert [[a.one(b"x-request-id")] for a in answers] == told
    assert told[0] != told[1]
    assert re.fullmatch(rb"[0-9a-f]{32}", told[0][0])


async def test_a_request_id_that_the_client_or_the_replica_brings_is_kept() -> None:
    sent = request(headers=[(b"x-request-id", b"mine")])
    assert (await forwarded(sent)).all(b"x-request-id") == [b"mine"]
    assert (await returned(response(), sent)).one(b"x-request-id") == b"mine"
    theirs = response(headers=[(b"X-Request-Id", b"theirs")])
    assert (await returned(theirs, sent)).one(b"x-request-id") == b"theirs"


async def test_a_chunked_request_goes_on_with_its_length_and_the_same_bytes() -> None:
    body = b'{"prompt": "\xf0\x9f\x98\x80", "seed": 99999999999999999999, "unknown": null}'
    pieces = b"".join(chunk(body[i : i + 7]) for i in range(0, len(body), 7))
    start = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    received = await forwarded(start + pieces + b"0\r\nX-Trailer: t\r\n\r\n")
    assert received.body == body
    assert received.all(b"content-length") == [b"%d" % len(body)]
    assert received.all(b"transfer-encoding") == []


async def test_a_body_is_not_rewritten() -> None:
    """Measured on the Rust routers: re-serialised, fields injected, `seed` beyond int64 refused."""
    body = b'{ "seed":18446744073709551616,"messages" : [{"role":"user","x":1.0e0}],\n"zz":{}}'
    received = await forwarded(request(body=body, headers=[(b"Content-Type", b"application/json")]))
    assert received.body == body
    assert received.all(b"content-type") == [b"application/json"]


async def test_a_multipart_upload_goes_on_byte_for_byte() -> None:
    body = b'--x\r\nContent-Disposition: form-data; name="f"\r\n\r\n\x00\xff\r\n--x--\r\n'
    kind = [(b"Content-Type", b"multipart/form-data; boundary=x")]
    received = await forwarded(request(b"/v1/audio/transcriptions", body, headers=kind))
    assert received.body == body
    assert received.all(b"content-type") == [kind[0][1]]


async def test_a_post_without_a_body_says_so() -> None:
    received = await forwarded(request(b"/pause", b""))
    assert received.all(b"content-length") == [b"0"]
    assert (await forwarded(request(b"/health"))).all(b"content-length") == []


async def test_20_megabytes_pass_both_ways() -> None:
    async def echo(call: Call) -> None:
        await call.send(response((await call.read_request()).body))

    async with Backend(echo) as backend, data_plane(backend.url) as plane:
        answer = await (await plane.client()).ask(request(body=BLOB))
        assert answer.body == BLOB
        assert backend.requests[0].body == BLOB


@pytest.mark.parametrize(
    "status", [200, 201, 301, 400, 401, 404, 422, 429, 499, 500, 501, 502, 504, 599]
)
async def test_a_status_comes_back_as_it_is_and_is_never_tried_again(status: int) -> None:
    """Reports 15 and 16: retries on 429, breakers opened by 4xx. 17: a 4xx becomes an empty 200."""
    body = b'{"error": {"message": "no"}}'
    sent = response(body, status, b"Some Reason", [(b"Retry-After", b"7")])
    async with (
        Backend(answering(sent)) as one,
        Backend(answering(sent)) as other,
        data_plane(one.url, other.url) as plane,
    ):
        answer = await (await plane.client()).ask(request(body=b'{"stream": true}'))
        assert len(one.requests) + len(other.requests) == 1
        assert all(
            r.breaker.condition is Condition.CLOSED for r in plane.router.fleet.replicas.values()
        )
        assert not any(t.failures for t in plane.router.tallies.values())
    assert (answer.status, answer.reason, answer.body) == (status, b"Some Reason", body)
    assert answer.one(b"retry-after") == b"7"


async def test_response_headers_come_back_in_order_case_and_number() -> None:
    sent: list[Header] = [
        (b"Date", b"Thu, 01 Jan 2026 00:00:00 GMT"),
        (b"server", b"uvicorn"),
        (b"Set-Cookie", b"a=1; Path=/"),
        (b"X-CuStom", b"x"),
        (b"Set-Cookie", b"b=2"),
        (b"Access-Control-Allow-Origin", b"*"),
    ]
    answer = await returned(response(b"hello", headers=sent))
    names = {name for name, _ in sent}
    assert [h for h in answer.headers if h[0] in names] == sent


async def test_hop_by_hop_headers_of_the_replica_end_here() -> None:
    sent = [
        (b"Connection", b"close, X-Private"),
        (b"X-Private", b"1"),
        (b"Keep-Alive", b"timeout=5"),
        (b"Proxy-Authenticate", b"Basic"),
        (b"Upgrade", b"h2c"),
    ]
    answer = await returned(response(b"hello", headers=sent))
    assert {n.lower() for n, _ in answer.headers} == {
        b"content-length",
        b"x-ullage-replica",
        b"x-request-id",
    }


async def test_a_gzip_answer_stays_gzip() -> None:
    """Measured on SMG: the encoding header lost, the body still gzip."""
    packed = gzip.compress(b"hello" * 100)
    answer = await returned(response(packed, headers=[(b"Content-Encoding", b"gzip")]))
    assert (answer.one(b"content-encoding"), answer.body) == (b"gzip", packed)


async def test_a_chunked_answer_comes_back_with_its_trailers() -> None:
    sent = chunked_head() + chunk(b"hel") + chunk(b"lo") + b"0\r\nX-Checksum: 1\r\n\r\n"
    async with Backend(answering(sent)) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        await client.send(request())
        answer = await client.head()
        rest = await client.reader.readuntil(b"1\r\n\r\n")
    assert answer.one(b"transfer-encoding") == b"chunked"
    assert rest == sent.partition(b"\r\n\r\n")[2]


async def test_interim_responses_are_not_taken_for_the_answer() -> None:
    interim = head(100, b"Continue", []) + head(103, b"Early Hints", [(b"Link", b"</a>")])
    answer = await returned(interim + response(b"hello"))
    assert (answer.status, answer.body, answer.all(b"link")) == (200, b"hello", [])


@pytest.mark.parametrize("status", [204, 304])
async def test_statuses_without_a_body_end_with_their_head(status: int) -> None:
    sent = head(status, b"Nothing", [(b"ETag", b'"1"')])
    async with Backend(answering(sent)) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        assert [(await client.ask(request())).status for _ in range(2)] == [status, status]
        assert backend.connections == 1


async def test_head_is_answered_with_the_length_and_no_body() -> None:
    sent = head(200, b"OK", [(b"Content-Length", b"1000")])
    async with Backend(answering(sent)) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        for _ in range(2):
            answer = await client.ask(request(method=b"HEAD"), bodiless=True)
            assert (answer.status, answer.one(b"content-length")) == (200, b"1000")
        assert backend.connections == 1


async def test_the_answer_names_its_replica() -> None:
    async with Backend(answering(response())) as backend:
        named = document(snapshot(backend.url, 0.9, id="gpu-03/engine\r\nX-Evil: ä"))
        fleet, _ = hear(fleet_of([]), "http://sidecar:9400", named, 0.0)
        async with data_plane(fleet=fleet) as plane:
            answer = await (await plane.client()).ask(request())
    assert answer.one(b"x-ullage-replica") == b"gpu-03/engine??X-Evil: ??"
    assert answer.one(b"x-evil") is None


async def test_a_data_parallel_rank_is_asked_for_by_its_header() -> None:
    async with Backend(answering(response())) as backend:
        ranks = document(snapshot(backend.url, 0.9, dp_rank=3))
        fleet, _ = hear(fleet_of([]), "http://sidecar:9400", ranks, 0.0)
        async with data_plane(fleet=fleet) as plane:
            forged = [(b"X-Data-Parallel-Rank", b"7")]
            await (await plane.client()).ask(request(headers=forged))
    assert backend.requests[0].all(b"x-data-parallel-rank") == [b"3"]


async def ask_mixed(plane: Plane, model: bytes) -> Answer:
    return await (await plane.client()).ask(request(body=b'{"model": "%s"}' % model))


async def test_a_request_goes_to_the_replica_that_serves_its_model() -> None:
    async with (
        Backend(answering(response(b"x"))) as x,
        Backend(answering(response(b"y"))) as y,
    ):
        heard = document(snapshot(x.url, 0.2, models=("x",)), snapshot(y.url, 1.0, models=("y",)))
        fleet, _ = hear(fleet_of([]), "http://sidecar:9400", heard, 1e9)
        async with data_plane(fleet=fleet) as plane:
            assert [(await ask_mixed(plane, b"x")).body for _ in range(5)] == [b"x"] * 5
            assert [(await ask_mixed(plane, b"y")).body for _ in range(5)] == [b"y"] * 5


async def test_the_last_chunk_may_come_with_the_head() -> None:
    assert (await returned(chunked_head() + LAST_CHUNK)).body == b""
