"""Replicas that die within their answer: no client takes a part for the whole."""

from conformance.checks import (
    body,
    closed,
    cut,
    status,
    times,
)
from conformance.promise import (
    ASK_STREAM,
    NONE,
    REPLY,
    Check,
    Row,
    Seen,
    Then,
    chunk,
    event,
    head,
    post,
    reply,
    says,
    stream,
)
from conformance.wire import openai_error as error_of

BEGUN = stream() + chunk(event(1)) + chunk(event(2))
STREAMED = event(1) + event(2)


def begins(wanted: bytes) -> Check:
    def check(seen: Seen) -> str | None:
        got = seen.answers[-1].body
        return None if got.startswith(wanted) else f"of it came {len(got)} bytes"

    return check


def ends_in_an_error_event(seen: Seen) -> str | None:
    """Behind all that came, one `data: {"error": …}`, then the end without a last chunk."""
    rest = seen.answers[-1].body.removeprefix(STREAMED)
    if not (rest.startswith(b"data: ") and rest.endswith(b"\n\n") and rest.count(b"\n") == 2):
        return "no error event" if not rest else f"behind it: {rest[:40]!r}"
    return None if error_of(rest[6:]) else f"not OpenAI's form: {rest[:40]!r}"


def not_done(seen: Seen) -> str | None:
    """No `[DONE]`, which a client takes for the end of a whole answer."""
    return "[DONE]" if b"[DONE]" in seen.answers[-1].body else None


def looks_cut(seen: Seen) -> str | None:
    return not_done(seen) or cut(seen)


ROWS = (
    Row(
        name="A stream that dies is not taken for whole.",
        source="measured: silent truncation; SMG: `[DONE]` and a clean end",
        sends=(post(ASK_STREAM),),
        replica=says(BEGUN, Then.PAUSE, Then.CLOSE),
        client=(begins(STREAMED), looks_cut),
        upstream=(times(1),),
    ),
    Row(
        name="A stream that dies ends in an error event, then without a last chunk.",
        source="peers.md",
        sends=(post(ASK_STREAM),),
        replica=says(BEGUN, Then.PAUSE, Then.CLOSE),
        client=(status(200), ends_in_an_error_event, not_done),
        ours=(looks_cut, closed),
        upstream=(times(1),),
    ),
    Row(
        name="A stream that is reset ends in an error event, too.",
        source="peers.md",
        sends=(post(ASK_STREAM),),
        replica=says(BEGUN, Then.RESET),
        client=(status(200), ends_in_an_error_event, looks_cut, closed),
        peers=NONE,
    ),
    Row(
        name="A stream that dies within a chunk: what came of it, then the error event.",
        source="peers.md",
        sends=(post(ASK_STREAM),),
        replica=says(BEGUN, b"ff\r\ndata: {", Then.PAUSE, Then.CLOSE),
        client=(status(200), begins(STREAMED), looks_cut, closed),
        peers=NONE,
    ),
    Row(
        name="An answer in chunks that is cut is not taken for whole.",
        source="RFC 9112 §8",
        sends=(post(),),
        replica=says(
            head(b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked") + chunk(REPLY[:30]),
            Then.PAUSE,
            Then.CLOSE,
        ),
        client=(cut,),
        ours=(status(200), body(REPLY[:30]), closed),
        upstream=(times(1),),
    ),
    Row(
        name="A sized answer that is cut ends early, without a byte more.",
        source="RFC 9112 §8",
        sends=(post(),),
        replica=says(reply()[:-20], Then.PAUSE, Then.CLOSE),
        client=(
            lambda seen: (
                None if seen.answers[0].flaw or seen.answers[0].status >= 500 else "it looks whole"
            ),
        ),
        ours=(status(200), body(REPLY[:-20]), closed, times(1)),
    ),
    Row(
        name="A stream without chunks, for HTTP/1.0, is reset when it is cut.",
        source="RFC 9112 §8: an orderly close would be its end",
        sends=(
            head(
                b"POST /v1/chat/completions HTTP/1.0",
                b"Content-Type: application/json",
                b"Content-Length: %d" % len(ASK_STREAM),
            )
            + ASK_STREAM,
        ),
        replica=says(BEGUN, Then.PAUSE, Then.CLOSE),
        client=(looks_cut,),
        ours=(begins(STREAMED),),
        peers=NONE,
    ),
    Row(
        name="An answer that ends with the connection is reset when its replica is.",
        source="RFC 9112 §8",
        sends=(post(),),
        replica=says(head(b"HTTP/1.1 200 OK") + REPLY[:30], Then.RESET),
        client=(cut,),
        peers=NONE,
    ),
)
