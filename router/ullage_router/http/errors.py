"""Refusals in OpenAI's error format, whose messages say whose fault it was and what would help."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import orjson

from ullage_router.http.message import Header, whole_response

CODES: Final = (
    "bad_request",
    "body_timeout",
    "body_too_large",
    "head_timeout",
    "headers_too_large",
    "invalid_api_key",
    "invalid_priority",
    "method_not_allowed",
    "no_capacity",
    "no_replica",
    "not_implemented",
    "replica_failed",
    "replica_timeout",
    "router_overloaded",
    "router_stopping",
    "too_many_headers",
)
"""Every `code` that clients may see."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that the router gives in a replica's place."""

    status: int
    code: str
    message: str
    retry_after_s: int | None = None

    @property
    def content(self) -> dict[str, dict[str, str | None]]:
        """`{"error": {message, type, param, code}}`."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": None, "code": self.code}
        return {"error": error}

    @property
    def body(self) -> bytes:
        """The same, as JSON."""
        return orjson.dumps(self.content)

    def render(
        self, request_id: bytes | None, *, keep_alive: bool, with_body: bool = True
    ) -> bytes:
        """The whole response."""
        headers: list[Header] = [(b"Content-Type", b"application/json")]
        if request_id:
            headers.append((b"X-Request-Id", request_id))
        if self.retry_after_s is not None:
            headers.append((b"Retry-After", b"%d" % self.retry_after_s))
        return whole_response(
            self.status, headers, self.body, keep_alive=keep_alive, with_body=with_body
        )


NOT_HTTP: Final = Refusal(400, "bad_request", "The request is not valid HTTP/1.1.")
NO_HOST: Final = Refusal(400, "bad_request", "The request has no Host, or no valid one.")
NO_CONNECT: Final = Refusal(405, "method_not_allowed", "CONNECT is not offered here.")
UNKNOWN_CODING: Final = Refusal(
    501, "not_implemented", "Of the transfer codings, only chunked is understood here."
)

OVERLOADED: Final = Refusal(
    503, "router_overloaded", "The router has no descriptors left. Try again in a moment.", 1
)
HEAD_TIMEOUT: Final = Refusal(
    408, "head_timeout", "The request's head did not come in time (limits.head_timeout_s)."
)
BODY_TIMEOUT: Final = Refusal(
    408, "body_timeout", "The request's body stopped coming (limits.body_timeout_s)."
)

NO_KEY: Final = Refusal(401, "invalid_api_key", "An API key is wanted: Authorization: Bearer KEY.")
WRONG_KEY: Final = Refusal(
    401, "invalid_api_key", "The API key in Authorization is none of this router's."
)


def too_many_connections(limit: int) -> Refusal:
    """Nobody's fault: there are more clients than this router was set up for."""
    return Refusal(
        503,
        "router_overloaded",
        f"The router has its {limit} client connections. Try again in a moment.",
        1,
    )


def bad_priority(said: bytes) -> Refusal:
    """The client's fault."""
    shown = ascii(said[:32].decode("latin-1"))
    return Refusal(
        400,
        "invalid_priority",
        f"x-ullage-priority: wanted a whole number of at most 9 digits, got {shown}.",
    )


def not_http(reason: str) -> Refusal:
    """The client's fault, in the parser's words."""
    return Refusal(400, "bad_request", f"The request is not valid HTTP/1.1: {reason}.")


def head_too_large(limit_bytes: int) -> Refusal:
    """The client's fault: its headers."""
    return Refusal(
        431, "headers_too_large", f"The request's head is larger than {limit_bytes} bytes."
    )


def too_many_headers(limit: int) -> Refusal:
    """The client's fault: its headers."""
    return Refusal(431, "too_many_headers", f"The request has more than {limit} header fields.")


def body_too_large(limit_bytes: int) -> Refusal:
    """The client's fault: its body."""
    return Refusal(413, "body_too_large", f"The request's body is larger than {limit_bytes} bytes.")


NO_CAPACITY: Final = "no_capacity"


class NoRoom(StrEnum):
    """Why a request is refused for lack of headroom."""

    FULL_QUEUE = "full_queue"
    """The queue had no place, at once."""
    DISPLACED = "displaced"
    """One of higher priority took its place in the queue."""
    WAITED = "waited"
    """It waited as long as may be."""
    SECOND_TRY = "second_try"
    """The first replica failed, and no other has room: a second try never waits."""


_NO_ROOM: Final[Mapping[NoRoom, str]] = {
    NoRoom.FULL_QUEUE: "No replica that answers has room, and no further request may wait for it.",
    NoRoom.DISPLACED: "No replica that answers has room, and a request of higher priority took "
    "this one's place in the queue.",
    NoRoom.WAITED: "No replica that answers had room for as long as a request may wait.",
    NoRoom.SECOND_TRY: "The replica gave no valid answer, and no other has room.",
}


def no_room(how: NoRoom, retry_after_s: int) -> Refusal:
    """Nobody's fault: there are more requests than the replicas have room for."""
    message = f"{_NO_ROOM[how]} Try again in {retry_after_s} s."
    return Refusal(503, NO_CAPACITY, message, retry_after_s)


NO_REPLICA: Final = Refusal(
    503, "no_replica", "No replica is serving at present. Try again in a moment.", 1
)
"""Nobody to give the request to. One second is two looks at the sidecars."""


def replica_failed(replica: str, problem: str) -> Refusal:
    """The replica's fault, and no other could be tried. `replica`: as the client may know it."""
    return Refusal(502, "replica_failed", f"{replica} gave no valid answer: {problem}.")


def replica_late(replica: str, problem: str) -> Refusal:
    """The replica's fault: `limits.first_byte_timeout_s` is over."""
    return Refusal(504, "replica_timeout", f"{replica} is late: {problem}.")


def replica_full(replica: str, problem: str) -> Refusal:
    """The replica said so, and no other could be tried."""
    return Refusal(503, NO_CAPACITY, f"{replica} has no room: {problem}", 1)


def broken_off(replica: str, problem: str) -> Refusal:
    """In the midst of an answer: it goes into the answer, as a last event."""
    return Refusal(502, "replica_failed", f"{replica} broke off here: {problem}. This is not all.")


STOPPING: Final = Refusal(503, "router_stopping", "The router stops. Try another one.", 1)
STOPPED: Final = Refusal(503, "router_stopping", "The router stops here. This is not all.")
"""The same in the midst of an answer."""
