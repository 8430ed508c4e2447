"""Requests and the heads of messages: what is kept, what is dropped, what is added.

Rules (RFC 9110 §7.6, RFC 9112)
* Hop-by-hop fields, and those that `Connection` names, end here. Everything else passes in its
  order and spelling, repeated fields included.
* A request's body is held whole (so that it can be sent again) and goes on with `Content-Length`.
* `Host` is the replica's; what the client asked for goes on as `X-Forwarded-Host`.
* A head's fields are sorted as they come: into lines that pass, and values to judge by.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus
from typing import Final

import msgspec

from ullage_shared.address import Address

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
WITHHELD_FROM_REPLICA: Final = (
    HOP_BY_HOP
    | FRAMING
    | {
        b"host",
        b"expect",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
        b"x-data-parallel-rank",
        b"x-request-id",
    }
)
"""What the router judges by, or puts anew."""
CACHE_KEY: Final = b"x-ullage-cache-key"
PRIORITY: Final = b"x-ullage-priority"
NOTED: Final = frozenset({CACHE_KEY, PRIORITY})
"""What choosing goes by, and a replica may see as well."""
JUDGED_IN_ANSWER: Final = (
    HOP_BY_HOP | FRAMING | {b"content-encoding", b"content-type", b"x-request-id"}
)
_NEVER_NAMED: Final = FRAMING | {b"host", b"close"}
_NONE: Final = (b"",)
_WITH_BODY: Final = (b"POST", b"PUT", b"PATCH")
_OK: Final = 200
_SWITCHED: Final = 101
_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}


MOST_SHOWN: Final = 160
"""Characters of what a client has named, in a log."""


def shown(said: bytes) -> str:
    """What a client has named, for a log."""
    return said[:MOST_SHOWN].decode("latin-1")


class Fields(msgspec.Struct, frozen=True, gc=False):
    """A head's fields, sorted."""

    kept: list[bytes]
    """Lines that go on as they came, without their ends."""
    values: dict[bytes, list[bytes]]
    """By lower-case name: the values of those that do not, that say how to go on, or are noted."""

    def first(self, name: bytes) -> bytes | None:
        """The first value of a field that is not simply kept. `name` in lower case."""
        values = self.values.get(name)
        return values[0] if values else None


def without_named(fields: Fields) -> Fields:
    """Drop what `Connection` names, for it is for this connection alone; never what frames."""
    listed = b",".join(fields.values[b"connection"]).lower().split(b",")
    named = {token.strip() for token in listed} - HOP_BY_HOP - _NEVER_NAMED
    if not named:
        return fields
    kept = [line for line in fields.kept if line.partition(b":")[0].lower() not in named]
    return Fields(kept, {name: v for name, v in fields.values.items() if name not in named})


class Request(msgspec.Struct, gc=False):
    """One request, whole."""

    method: bytes
    target: bytes
    """As sent: path and query, percent-encoding untouched."""
    fields: Fields
    body: bytes
    http_1_0: bool
    keep_alive: bool
    client: bytes
    """The client's IP address."""
    tls: bool = False
    """Did it come over TLS?"""
    websocket: bool = False
    """It asks to leave HTTP for a WebSocket: what follows is no request."""


@lru_cache(maxsize=1024)
def header_value(text: str) -> bytes:
    """Text from elsewhere as a field's value: what could end the field becomes `?`."""
    return bytes(byte if 0x20 <= byte < 0x7F else 0x3F for byte in text.encode())


@lru_cache(maxsize=1024)
def _replica_line(replica_id: str) -> bytes:
    return b"x-ullage-replica: " + header_value(replica_id)


@lru_cache(maxsize=1024)
def _host_line(address: Address) -> bytes:
    return b"Host: " + str(address).encode()


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


def request_head(
    request: Request, request_id: bytes, address: Address, dp_rank: int | None
) -> bytes:
    """The head for the replica."""
    kept, values = request.fields.kept, request.fields.values
    target, client = request.target, request.client
    host = values.get(b"host", _NONE)[0]
    if not target.startswith(b"/"):
        named, target = split_target(target)
        host = named or host
    if b"x-forwarded-for" in values:
        client = b", ".join((*values[b"x-forwarded-for"], client))
    lines = [
        request.method + b" " + target + b" HTTP/1.1",
        _host_line(address),
        *kept,
        b"X-Forwarded-For: " + client,
        b"X-Forwarded-Proto: https" if request.tls else b"X-Forwarded-Proto: http",
        b"X-Request-Id: " + request_id,
    ]
    if host:
        lines.append(b"X-Forwarded-Host: " + host)
    if dp_rank is not None:
        lines.append(b"X-data-parallel-rank: %d" % dp_rank)
    elif b"x-data-parallel-rank" in values:
        lines += [b"X-data-parallel-rank: " + rank for rank in values[b"x-data-parallel-rank"]]
    if request.websocket:
        lines.append(b"Connection: Upgrade\r\nUpgrade: websocket")
    elif request.body or request.method in _WITH_BODY:
        lines.append(b"Content-Length: %d" % len(request.body))
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


class Head(msgspec.Struct, frozen=True, gc=False):
    """The head of a replica's final response."""

    status: int
    reason: bytes
    fields: Fields
    chunked: bool
    until_close: bool
    """The body has no length of its own: it ends with the connection."""

    @property
    def switched(self) -> bool:
        """What follows is no HTTP: the protocol was changed as the client asked."""
        return self.status == _SWITCHED

    @property
    def event_stream(self) -> bool:
        """Is it a stream of server-sent events that can be read as it passes?"""
        kind = self.fields.first(b"content-type")
        if self.status != _OK or kind is None or b"content-encoding" in self.fields.values:
            return False
        return kind[:17].lower() == b"text/event-stream"


def answer_head(
    head: Head,
    request: Request,
    request_id: bytes,
    replica_id: str | None,
    why: str | None,
    *,
    keep_alive: bool,
) -> bytes:
    """The head for the client. `replica_id`, and `why` it was chosen: None, not to be told."""
    lines = [b"HTTP/1.1 %d %s" % (head.status, head.reason), *head.fields.kept]
    if replica_id is not None:
        lines.append(_replica_line(replica_id))
    if why is not None:
        lines.append(b"x-ullage-why: " + why.encode())
    if b"x-request-id" not in head.fields.values:
        lines.append(b"X-Request-Id: " + request_id)
    if head.status == _SWITCHED:
        protocol = head.fields.first(b"upgrade") or b"websocket"
        lines.append(b"Connection: Upgrade\r\nUpgrade: " + protocol)
    elif request.http_1_0:
        lines = [line for line in lines if not line.lower().startswith(b"transfer-encoding:")]
        lines.append(b"Connection: keep-alive" if keep_alive else b"Connection: close")
    elif not keep_alive:
        lines.append(b"Connection: close")
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def whole_response(
    status: int, headers: Iterable[Header], body: bytes, *, keep_alive: bool, with_body: bool = True
) -> bytes:
    """A response of our own. `with_body` False: the answer to HEAD."""
    lines = [b"HTTP/1.1 %d %s" % (status, _REASONS.get(status, b""))]
    lines += [name + b": " + value for name, value in headers]
    lines.append(b"Content-Length: %d" % len(body))
    if not keep_alive:
        lines.append(b"Connection: close")
    lines.append(b"\r\n")
    head = b"\r\n".join(lines)
    return head + body if with_body else head
