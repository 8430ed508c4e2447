"""What the fuzzers know of the router's readers: the only file that names their signatures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import httptools

from ullage_router.http.message import Fields, Head, Request, answer_head, request_head
from ullage_router.http.request import Phase, RequestReader
from ullage_router.http.response import InvalidResponseError, ResponseReader
from ullage_shared.address import Address

MAX_HEAD_BYTES: Final = 8_192
MAX_HEADERS: Final = 64
MAX_BODY_BYTES: Final = 16_384
MAX_ANSWER_HEAD_BYTES: Final = 262_144
REPLICA: Final = Address("10.0.0.7", 8000)
REQUEST_ID: Final = b"f" * 32
CLIENT: Final = b"192.0.2.1"


def request_reader() -> RequestReader:
    """A reader with the limits above."""
    return RequestReader(
        CLIENT,
        max_head_bytes=MAX_HEAD_BYTES,
        max_headers=MAX_HEADERS,
        max_body_bytes=MAX_BODY_BYTES,
    )


def read_requests(pieces: Sequence[bytes]) -> tuple[list[Request], str | None]:
    """The requests that come out, and the code of the refusal that ends them, if one does."""
    reader = request_reader()
    requests: list[Request] = []
    for piece in pieces:
        requests += feed(reader, piece)
        if reader.refusal is not None:
            break
    code = reader.refusal.code if reader.refusal else None
    reader.close()
    return requests, code


def feed(reader: RequestReader, piece: bytes) -> list[Request]:
    """Feed a piece; where a client wishes for a WebSocket, as if the replica had denied it."""
    requests = reader.feed(piece)
    while reader.phase is Phase.TUNNEL and reader.refusal is None:
        requests += reader.go_on()
    return requests


def sent_upstream(request: Request, dp_rank: int | None = None) -> bytes:
    """The bytes that the replica gets."""
    return request_head(request, REQUEST_ID, REPLICA, dp_rank) + request.body


@dataclass
class Passed:
    """What became of a response."""

    head: tuple[object, ...] | None
    """What is known of it."""
    to_client: bytes
    """What the client gets: head and body."""
    body: bytes
    state: str
    """`whole`; `invalid`: refused; `cut`: the connection ended before it was whole."""
    keep_alive: bool
    without_end: bool
    """The client knows its end by the connection's alone: a cut is a reset then."""

    @property
    def verdict(self) -> tuple[object, ...]:
        """What must not depend on how the bytes were cut. What broke may break sooner or later."""
        if self.state != "whole":
            return (self.state,)
        return self.state, self.head, self.body, self.keep_alive


def response_reader() -> ResponseReader:
    """A reader as a connection to a replica has it."""
    return ResponseReader()


def read_response(
    pieces: Sequence[bytes],
    *,
    bodiless: bool = False,
    dechunk: bool = False,
    reader: ResponseReader | None = None,
    hot: bool = False,
) -> Passed:
    """Feed the pieces, then the end of the connection. `reader`: has read others before.

    `hot`: bodies that go on as they are take the short way, as those of streams do.
    """
    reader = reader or response_reader()
    reader.begin(bodiless=bodiless, dechunk=dechunk)
    body, state, begun = [], "cut", False
    try:
        for piece in pieces:
            if hot and begun and _passes_unseen(reader.head, dechunk=dechunk):
                body.append(_past(reader, piece))
            else:
                body.append(reader.feed(piece))
            begun = reader.head is not None
            if reader.whole:
                break
        else:
            reader.end_of_stream()
        state = "whole" if reader.whole else "cut"
    except InvalidResponseError:
        state = "invalid"
    joined = b"".join(body)
    head, known, to_client, without_end = reader.head, None, b"", False
    if head is not None and begun:  # Else it broke in the read that brought the head.
        known = (head.status, head.reason, head.fields, head.until_close)
        without_end = head.until_close or (head.chunked and dechunk)
        asked = Request(b"GET", b"/", Fields([], {}), b"", dechunk, not without_end, CLIENT)
        keep_alive = not without_end
        to_client = answer_head(head, asked, REQUEST_ID, "gpu-07", None, keep_alive=keep_alive)
    return Passed(known, to_client + joined, joined, state, reader.keep_alive, without_end)


def _passes_unseen(head: Head | None, *, dechunk: bool) -> bool:
    return head is not None and not dechunk and (head.chunked or head.until_close)


def _past(reader: ResponseReader, piece: bytes) -> bytes:
    """What a connection does with a piece of a body that passes by its exchange."""
    try:
        reader.parse(piece)
    except httptools.HttpParserError as error:
        raise InvalidResponseError from error
    reader.tail = piece if len(piece) > 4 else reader.tail[-4:] + piece
    if reader.whole:
        reader.passed()
    return piece
