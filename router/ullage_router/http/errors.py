"""Refusals in OpenAI's error format, whose messages say whose fault it was and what would help."""

from dataclasses import dataclass
from typing import Final

import orjson

from ullage_router.core.decide import Why
from ullage_router.http.message import Header, whole_response


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that the router gives in a replica's place."""

    status: int
    code: str
    message: str
    retry_after_s: int | None = None

    @property
    def body(self) -> bytes:
        """`{"error": {message, type, param, code}}`."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": None, "code": self.code}
        return orjson.dumps({"error": error})

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


def too_many_connections(limit: int) -> Refusal:
    """Nobody's fault: there are more clients than this router was set up for."""
    return Refusal(
        503,
        "router_overloaded",
        f"The router has its {limit} client connections. Try again in a moment.",
        1,
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


def refused(why: Why) -> Refusal:
    """Nobody to give the request to. One second is two looks at the sidecars."""
    if why is Why.FULL:
        return Refusal(
            503, "no_capacity", "No replica that answers has room. Try again in a moment.", 1
        )
    return Refusal(503, "no_replica", "No replica is serving at present. Try again in a moment.", 1)


def replica_failed(replica: str, problem: str) -> Refusal:
    """The replica's fault, and no other could be tried. `replica`: as the client may know it."""
    return Refusal(502, "replica_failed", f"{replica} gave no valid answer: {problem}.")


def replica_late(replica: str, problem: str) -> Refusal:
    """The replica's fault: `limits.first_byte_timeout_s` is over."""
    return Refusal(504, "replica_timeout", f"{replica} is late: {problem}.")


def replica_full(replica: str, problem: str) -> Refusal:
    """The replica said so, and no other could be tried."""
    return Refusal(503, "no_capacity", f"{replica} has no room: {problem}", 1)


def broken_off(replica: str, problem: str) -> Refusal:
    """In the midst of an answer: it goes into the answer, as a last event."""
    return Refusal(502, "replica_failed", f"{replica} broke off here: {problem}. This is not all.")


STOPPING: Final = Refusal(503, "router_stopping", "The router stops. Try another one.", 1)
STOPPED: Final = Refusal(503, "router_stopping", "The router stops here. This is not all.")
"""The same in the midst of an answer."""
