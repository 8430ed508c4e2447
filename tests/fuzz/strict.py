"""A second reading of HTTP/1.1: written from RFC 9112 alone, slow, strict, small.

Rule: where two readers could differ about where a message ends, this one raises `NotHttpError`
(RFC 9112 §6.3: a length beside chunks, two lengths, codings that are not understood).
It knows no limits, and shares no code with the router.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

Header = tuple[bytes, bytes]

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_TEXT: Final = rb"[\t\x20-\x7e\x80-\xff]*"
# RFC 9112 §3 lets a recipient take several spaces for one; what is sent on is checked by h11, too.
# llhttp takes two other protocols for HTTP: the line is written anew, so that nobody else sees it.
_REQUEST_LINE: Final = re.compile(rb"(%s) +([\x21-\x7e]+) +(?:HTTP|RTSP|ICE)/(1\.[01])" % _TOKEN)
_STATUS_LINE: Final = re.compile(rb"HTTP/(1\.[01]) ([1-9][0-9]{2})(?: ([^\r\n]*))?")
_REASON: Final = re.compile(_TEXT)
_FIELD: Final = re.compile(rb"(%s):(%s)" % (_TOKEN, _TEXT))
_CHUNK_LINE: Final = re.compile(rb"(0*[0-9A-Fa-f]{1,16})(?:[ \t]*;%s)?" % _TEXT)
_FRAMING: Final = (b"content-length", b"transfer-encoding")
_BLANK: Final = re.compile(rb"[\r\n]*")


class NotHttpError(ValueError):
    """Malformed, or ambiguous: nobody may act on it."""


class UnfinishedError(Exception):
    """The bytes end within the message."""


@dataclass
class Message:
    """A request or a response, whole."""

    start: tuple[bytes, ...]
    """Method, target and version; or version, status and reason."""
    headers: list[Header]
    body_at: int = 0
    """Where its body begins."""
    end: int = 0
    """Where it ends."""
    content: bytes = b""
    """Its body without framing."""
    trailers: list[Header] = field(default_factory=list)
    until_close: bool = False

    def all(self, name: bytes) -> list[bytes]:
        """Every value of a field; `name` in lower case."""
        return [value for given, value in self.headers if given.lower() == name]

    @property
    def codings(self) -> list[bytes]:
        """The transfer codings, in lower case."""
        joined = b",".join(self.all(b"transfer-encoding"))
        return [coding.strip(b" \t").lower() for coding in joined.split(b",")] if joined else []


def requests(data: bytes) -> list[Message]:
    """Every request in `data`, up to the first that is malformed, ambiguous or unfinished."""
    found: list[Message] = []
    at = 0
    while at < len(data):
        try:
            found.append(request(data, at))
        except (NotHttpError, UnfinishedError):
            break
        at = found[-1].end
    return found


def request(data: bytes, at: int = 0) -> Message:
    """The request that begins at `at`, behind empty lines."""
    line, headers, body_at = _head(data, at)
    start = _REQUEST_LINE.fullmatch(line)
    if start is None:
        raise NotHttpError(line)
    message = Message(start.groups(), headers, body_at)
    hosts = message.all(b"host")
    if len(hosts) > 1 or (not hosts and start[3] == b"1.1"):
        raise NotHttpError("Host")
    if message.all(b"transfer-encoding"):
        if message.codings != [b"chunked"] or start[3] == b"1.0":
            raise NotHttpError(message.codings)
        _length(message)
        return _chunks(message, data)
    return _sized(message, data, _length(message) or 0)


def response(data: bytes, *, bodiless: bool, ended: bool = True) -> Message:
    """The final response, behind interim ones. `ended`: behind `data` the connection ends."""
    at = 0
    while True:
        line, headers, body_at = _head(data, at)
        start = _STATUS_LINE.fullmatch(line)
        if start is None:
            raise NotHttpError(line)
        message = Message((start[1], start[2], start[3] or b""), headers, body_at)
        length = _length(message)
        status = int(start[2])
        if status == 101:
            raise NotHttpError("nobody asked for another protocol")
        if status >= 200:
            break
        at = body_at  # RFC 9110 §15.2: an interim response ends with its head. Nobody gets it.
    if _REASON.fullmatch(message.start[2]) is None:
        raise NotHttpError(message.start)
    if bodiless or status in (204, 304):
        message.end = body_at
        return message
    return _answer_body(message, data, length, ended=ended)


def _answer_body(message: Message, data: bytes, length: int | None, *, ended: bool) -> Message:
    codings = message.codings
    if codings and (codings[-1] != b"chunked" or codings.count(b"chunked") > 1):
        if b"chunked" in codings or b"" in codings:
            raise NotHttpError(codings)
        length = None
    elif codings:
        whole = _chunks(message, data)
        if any(name.lower() in _FRAMING for name, _ in whole.trailers):
            raise NotHttpError("framing in a trailer")  # RFC 9110 §6.5.1. It would be passed on.
        return whole
    if length is not None:
        return _sized(message, data, length)
    if not ended:
        raise UnfinishedError
    message.until_close = True
    return _sized(message, data, len(data) - message.body_at)


def _head(data: bytes, at: int) -> tuple[bytes, list[Header], int]:
    blank = _BLANK.match(data, at)
    assert blank is not None
    begin = blank.end()
    end = data.find(b"\r\n\r\n", begin)
    if end < 0:
        raise UnfinishedError
    line, *lines = data[begin:end].split(b"\r\n")
    return line, _fields(lines), end + 4


def _fields(lines: Iterable[bytes]) -> list[Header]:
    fields = []
    for line in lines:
        parts = _FIELD.fullmatch(line)
        if parts is None:
            raise NotHttpError(line)
        fields.append((parts[1], parts[2].strip(b" \t")))
    return fields


def _length(message: Message) -> int | None:
    lengths = message.all(b"content-length")
    if not lengths:
        return None
    if len(lengths) > 1 or message.all(b"transfer-encoding") or not lengths[0].isdigit():
        raise NotHttpError(lengths)
    return int(lengths[0].lstrip(b"0")[:40] or b"0")


def _sized(message: Message, data: bytes, size: int) -> Message:
    message.end = message.body_at + size
    if message.end > len(data):
        raise UnfinishedError
    message.content = data[message.body_at : message.end]
    return message


def _line(data: bytes, at: int) -> tuple[bytes, int]:
    end = data.find(b"\n", at)
    if end < 0:
        raise UnfinishedError
    if data[end - 1 : end] != b"\r" or end == at:
        raise NotHttpError("a line that ends in LF alone")
    return data[at : end - 1], end + 1


def _chunks(message: Message, data: bytes) -> Message:
    at, content, size = message.body_at, [], 1
    while size:
        line, at = _line(data, at)
        chunk = _CHUNK_LINE.fullmatch(line)
        if chunk is None:
            raise NotHttpError(line)
        size = int(chunk[1], 16)
        content.append(data[at : at + size])
        at += size
        if size:
            if len(data) < at + 2:
                raise UnfinishedError
            if data[at : at + 2] != b"\r\n":
                raise NotHttpError("a chunk that is longer than its size")
            at += 2
    lines: list[bytes] = []
    while True:
        line, at = _line(data, at)
        if not line:
            break
        lines.append(line)
    message.trailers = _fields(lines)
    message.content, message.end = b"".join(content), at
    return message
