"""Clients of 1996: they know neither chunks nor that a connection stays."""

from conformance.checks import (
    body,
    closed,
    field,
    framed,
    status,
    whole,
)
from conformance.promise import (
    ASK,
    ASK_STREAM,
    CHAT,
    LAST,
    REPLY,
    WELL,
    Do,
    Row,
    chunk,
    event,
    head,
    stream,
)
from conformance.replica import Call

OLD = head(
    b"POST %s HTTP/1.0" % CHAT,
    b"Content-Type: application/json",
    b"Content-Length: %d" % len(ASK),
)
OLD_STAYS = OLD[:-2] + b"Connection: keep-alive\r\n\r\n"
OLD_STREAM = OLD_STAYS.replace(b"%d" % len(ASK), b"%d" % len(ASK_STREAM))


async def streams(call: Call) -> None:
    """In chunks, or to an HTTP/1.0 proxy (some forward the client's version) without them."""
    if call.request.version == b"HTTP/1.1":
        await call.send(stream() + chunk(event(1)) + chunk(event(2)) + LAST)
    else:
        await call.send(head(b"HTTP/1.0 200 OK", b"Content-Type: text/event-stream"))
        await call.send(event(1) + event(2))
        call.close()


ROWS = (
    Row(
        name="An HTTP/1.0 client gets one answer, then the end.",
        source="RFC 9112 §9.3",
        sends=(OLD + ASK,),
        replica=WELL,
        client=(status(200), body(REPLY), whole, closed),
    ),
    Row(
        name="An HTTP/1.0 client may ask to stay.",
        source="RFC 9112 §9.3",
        sends=(OLD_STAYS + ASK, Do.ANSWER, OLD_STAYS + ASK),
        replica=WELL,
        client=(status(200, 200), field(b"connection", b"keep-alive")),
    ),
    Row(
        name="An HTTP/1.0 client gets a stream without chunk framing, closed at its end.",
        source="RFC 9112 §7.1",
        sends=(OLD_STREAM + ASK_STREAM,),
        replica=streams,
        client=(status(200), framed("close"), body(event(1) + event(2)), whole, closed),
    ),
)
