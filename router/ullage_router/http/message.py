"""Requests and the heads of messages: what is kept, what is dropped, what is added.

Rules (RFC 9110 §7.6, RFC 9112)
* Hop-by-hop fields, and those that `Connection` names, end here. Everything else passes in its
  order and spelling, repeated fields included.
* A request's body is held whole (so that it can be sent again) and goes on with `Content-Length`.
* `Host` is the replica's; what the client asked for goes on as `X-Forwarded-Host`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Final

Header = tuple[bytes, bytes]

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"upgrade",
    }
)
FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
_REQUEST_OWN: Final = frozenset(
    {
        b"host",
        b"content-length",
        b"transfer-encoding",
        b"expect",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
    }
)
_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}


@dataclass(slots=True)
class Request:
    """One request, whole."""

    method: bytes
    target: bytes
    """As sent: path and query, percent-encoding untouched."""
    headers: list[Header]
    body: bytes
    http_1_0: bool
    keep_alive: bool
    client: bytes
    """The client's IP address."""


def named_by_connection(headers: Iterable[Header]) -> frozenset[bytes]:
    """The fields that belong to this connection alone, in lower case; never those that frame."""
    named: set[bytes] = set()
    for name, value in headers:
        if name.lower() == b"connection":
            named.update(token.strip().lower() for token in value.split(b","))
    return HOP_BY_HOP | (named - FRAMING) if named else HOP_BY_HOP


def value_of(headers: Iterable[Header], wanted: bytes) -> bytes | None:
    """The first value of a field (its name in lower case)."""
    for name, value in headers:
        if name.lower() == wanted:
            return value
    return None


@lru_cache(maxsize=1024)
def header_value(text: str) -> bytes:
    """Text from elsewhere as a field's value: what could end the field becomes `?`."""
    return bytes(byte if 0x20 <= byte < 0x7F else 0x3F for byte in text.encode())


_ABSOLUTE: Final = re.compile(rb"https?://([^/?]*)(.*)", re.IGNORECASE | re.DOTALL)


def split_target(target: bytes) -> tuple[bytes, bytes]:
    """Host, if the target names one, and the target as an origin server wants it.

    `http://host/a?b` is `host` and `/a?b` (RFC 9112 §3.2.2); `/a?b` is nothing and itself.
    """
    absolute = None if target.startswith(b"/") else _ABSOLUTE.fullmatch(target)
    if absolute is None:
        return b"", target
    host, path = absolute.groups()
    return host, path if path.startswith(b"/") else b"/" + path


def request_head(request: Request, request_id: bytes, host: str, dp_rank: int | None) -> bytes:
    """The head for the replica. `request_id`: for a request that brings none."""
    drop = named_by_connection(request.headers) | _REQUEST_OWN
    forwarded_for, has_id = [], False
    asked_host, target = split_target(request.target)
    lines = [request.method + b" " + target + b" HTTP/1.1", b"Host: " + host.encode()]
    for name, value in request.headers:
        lower = name.lower()
        if lower == b"host":
            asked_host = asked_host or value
        elif lower == b"x-forwarded-for":
            forwarded_for.append(value)
        elif lower == b"x-data-parallel-rank" and dp_rank is not None:
            continue
        elif lower not in drop:
            has_id = has_id or lower == b"x-request-id"
            lines.append(name + b": " + value)
    forwarded_for.append(request.client)
    lines.append(b"X-Forwarded-For: " + b", ".join(forwarded_for))
    lines.append(b"X-Forwarded-Proto: http")
    if asked_host:
        lines.append(b"X-Forwarded-Host: " + asked_host)
    if not has_id:
        lines.append(b"X-Request-Id: " + request_id)
    if dp_rank is not None:
        lines.append(b"X-data-parallel-rank: %d" % dp_rank)
    if request.body or request.method in (b"POST", b"PUT", b"PATCH"):
        lines.append(b"Content-Length: %d" % len(request.body))
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def response_head(
    status: int,
    reason: bytes,
    headers: list[Header],
    extra: Iterable[Header],
    *,
    keep_alive: bool,
    http_1_0: bool,
    drop: frozenset[bytes] = frozenset(),
) -> bytes:
    """The head for the client. `drop`: further fields to leave out, in lower case."""
    hop = named_by_connection(headers) | drop
    lines = [b"HTTP/1.1 %d %s" % (status, reason)]
    lines += [name + b": " + value for name, value in headers if name.lower() not in hop]
    lines += [name + b": " + value for name, value in extra]
    if not keep_alive:
        lines.append(b"Connection: close")
    elif http_1_0:
        lines.append(b"Connection: keep-alive")
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def whole_response(
    status: int, headers: Iterable[Header], body: bytes, *, keep_alive: bool, with_body: bool = True
) -> bytes:
    """A response of our own. `with_body` False: the answer to HEAD."""
    own = [*headers, (b"Content-Length", b"%d" % len(body))]
    head = response_head(
        status, _REASONS.get(status, b""), own, (), keep_alive=keep_alive, http_1_0=False
    )
    return head + body if with_body else head
