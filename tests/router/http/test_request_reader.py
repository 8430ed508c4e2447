import itertools
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage_router.http.message import CACHE_KEY, NOTED, PRIORITY, Fields, Request
from ullage_router.http.request import RequestReader

MAX_HEAD, MAX_HEADERS, MAX_BODY = 4096, 100, 1000


def reader(noted: frozenset[bytes] = NOTED) -> RequestReader:
    return RequestReader(
        b"192.0.2.1",
        max_head_bytes=MAX_HEAD,
        max_headers=MAX_HEADERS,
        max_body_bytes=MAX_BODY,
        noted=noted,
    )


def read(*pieces: bytes, noted: frozenset[bytes] = NOTED) -> tuple[list[Request], str | None]:
    """All requests in `pieces`, and the code of the refusal behind them."""
    r = reader(noted)
    requests = [request for piece in pieces for request in r.feed(piece)]
    return requests, r.refusal.code if r.refusal else None


def post(*headers: bytes, body: bytes = b"", version: bytes = b"1.1") -> bytes:
    lines = [b"POST /p HTTP/" + version, b"Host: a", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


GET = b"GET /g?q=%2F HTTP/1.1\r\nHost: a\r\n\r\n"
SIZED = post(b"Content-Length: 5", body=b"hello")
CHUNKED = post(
    b"Transfer-Encoding: chunked", body=b"3\r\nhel\r\n2;ext=1\r\nlo\r\n0\r\nT: t\r\n\r\n"
)
H2C = post(
    b"Connection: Upgrade, HTTP2-Settings",
    b"Upgrade: h2c",
    b"HTTP2-Settings: AAMAAABk",
    b"Content-Length: 5",
    body=b"hello",
)
H2C_GET = b"GET /u HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"


def test_a_request_comes_out_as_it_was_sent() -> None:
    headers = [(b"Host", b"a"), (b"X-Twice", b"1"), (b"x-twice", b"2"), (b"Empty", b"")]
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    (request,), refusal = read(b"GET /a%2Fb?c=%20&d=+ HTTP/1.1\r\n" + lines + b"\r\n")
    assert refusal is None
    assert request == Request(
        method=b"GET",
        target=b"/a%2Fb?c=%20&d=+",
        fields=Fields([b"X-Twice: 1", b"x-twice: 2", b"Empty: "], {b"host": [b"a"]}),
        body=b"",
        http_1_0=False,
        keep_alive=True,
        client=b"192.0.2.1",
    )


def test_what_choosing_goes_by_is_noted_and_passes_as_it_came() -> None:
    lines = [b"X-Ullage-Cache-Key: a", b"x-b: 1", b"x-ullage-cache-key: b", b"X-ULLAGE-Priority: 5"]
    (request,), refusal = read(post(*lines))
    noted = {CACHE_KEY: [b"a", b"b"], PRIORITY: [b"5"]}
    assert request.fields == Fields(lines, {b"host": [b"a"]} | noted)
    assert request.fields.first(CACHE_KEY) == b"a"
    assert refusal is None


def test_another_field_is_noted_if_it_is_named() -> None:
    lines = [b"X-Session-ID: s", b"X-Ullage-Cache-Key: a"]
    (request,), _ = read(post(*lines), noted=frozenset({b"x-session-id"}))
    assert request.fields == Fields(lines, {b"host": [b"a"], b"x-session-id": [b"s"]})


@pytest.mark.parametrize("name", [b"x-request-id", b"host", b"connection", b"x-forwarded-for"])
def test_to_note_what_is_withheld_does_not_let_it_pass(name: bytes) -> None:
    lines = [] if name == b"host" else [name + b": a"]
    (request,), _ = read(post(*lines), noted=frozenset({name}))
    assert request.fields == Fields([], {b"host": [b"a"], name: [b"a"]})


def test_what_is_for_this_connection_alone_is_neither_passed_nor_noted() -> None:
    asked = post(
        b"X-Ullage-Cache-Key: a", b"Connection: X-Ullage-Cache-Key", b"X-Ullage-Priority: 5"
    )
    (request,), _ = read(asked)
    assert request.fields.kept == [b"X-Ullage-Priority: 5"]
    assert request.fields.first(CACHE_KEY) is None
    assert request.fields.first(PRIORITY) == b"5"


def test_a_noted_field_counts_once() -> None:
    others = [b"X: %d" % i for i in range(MAX_HEADERS - 2)]
    fits = post(*others, b"X-Ullage-Priority: 5")
    assert len(read(fits + fits)[0]) == 2
    one_more = post(*others, *[b"X-Ullage-Priority: 5"] * 2)
    assert read(one_more) == ([], "too_many_headers")
    assert read(fits + one_more)[1] == "too_many_headers"
    frame = len(b"/p") + len(b"Host: a\r\n") + len(b"X-Ullage-Cache-Key: \r\n")
    assert len(read(post(b"X-Ullage-Cache-Key: " + b"x" * (MAX_HEAD - frame)))[0]) == 1
    assert len(read(post(b"X-Ullage-Cache-Key: " + b"x" * (MAX_HEAD - frame + 1)))[0]) == 0


def test_a_noted_trailer_is_dropped() -> None:
    body = b"0\r\nX-Ullage-Priority: 5\r\n\r\n"
    requests, refusal = read(post(b"Transfer-Encoding: chunked", body=body) + GET)
    assert [r.fields.kept for r in requests] == [[], []]
    assert [r.fields.first(PRIORITY) for r in requests] == [None, None]
    assert refusal is None


def test_past_a_wish_to_upgrade_a_noted_field_passes_once() -> None:
    asking = H2C.replace(b"Content-Length", b"X-Ullage-Cache-Key: a\r\nContent-Length")
    (request,), _ = read(asking)
    assert request.fields.kept == [b"X-Ullage-Cache-Key: a"]
    assert request.fields.values[CACHE_KEY] == [b"a"]
    assert request.body == b"hello"


@pytest.mark.parametrize("method", [b"GET", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"HEAD"])
def test_every_method_passes(method: bytes) -> None:
    (request,), refusal = read(method + b" / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (request.method, refusal) == (method, None)


def test_a_chunked_body_comes_out_whole_without_framing_or_trailers() -> None:
    (request,), refusal = read(CHUNKED)
    assert (request.body, refusal) == (b"hello", None)
    assert request.fields.kept == []
    assert b"t" not in request.fields.values


def test_pipelined_requests_come_out_in_order() -> None:
    requests, refusal = read(GET + SIZED + CHUNKED + GET)
    assert [r.method for r in requests] == [b"GET", b"POST", b"POST", b"GET"]
    assert refusal is None


def test_http_1_0_closes_unless_it_asks_to_stay() -> None:
    (one,), _ = read(b"GET / HTTP/1.0\r\n\r\n")
    (two,), _ = read(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert (one.http_1_0, one.keep_alive) == (True, False)
    assert (two.http_1_0, two.keep_alive) == (True, True)


def test_a_request_that_closes_is_the_last() -> None:
    requests, refusal = read(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" + GET)
    assert [r.keep_alive for r in requests] == [False]
    assert refusal == "bad_request"


@pytest.mark.parametrize("asking", [H2C_GET, H2C, H2C + GET, GET + H2C_GET + SIZED + H2C + GET])
def test_a_wish_for_another_protocol_is_read_past_once(asking: bytes) -> None:
    requests, refusal = read(asking)
    expected = asking.count(b" HTTP/1.1\r\n")
    assert (len(requests), refusal) == (expected, None)
    assert all(r.body == (b"hello" if r.method == b"POST" else b"") for r in requests)
    assert not any(b"upgrade" in r.fields.values for r in requests)


def test_a_wish_to_upgrade_and_close_still_closes() -> None:
    asking = H2C_GET.replace(b"upgrade\r\n", b"upgrade, close\r\n")
    (request,), refusal = read(asking)
    assert (request.keep_alive, refusal) == (False, None)


def test_thousands_of_wishes_to_upgrade_cost_no_more_than_other_requests() -> None:
    requests, refusal = read(H2C_GET * 4000)
    assert (len(requests), refusal) == (4000, None)


REFUSED = {
    "length and chunks": post(
        b"Content-Length: 5", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"
    ),
    "chunks and length": post(
        b"Transfer-Encoding: chunked", b"Content-Length: 5", body=b"0\r\n\r\n"
    ),
    "two equal lengths": post(b"Content-Length: 5", b"Content-Length: 5", body=b"hello"),
    "two lengths": post(b"Content-Length: 5", b"Content-Length: 6", body=b"hello!"),
    "a list of lengths": post(b"Content-Length: 5, 5", body=b"hello"),
    "chunked twice": post(b"Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n"),
    "chunked in two lines": post(
        b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"
    ),
    "chunked before identity": post(b"Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n"),
    "chunked before gzip": post(
        b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", body=b"0\r\n\r\n"
    ),
    "an empty coding": post(b"Transfer-Encoding: ", body=b"0\r\n\r\n"),
    "chunk size with sign": post(b"Transfer-Encoding: chunked", body=b"+5\r\nhello\r\n0\r\n\r\n"),
    "chunk size negative": post(b"Transfer-Encoding: chunked", body=b"-5\r\nhello\r\n0\r\n\r\n"),
    "chunk size 0x": post(b"Transfer-Encoding: chunked", body=b"0x5\r\nhello\r\n0\r\n\r\n"),
    "chunk size overflow": post(b"Transfer-Encoding: chunked", body=b"f" * 17 + b"\r\nhello"),
    "chunk too long": post(b"Transfer-Encoding: chunked", body=b"4\r\nhello\r\n0\r\n\r\n"),
    "chunk ends in LF": post(b"Transfer-Encoding: chunked", body=b"5\nhello\n0\n\n"),
    "length in a trailer": post(
        b"Transfer-Encoding: chunked", body=b"0\r\nContent-Length: 9\r\n\r\n"
    ),
    "obsolete folding": post(b"X: a\r\n b"),
    "bare LF": b"GET / HTTP/1.1\nHost: a\n\n",
    "bare LF in a header": post(b"X: a\nY: b"),
    "bare CR in a header": post(b"X: a\rY: b"),
    "NUL in a header": post(b"X: a\0b"),
    "NUL in a name": post(b"X\0: a"),
    "NUL in the target": b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n",
    "space before the colon": post(b"Content-Length : 5", body=b"hello"),
    "space before the first name": b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
    "no colon": post(b"nonsense"),
    "no name": post(b": a"),
    "no Host": b"GET / HTTP/1.1\r\n\r\n",
    "two Hosts": post(b"Host: b"),
    "the same Host twice": post(b"Host: a"),
    "no Host, wants h2c": b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    "HTTP/0.9": b"GET / HTTP/0.9\r\nHost: a\r\n\r\n",
    "HTTP/2.0": b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: a\r\n\r\n",
    "h2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "space in the target": b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
    "unknown method": b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n",
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "garbage": b"\x00\xff garbage \r\n\r\n",
}


@pytest.mark.parametrize("sent", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_strictly_http_goes_no_further(sent: bytes) -> None:
    requests, refusal = read(sent + GET)
    assert (requests, refusal) == ([], "bad_request")


ODD_LENGTHS = [
    *(b"+5", b"-5", b"-0", b"5a", b"0x5", b"5_0", b"5 5", b"5,", b"", b"5.0", b"1e3", b"NaN"),
    *(b"\xb2", "٥".encode(), b"9" * 19, b"9" * 20, b"1" * 3000, b"18446744073709551616"),
]


@pytest.mark.parametrize("length", ODD_LENGTHS)
def test_an_odd_length_is_refused_and_raises_nothing(length: bytes) -> None:
    requests, refusal = read(post(b"Content-Length: " + length, body=b"hello") + GET)
    assert requests == []
    assert refusal in ("bad_request", "body_too_large")


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=40))
def test_no_length_whatever_raises(length: bytes) -> None:
    read(post(b"Content-Length: " + length, body=b"hello") + GET)


@pytest.mark.parametrize(
    "coding", [b"gzip", b"gzip, chunked", b"identity", b"x\r\nTransfer-Encoding: chunked"]
)
def test_a_coding_that_nobody_would_undo_is_not_implemented(coding: bytes) -> None:
    requests, refusal = read(post(b"Transfer-Encoding: " + coding, body=b"0\r\n\r\n"))
    assert (requests, refusal) == ([], "not_implemented")


@pytest.mark.parametrize("target", [b"host:443", b"host"])
def test_connect_is_refused_and_never_comes_out(target: bytes) -> None:
    requests, refusal = read(b"CONNECT " + target + b" HTTP/1.1\r\nHost: a\r\n\r\n" + GET)
    assert requests == []
    assert refusal in ("method_not_allowed", "bad_request")


def test_what_came_whole_before_the_fault_is_still_answered() -> None:
    requests, refusal = read(GET + SIZED + b"nonsense\r\n\r\n")
    assert (len(requests), refusal) == (2, "bad_request")


def test_nothing_is_read_behind_a_refusal() -> None:
    assert read(b"nonsense\r\n\r\n", GET, GET) == ([], "bad_request")


def test_a_head_may_be_as_large_as_the_limit_and_no_larger() -> None:
    frame = len(b"/p") + len(b"Host: a\r\n") + len(b"X: \r\n")
    fits = post(b"X: " + b"x" * (MAX_HEAD - frame - 1))
    assert len(read(fits)[0]) == 1
    assert read(post(b"X: " + b"x" * (MAX_HEAD - frame + 2))) == ([], "headers_too_large")


@pytest.mark.parametrize(
    "endless",
    [
        [b"GET /", *[b"a" * 100] * 1000],
        [b"GET / HTTP/1.1\r\nHost: a\r\nX: ", *[b"a" * 100] * 1000],
        [b"GET / HTTP/1.1\r\nHost: a\r\n", *[b"a" * 100] * 1000],
        [b"GET / HTTP/1.1\r\nHost: a\r\n", *[b"X: a\r\n"] * 10_000],
        [post(b"Transfer-Encoding: chunked", body=b"0\r\n"), *[b"T: t\r\n"] * 10_000],
        [post(b"Transfer-Encoding: chunked", body=b"0\r\nT: "), *[b"a" * 100] * 1000],
        [post(b"Transfer-Encoding: chunked", body=b"5;"), *[b"a" * 100] * 1000],
    ],
    ids=["target", "value", "name", "headers", "trailers", "trailer", "chunk extension"],
)
def test_a_head_without_end_is_refused_before_it_fills_the_memory(endless: list[bytes]) -> None:
    r = reader()
    fed = 0
    tracemalloc.start()
    for piece in endless:
        assert r.feed(piece) == []
        fed += len(piece)
        if r.refusal:
            break
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert r.refusal is not None
    assert r.refusal.status == 431
    assert fed <= 3 * MAX_HEAD
    assert peak < 50 * MAX_HEAD


def test_a_trickle_of_small_chunks_is_not_taken_for_an_endless_head() -> None:
    body = b"1\r\nx\r\n" * MAX_BODY + b"0\r\n\r\n"
    (request,), refusal = read(
        *(post(b"Transfer-Encoding: chunked", body=body)[i : i + 1] for i in range(6200))
    )
    assert (request.body, refusal) == (b"x" * MAX_BODY, None)


def test_a_body_may_be_as_large_as_the_limit_and_no_larger() -> None:
    sized = post(b"Content-Length: %d" % MAX_BODY, body=b"x" * MAX_BODY)
    assert len(read(sized)[0]) == 1
    assert read(post(b"Content-Length: %d" % (MAX_BODY + 1))) == ([], "body_too_large")
    chunked = post(b"Transfer-Encoding: chunked", body=b"3e8\r\n" + b"x" * 1000 + b"\r\n")
    assert read(chunked + b"0\r\n\r\n")[1] is None
    assert read(chunked + b"1\r\nx\r\n0\r\n\r\n") == ([], "body_too_large")


def test_expecting_to_continue_is_known_once_the_head_is_whole() -> None:
    r = reader()
    r.feed(post(b"Expect: 100-Continue", b"Content-Length: 5"))
    assert r.wants_continue
    assert len(r.feed(b"hello")) == 1
    assert not r.wants_continue


def test_http_1_0_is_never_told_to_continue() -> None:
    r = reader()
    r.feed(post(b"Expect: 100-continue", b"Content-Length: 5", version=b"1.0"))
    assert not r.wants_continue


def split(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


messages = st.sampled_from([GET, SIZED, CHUNKED, H2C, H2C_GET, *REFUSED.values()])


@settings(deadline=None, max_examples=150)
@given(
    st.lists(messages, min_size=1, max_size=4).map(b"".join),
    st.lists(st.integers(0, 5000), max_size=12),
)
def test_how_the_bytes_are_cut_changes_nothing(sent: bytes, cuts: list[int]) -> None:
    whole = read(sent)
    assert read(*split(sent, cuts)) == whole
    assert read(*(sent[i : i + 1] for i in range(len(sent)))) == whole


@settings(deadline=None, max_examples=150)
@given(st.lists(messages, max_size=2).map(b"".join), st.binary(max_size=60), st.integers(0, 400))
def test_no_bytes_whatever_raise(sent: bytes, noise: bytes, at: int) -> None:
    read(sent[:at] + noise + sent[at:])


def test_a_body_in_very_many_pieces_is_whole() -> None:
    body = bytes(range(256)) * 3
    head = post(b"Content-Length: %d" % len(body))
    (request,), refusal = read(head, *(body[i : i + 1] for i in range(len(body))))
    assert (request.body, refusal) == (body, None)
    (chunked,), refusal = read(
        post(b"Transfer-Encoding: chunked", body=b"".join(b"1\r\n%c\r\n" % byte for byte in body)),
        b"0\r\n\r\n",
    )
    assert (chunked.body, refusal) == (body, None)


def test_an_upgrade_of_another_protocol_is_refused() -> None:
    asked = b"DESCRIBE / RTSP/1.0\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
    assert read(asked) == ([], "bad_request")
