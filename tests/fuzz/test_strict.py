"""The strict reader itself: what it lets pass is what the fuzzers hold the router to."""

import pytest

import readers
import strict

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"
TE = b"Transfer-Encoding: chunked\r\n"
SOUND = [
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    HEAD + b"Content-Length: 5\r\n\r\nhello",
    HEAD + TE + b"\r\n5;a=b\r\nhello\r\n0\r\nT: t\r\n\r\n",
]
AMBIGUOUS = {
    "length and chunks": HEAD + b"Content-Length: 5\r\n" + TE + b"\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "one length twice": HEAD + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "a list of lengths": HEAD + b"Content-Length: 5, 5\r\n\r\nhello",
    "a signed length": HEAD + b"Content-Length: +5\r\n\r\nhello",
    "a folded coding": HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "a coding that is not last": HEAD + b"Transfer-Encoding: chunked, x\r\n\r\n0\r\n\r\n",
    "chunked twice": HEAD + TE + TE + b"\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST / HTTP/1.0\r\n" + TE + b"\r\n0\r\n\r\n",
    "space before the colon": HEAD + b"Content-Length : 5\r\n\r\nhello",
    "a bare LF": HEAD + b"X: a\nContent-Length: 5\r\n\r\nhello",
    "a bare CR": HEAD + b"X: a\rContent-Length: 5\r\n\r\nhello",
    "NUL": HEAD + b"X: a\0\r\n\r\n",
    "two hosts": HEAD + b"Host: b\r\n\r\n",
    "a size in another base": HEAD + TE + b"\r\n0x1\r\nx\r\n0\r\n\r\n",
    "a size that is too small": HEAD + TE + b"\r\n1\r\nxy\r\n0\r\n\r\n",
    "a size that ends in LF": HEAD + TE + b"\r\n1\nx\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("sound", SOUND)
def test_a_sound_request_is_one_to_both_readers(sound: bytes) -> None:
    (message,) = strict.requests(sound)
    assert message.end == len(sound)
    assert len(readers.read_requests([sound])[0]) == 1


@pytest.mark.parametrize("sent", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
def test_what_two_readers_could_read_differently_passes_neither(sent: bytes) -> None:
    """RFC 9112 §6.3: request smuggling."""
    assert strict.requests(sent + SOUND[0]) == []
    assert readers.read_requests([sent + SOUND[0]])[0] == []
