"""What must hold for any bytes whatever that a client sends.

* Nothing raises, and how the bytes are cut changes nothing (but when a limit is noticed).
* No head and no body beyond the limits comes out.
* Each request that comes out is the one that a strict reader sees at that place.
* What goes to the replica is exactly that one request, for h11 and for the strict reader alike:
  same method, target, body and end-to-end fields, nothing before, nothing behind (no smuggling).
* Where a strict reader sees no request (malformed or ambiguous framing), none comes out.
"""

import re
import zlib
from random import Random
from typing import Final

import h11

import mutate
import readers
import strict

Header = tuple[bytes, bytes]
Read = tuple[list[readers.Request], str | None]
LIMITS: Final = {"headers_too_large", "too_many_headers", "body_too_large"}

_HOP: Final = {
    *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization"),
    *(b"proxy-connection", b"te", b"trailer", b"upgrade", b"transfer-encoding", b"content-length"),
    *(b"host", b"expect"),
}
_ADDED: Final = {
    *(b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"),
    *(b"x-request-id", b"x-data-parallel-rank"),
}
_ABSOLUTE: Final = re.compile(rb"https?://[^/?]*", re.IGNORECASE)


def check(wire: bytes) -> None:
    """Raise `AssertionError` where something above does not hold."""
    rng = Random(zlib.crc32(wire))
    came = readers.read_requests([wire])
    for _ in range(2):
        pieces = mutate.cut(wire, rng)
        in_pieces = readers.read_requests(pieces)
        assert alike(in_pieces, came), ("depends on how it is cut", pieces, in_pieces, came)
        came = max(came, in_pieces, key=lambda read: len(read[0]))
    seen = strict.requests(wire)
    requests, _ = came
    assert len(requests) <= len(seen), ("let through", requests[len(seen)])
    for request, message in zip(requests, seen, strict=False):
        assert head_bytes(message) <= readers.MAX_HEAD_BYTES, ("head beyond the limit", message)
        assert len(message.content) <= readers.MAX_BODY_BYTES
        dp_rank = rng.choice([None, 3])
        check_sent(readers.sent_upstream(request, dp_rank), message, websocket=request.websocket)


def alike(one: Read, other: Read) -> bool:
    """The same; or one has met a limit earlier."""
    if one == other:
        return True
    short, long = sorted((one, other), key=lambda read: len(read[0]))
    limited = {one[1], other[1]} & LIMITS
    return bool(limited) and long[0][: len(short[0])] == short[0]


def head_bytes(message: strict.Message) -> int:
    """A head's size as the router counts it: its target and its fields."""
    return len(message.start[1]) + sum(len(n) + len(v) + 4 for n, v in message.headers)


def check_valid(wire: bytes) -> None:
    """The same, and that all of it comes out: `wire` is valid, and within the limits."""
    check(wire)
    seen = strict.requests(wire)
    assert seen, "the grammar is wrong"
    assert seen[-1].end == len(wire), "the grammar is wrong"
    closing = [number for number, message in enumerate(seen, 1) if closes(message)]
    requests, refusal = readers.read_requests([wire])
    expected = min([len(seen), *closing])
    assert len(requests) == expected, ("refused, or read on", refusal, requests, seen)
    assert refusal is None or expected < len(seen), ("refused", refusal)


def closes(message: strict.Message) -> bool:
    """Is it the last of its connection (RFC 9112 §9.3)? llhttp minds `Proxy-Connection`, too."""
    values = message.all(b"connection") + message.all(b"proxy-connection")
    tokens = [token.strip(b" \t").lower() for token in b",".join(values).split(b",")]
    return b"close" in tokens or (message.start[2] == b"1.0" and b"keep-alive" not in tokens)


def check_sent(sent: bytes, asked: strict.Message, *, websocket: bool) -> None:
    """What goes to the replica is one request, and the one that was asked."""
    again = strict.request(sent)
    assert again.end == len(sent), ("more than one request", sent)
    method, target, _ = asked.start
    if not target.startswith(b"/"):
        absolute = _ABSOLUTE.match(target)
        if absolute:
            target = target[absolute.end() :]
            target = target if target.startswith(b"/") else b"/" + target
    assert again.start == (method, target, b"1.1"), (again.start, asked.start)
    assert again.content == asked.content, (again.content, asked.content)
    assert again.all(b"host") == [str(readers.REPLICA).encode()], again.headers
    assert not again.codings, again.headers
    assert bool(again.all(b"upgrade")) == bool(again.all(b"connection")) == websocket
    assert end_to_end(again) == end_to_end(asked), (end_to_end(again), end_to_end(asked))
    check_by_h11(sent, again)


def end_to_end(message: strict.Message) -> list[Header]:
    """The fields that must go on as they are, in their order, names in lower case."""
    named = {
        token.strip(b" \t").lower() for v in message.all(b"connection") for token in v.split(b",")
    }
    drop = _HOP | _ADDED | (named - {b"close"})
    return [(n.lower(), v) for n, v in message.headers if n.lower() not in drop]


def check_by_h11(sent: bytes, same: strict.Message) -> None:
    """For h11, too, it is one request, with nothing left over."""
    server = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    server.receive_data(sent)
    request, content = server.next_event(), b""
    assert isinstance(request, h11.Request), request
    while isinstance(event := server.next_event(), h11.Data):
        content += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage), event
    assert server.trailing_data == (b"", False), server.trailing_data
    assert (request.method, request.target, content) == (*same.start[:2], same.content)
    assert list(request.headers) == [(n.lower(), v) for n, v in same.headers]
