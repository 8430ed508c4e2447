"""The first event of a stream: refusal or not, known as soon as it can be."""

import pytest

from scripted_backend import chunk
from ullage_router.http.events import MOST_BYTES, FirstEvent

REFUSAL = (
    b'data: {"error": {"message": "queue is full", "type": "x", "param": null, "code": 503}}\n\n'
)
CASES = {
    "a refusal": (REFUSAL, "queue is full"),
    "a refusal, its code a string": (REFUSAL.replace(b"503", b'"503"'), "queue is full"),
    "a refusal in compact JSON": (b'data:{"error":{"message":"no","code":503}}\n\n', "no"),
    "a refusal with carriage returns": (REFUSAL.replace(b"\n", b"\r\n"), "queue is full"),
    "a refusal and its end": (REFUSAL + b"data: [DONE]\n\n", "queue is full"),
    "a bad request": (REFUSAL.replace(b"503", b"400"), None),
    "an error without a code": (b'data: {"error": {"message": "no"}}\n\n', None),
    "an error that is text": (b'data: {"error": "503"}\n\n', None),
    "not JSON": (b'data: {"error": 503\n\n', None),
    "deeper JSON than can be read": (b'data: {"error":' + b"[" * 9000 + b"\n\n", None),
}


@pytest.mark.parametrize(("sent", "says"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_a_refusal_is_told_from_other_events(
    sent: bytes, says: str | None, chunked: bool, step: int
) -> None:
    event = FirstEvent(chunked=chunked)
    pieces = [sent[i : i + step] for i in range(0, len(sent), step)]
    fed = b""
    for piece in pieces:
        framed = chunk(piece) if chunked else piece
        fed += framed
        if event.feed(framed):
            break
    assert event.raw == fed
    assert event.refusal == says


@pytest.mark.parametrize(
    "first", [b"data: {", b'data: {"id": "cmpl-1"', b": ping", b"event: x\n", b"\n", b"hello"]
)
def test_what_cannot_become_a_refusal_is_not_waited_for(first: bytes) -> None:
    waits = b'data:{"error":'.startswith(first.replace(b" ", b""))
    assert FirstEvent(chunked=False).feed(first) is not waits
    assert FirstEvent(chunked=True).feed(chunk(first)) is not waits


def test_an_event_without_end_is_let_go() -> None:
    event = FirstEvent(chunked=False)
    assert not event.feed(b'data: {"error": "' + b"x" * 1000)
    assert event.feed(b"x" * MOST_BYTES)
    assert event.refusal is None


def test_nothing_is_no_event_yet() -> None:
    event = FirstEvent(chunked=True)
    assert not event.feed(b"")
    assert not event.feed(b"5")
    assert event.refusal is None
