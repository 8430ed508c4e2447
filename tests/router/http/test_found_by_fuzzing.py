"""What `make fuzz` has found, at its smallest; each stays found."""

import tracemalloc

import pytest

from data_plane import data_plane, eventually
from raw_client import request
from scripted_backend import Backend, Call, chunk, chunked_head
from ullage_router.http.message import Request
from ullage_router.http.request import RequestReader
from ullage_router.http.response import InvalidResponseError, ResponseReader

MAX_HEAD = 8192


def requests_in(*pieces: bytes) -> list[Request]:
    reader = RequestReader(
        b"192.0.2.1", max_head_bytes=MAX_HEAD, max_headers=64, max_body_bytes=1000
    )
    found = [request for piece in pieces for request in reader.feed(piece)]
    reader.close()
    return found


def response_reader(*, bodiless: bool = False, dechunk: bool = False) -> ResponseReader:
    reader = ResponseReader()
    reader.begin(bodiless=bodiless, dechunk=dechunk)
    return reader


def refused(sent: bytes, *, bodiless: bool = False, dechunk: bool = False) -> bool:
    """Is it no response, whether at once or at the connection's end?"""
    reader = response_reader(bodiless=bodiless, dechunk=dechunk)
    try:
        reader.feed(sent)
    except InvalidResponseError:
        return True
    return not reader.end_of_stream()


@pytest.mark.parametrize("cut", [100, 6_000, 9_000, 9_040])
def test_a_head_beyond_the_limit_is_refused_in_however_many_pieces(cut: int) -> None:
    head = b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 9_000 + b"\r\n\r\n"
    assert requests_in(head[:cut], head[cut:]) == []


def test_a_request_whose_coding_ends_in_a_space_is_understood() -> None:
    """RFC 9110 §5.5: such a space is no part of the value."""
    (one,) = requests_in(
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked \r\n\r\n1\r\nx\r\n0\r\n\r\n"
    )
    assert one.body == b"x"


@pytest.mark.parametrize("times", [2, 1_500])
def test_any_number_of_wishes_to_upgrade_at_once_is_read(times: int) -> None:
    wish = b"GET /u HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    assert len(requests_in(wish * times)) == times


def test_a_wish_for_a_websocket_and_to_close_closes() -> None:
    """It matters where the replica declines."""
    wish = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close, upgrade\r\nUpgrade: websocket\r\n\r\n"
    (one,) = requests_in(wish)
    assert one.websocket
    assert not one.keep_alive


def test_a_wish_for_a_websocket_in_http_1_0_is_ignored() -> None:
    """RFC 9110 §7.8. Such a client's connection closes, too."""
    (one,) = requests_in(b"GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
    assert not one.websocket
    assert not one.keep_alive


@pytest.mark.parametrize(
    "second", [b"GET / RTSP/1.0\r\n\r\n", b"GET /  HTTP/1.1\r\nHost: a\r\n\r\n"]
)
def test_a_request_line_is_judged_by_itself_and_not_by_what_came_with_it(second: bytes) -> None:
    first = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    assert requests_in(first + second) == requests_in(first, second)


@pytest.mark.parametrize("end", [b"\r\n", b"\n", b"\r", b"\r\n\r\n"])
@pytest.mark.parametrize("at_once", [True, False])
def test_an_empty_line_behind_a_body_is_not_passed_on(end: bytes, at_once: bool) -> None:
    """It would come before the head of the client's next answer."""
    reader = response_reader()
    head, last = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", b"lo" + end
    try:
        body = reader.feed(head + last) if at_once else reader.feed(head) + reader.feed(last)
    except InvalidResponseError:
        return
    assert body == b"hello"


@pytest.mark.parametrize("space", [b" ", b"\t", b" \t "])
def test_a_body_in_chunks_ends_where_it_ends_however_its_coding_is_spelt(space: bytes) -> None:
    """llhttp took `chunked` and a tab for another coding, and passed all that came behind."""
    sent = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked" + space + b"\r\n\r\n0\r\n\r\n"
    reader = response_reader()
    try:
        body = reader.feed(sent)
        if not reader.whole:
            body += reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
    except InvalidResponseError:
        return
    assert body == b"0\r\n\r\n"
    assert reader.whole


NO_RESPONSES = {
    "NUL in the reason": b"HTTP/1.1 200 O\0K\r\nContent-Length: 0\r\n\r\n",
    "VT in the reason": b"HTTP/1.1 200 O\x0bK\r\nContent-Length: 0\r\n\r\n",
    "DEL in the reason": b"HTTP/1.1 200 O\x7fK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/2.0": b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/0.9": b"HTTP/0.9 200 OK\r\nContent-Length: 0\r\n\r\n",
    "RTSP": b"RTSP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    "a status below 100": b"HTTP/1.1 099 X\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "chunked twice": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\n"
    ),
    "chunked before gzip": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "a length in a trailer": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 5\r\n\r\n"
    ),
    "a coding in a trailer": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nTransfer-Encoding: x\r\n\r\n"
    ),
}


@pytest.mark.parametrize("sent", NO_RESPONSES.values(), ids=NO_RESPONSES.keys())
def test_what_some_client_could_read_otherwise_is_no_response(sent: bytes) -> None:
    assert refused(sent)


def test_several_codings_are_no_response_even_without_a_body() -> None:
    coding = b"Transfer-Encoding: chunked\r\n"
    assert refused(b"HTTP/1.1 204 No Content\r\n" + coding + coding + b"\r\n")
    assert refused(b"HTTP/1.1 200 OK\r\n" + coding + coding + b"\r\n", bodiless=True)


def test_content_that_is_coded_otherwise_too_cannot_be_rid_of_its_chunks() -> None:
    """An HTTP/1.0 client would get it without a word of how it is coded."""
    sent = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
    assert refused(sent, dechunk=True)


def test_trailers_without_end_fill_no_memory() -> None:
    piece = b"X: y\r\n" * 1000
    reader = response_reader()
    reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
    tracemalloc.start()
    try:
        for _ in range(500):
            reader.feed(piece)
        held, _ = tracemalloc.get_traced_memory()
    except InvalidResponseError:
        return
    finally:
        tracemalloc.stop()
    assert held < 2_000_000


@pytest.mark.parametrize("waiting", [1, 8, 12])
async def test_a_client_with_any_number_of_requests_in_line_is_missed_when_it_leaves(
    waiting: int,
) -> None:
    """With more than eight, nothing was read any more, so that its leaving was not either."""

    async def script(call: Call) -> None:
        await call.read_request()
        await call.send(chunked_head() + chunk(b"1"))
        await call.gone()

    async with Backend(script) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        await client.send(request() * (1 + waiting))
        await client.head()
        client.close()
        await eventually(lambda: not plane.in_flight, 1.0)
