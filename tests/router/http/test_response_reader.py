import gc
import itertools
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage_router.http.response import InvalidResponseError, ResponseReader


class Outcome:
    """What a reader made of the pieces."""

    def __init__(self, *pieces: bytes, bodiless: bool = False, dechunk: bool = False) -> None:
        reader = ResponseReader()
        reader.begin(bodiless=bodiless, dechunk=dechunk)
        self.body, self.invalid = b"", False
        for piece in pieces:
            if reader.whole or self.invalid:
                self.behind = True
                continue
            try:
                self.body += reader.feed(piece)
            except InvalidResponseError:
                self.invalid = True
        self.head, self.whole, self.keep_alive = reader.head, reader.whole, reader.keep_alive
        self.reader = reader

    @property
    def all(self) -> tuple[object, ...]:
        if self.invalid:
            return ("invalid",)
        return self.head, self.body, self.whole, self.keep_alive


SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: 1\r\nx: 2\r\n\r\nhello"
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
CHUNKS = b"3\r\nhel\r\n2;ext=1\r\nlo\r\n0\r\nTrailer: t\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS
CLOSING = SIZED.replace(b"X: 1", b"Connection: close")
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + SIZED
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"
NOT_MODIFIED = b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\nX: 1\r\n\r\nhello"
NO_REASON = b"HTTP/1.1 200 \r\nContent-Length: 5\r\n\r\nhello"
SOUND = [SIZED, EMPTY, CHUNKED, CLOSING, INTERIM, NO_CONTENT, NOT_MODIFIED, UNTIL_CLOSE, NO_REASON]


def test_a_response_comes_out_as_it_was_sent() -> None:
    outcome = Outcome(SIZED)
    assert outcome.head is not None
    assert (outcome.head.status, outcome.head.reason) == (200, b"OK")
    assert outcome.head.fields.kept == [b"Content-Length: 5", b"X: 1", b"x: 2"]
    assert (outcome.body, outcome.whole, outcome.keep_alive) == (b"hello", True, True)
    assert not outcome.head.until_close


def test_a_chunked_body_passes_with_its_framing_extensions_and_trailers() -> None:
    assert Outcome(CHUNKED).body == CHUNKS


def test_a_client_that_cannot_read_chunks_gets_the_bare_content() -> None:
    assert Outcome(CHUNKED, dechunk=True).body == b"hello"
    assert Outcome(SIZED, dechunk=True).body == b"hello"


def test_interim_responses_are_dropped() -> None:
    outcome = Outcome(INTERIM)
    assert outcome.head == Outcome(SIZED).head
    assert outcome.body == b"hello"


@pytest.mark.parametrize("sound", [SIZED, INTERIM, CHUNKED, NO_CONTENT, UNTIL_CLOSE])
def test_empty_lines_before_a_head_are_no_body(sound: bytes) -> None:
    assert Outcome(b"\r\n\r\n" + sound).all == Outcome(sound).all
    parted = sound.replace(b"\r\n\r\nHTTP", b"\r\n\r\n\r\n\r\nHTTP")
    assert Outcome(parted).all == Outcome(sound).all


@pytest.mark.parametrize("sound", [NO_CONTENT, NOT_MODIFIED])
def test_some_statuses_have_no_body_whatever_the_head_says(sound: bytes) -> None:
    outcome = Outcome(sound)
    assert (outcome.body, outcome.whole, outcome.keep_alive) == (b"", True, True)


@pytest.mark.parametrize("head", [SIZED[:-5], CHUNKED[: -len(CHUNKS)], EMPTY])
def test_the_answer_to_head_is_whole_with_its_head(head: bytes) -> None:
    outcome = Outcome(head, bodiless=True)
    assert (outcome.body, outcome.whole, outcome.keep_alive) == (b"", True, True)


@pytest.mark.parametrize("sound", [SIZED, CHUNKED, NO_CONTENT + b"hello", NOT_MODIFIED + b"hello"])
def test_a_body_where_there_must_be_none_is_dropped_and_ends_the_connection(sound: bytes) -> None:
    outcome = Outcome(sound, bodiless=not sound.startswith((NO_CONTENT, NOT_MODIFIED)))
    assert (outcome.body, outcome.whole, outcome.keep_alive) == (b"", True, False)


@pytest.mark.parametrize("sound", [SIZED, EMPTY, CHUNKED])
@pytest.mark.parametrize("excess", [b"x", b"HTTP/1.1 200 OK\r\n\r\n", SIZED, b"\r\n\r\nHTTP/1.1 2"])
def test_bytes_behind_the_end_make_it_invalid(sound: bytes, excess: bytes) -> None:
    assert Outcome(sound + excess).invalid


def test_a_response_that_closes_ends_the_connection() -> None:
    outcome = Outcome(CLOSING)
    assert (outcome.body, outcome.whole, outcome.keep_alive) == (b"hello", True, False)


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    outcome = Outcome(head + b"hel", b"lo")
    assert outcome.head is not None
    assert outcome.head.until_close
    assert (outcome.body, outcome.whole) == (b"hello", False)
    assert outcome.reader.end_of_stream()
    assert not outcome.reader.keep_alive


@pytest.mark.parametrize("part", [SIZED[:10], SIZED[:-1], CHUNKED[:-1], CHUNKED[:60], b""])
def test_an_early_end_is_not_the_end(part: bytes) -> None:
    assert not Outcome(part).reader.end_of_stream()


INVALID = {
    "not HTTP": b"SSH-2.0-OpenSSH\r\n",
    "length and chunks": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    ),
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
    "obsolete folding": b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
    "bare LF": b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
    "NUL": b"HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n",
    "bad chunk size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "status of two digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "switching protocols": (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
    ),
}


@pytest.mark.parametrize("sent", INVALID.values(), ids=INVALID.keys())
def test_what_is_not_a_response_is_invalid(sent: bytes) -> None:
    assert Outcome(sent).invalid


def test_a_head_without_end_is_invalid_before_it_fills_the_memory() -> None:
    endless = [b"HTTP/1.1 200 OK\r\nX: ", *[b"a" * 65_536] * 5]
    assert Outcome(*endless).invalid


def test_a_reader_that_is_closed_leaves_no_cycle_behind() -> None:
    """Report 3: leaks."""
    gc.disable()
    try:
        reader = ResponseReader()
        reader.begin(bodiless=False, dechunk=True)
        reader.feed(CHUNKED)
        reader.close()
        gone = weakref.ref(reader)
        del reader
        assert gone() is None
    finally:
        gc.enable()


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@settings(deadline=None, max_examples=150)
@given(
    sent=st.sampled_from(SOUND),
    cuts=st.lists(st.integers(0, 300), max_size=8),
    blank=st.sampled_from([b"", b"\r\n", b"\r\n\r\n"]),
    dechunk=st.booleans(),
)
def test_how_the_bytes_are_cut_changes_nothing(
    sent: bytes, cuts: list[int], blank: bytes, dechunk: bool
) -> None:
    sent = blank + sent
    whole = Outcome(sent, dechunk=dechunk).all
    assert Outcome(*split(sent, cuts), dechunk=dechunk).all == whole
    assert Outcome(*(sent[i : i + 1] for i in range(len(sent))), dechunk=dechunk).all == whole


@settings(deadline=None, max_examples=150)
@given(
    sent=st.sampled_from([*SOUND, *INVALID.values()]),
    noise=st.binary(max_size=40),
    at=st.integers(0, 120),
    bodiless=st.booleans(),
)
def test_no_bytes_whatever_raise_anything_else(
    sent: bytes, noise: bytes, at: int, bodiless: bool
) -> None:
    Outcome(sent[:at] + noise + sent[at:], bodiless=bodiless)
