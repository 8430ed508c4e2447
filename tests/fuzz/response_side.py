"""What must hold for any bytes whatever that a replica sends.

* Nothing but `InvalidResponseError` is raised; how the bytes are cut does not change the verdict.
* A response that passes is the one that a strict reader sees: same status, reason, content, fields.
* Nothing behind its end passes, and what is not whole never looks whole to the client.
* What the client gets of a whole one is exactly one response, for h11 and the strict reader alike.
* A body without a length ends with the connection, and not before.
* A reader that has read other responses before reads this one alike.
"""

import re
import zlib
from random import Random
from typing import Final

import h11

import mutate
import readers
import strict
from request_side import Header

FORMS: Final = [(False, False), (True, False), (False, True), (True, True)]
"""`bodiless` (it answers a HEAD), `dechunk` (the client speaks HTTP/1.0)."""
BEFORE: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
_LONG_SIZE: Final = re.compile(rb"\n0{12}")
_HOP: Final = {
    *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization"),
    *(b"proxy-connection", b"te", b"trailer", b"upgrade", b"transfer-encoding"),
    *(b"content-length", b"x-ullage-replica", b"x-request-id"),
}


def check(wire: bytes, *, valid: bool = False) -> None:
    """Raise `AssertionError` where something above does not hold. `valid`: then it passes, too."""
    for bodiless, dechunk in FORMS:
        _check(wire, bodiless=bodiless, dechunk=dechunk, valid=valid and not bodiless)


def _check(wire: bytes, *, bodiless: bool, dechunk: bool, valid: bool) -> None:
    try:
        seen = strict.response(wire, bodiless=bodiless)
    except (strict.NotHttpError, strict.UnfinishedError):
        seen = None
    rng = Random(zlib.crc32(wire))
    behind = len(wire) - seen.end if seen else 0
    came = [
        readers.read_response(pieces, bodiless=bodiless, dechunk=dechunk, reader=reader, hot=hot)
        for pieces, reader, hot in (
            ([wire], None, False),
            (mutate.cut(wire, rng), None, True),
            (mutate.cut(wire, rng), _used_reader(), False),
        )
    ]
    for passed in came:
        if not behind:  # Else it depends on whether that comes at once.
            assert passed.verdict == came[0].verdict, ("depends on cuts", passed, came[0])
        if seen is None:
            assert passed.state != "whole", ("let through", passed)
        else:
            check_content(passed, wire, seen, dechunk=dechunk)
        if passed.to_client:
            check_client(passed, seen, bodiless=bodiless, http_1_0=dechunk)
        if valid:
            assert passed.state == "whole", ("refused", passed)


def _used_reader() -> readers.ResponseReader:
    reader = readers.response_reader()
    assert readers.read_response([BEFORE], reader=reader).state == "whole"
    return reader


def check_content(
    passed: readers.Passed, wire: bytes, seen: strict.Message, *, dechunk: bool
) -> None:
    """What passed of the body is a part of the right one; all of it, where it is whole."""
    content = seen.content if dechunk and seen.codings else wire[seen.body_at : seen.end]
    assert content.startswith(passed.body), ("other than was sent", passed.body, content)
    if passed.state == "whole":
        assert passed.body == content, ("not all", passed.body, content)
        assert seen.end == len(wire) or not seen.until_close


def check_client(
    passed: readers.Passed, seen: strict.Message | None, *, bodiless: bool, http_1_0: bool
) -> None:
    """The client gets one response, or what no client takes for one."""
    try:
        got = strict.response(passed.to_client, bodiless=bodiless)
    except (strict.UnfinishedError, strict.NotHttpError):
        got = None
    if passed.state != "whole":
        assert got is None or passed.without_end, ("looks whole", passed)
        return
    assert got is not None, ("the client cannot read it", passed)
    assert seen is not None
    assert got.end == len(passed.to_client), ("more than one response", passed)
    assert got.start == (b"1.1", *seen.start[1:]), (got.start, seen.start)
    assert got.content == seen.content
    assert got.trailers == ([] if http_1_0 else seen.trailers)
    assert end_to_end(got) == end_to_end(seen), (end_to_end(got), end_to_end(seen))
    known = set(got.codings) <= {b"chunked"} and not _LONG_SIZE.search(passed.to_client)
    if known:  # h11 has no other coding, and takes 20 digits at most.
        check_by_h11(passed.to_client, got, bodiless=bodiless)


def end_to_end(message: strict.Message) -> list[Header]:
    """The fields that must go on as they are, in their order, names in lower case."""
    named = {
        token.strip(b" \t").lower() for v in message.all(b"connection") for token in v.split(b",")
    }
    drop = _HOP | (named - {b"close", b"host"})
    return [(n.lower(), v) for n, v in message.headers if n.lower() not in drop]


def check_by_h11(got: bytes, same: strict.Message, *, bodiless: bool) -> None:
    """For h11, too, it is one response, with nothing left over."""
    client = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    method = b"HEAD" if bodiless else b"GET"
    client.send(h11.Request(method=method, target=b"/", headers=[(b"Host", b"a")]))
    client.send(h11.EndOfMessage())
    client.receive_data(got)
    if same.until_close:
        client.receive_data(b"")
    response, content = client.next_event(), b""
    assert isinstance(response, h11.Response), response
    while isinstance(event := client.next_event(), h11.Data):
        content += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage), event
    assert client.trailing_data[0] == b"", client.trailing_data
    assert (b"%d" % response.status_code, content) == (same.start[1], same.content)
