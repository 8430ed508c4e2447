"""Reading a response: where its head ends, where its body ends, what of it goes to the client.

Pure: bytes in, bytes out, no sockets. llhttp parses every byte, but only to find boundaries: a
body goes on as it came, chunk framing included. Only a client that cannot read chunks (HTTP/1.0)
gets the bare content.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import httptools

from ullage_router.http.message import Header

_HEAD_LIMIT_BYTES: Final = 262_144
_NO_BODY: Final = (204, 304)


class InvalidResponseError(ValueError):
    """The replica's fault: what it sent is not one HTTP response."""


class Head(NamedTuple):
    """The head of a final response."""

    status: int
    reason: bytes
    headers: list[Header]
    until_close: bool
    """The body has no length of its own: it ends with the connection."""


class ResponseReader:
    """Reads one response. Interim ones (1xx) before it are dropped."""

    def __init__(self, *, bodiless: bool, dechunk: bool) -> None:
        """`bodiless`: it answers a HEAD, so that no body follows whatever its head says."""
        self.head: Head | None = None
        self.whole = False
        self.keep_alive = False
        """May the connection carry another request? Known once the response is whole."""
        self._bodiless = bodiless
        self._excess = False
        self._raw = b""
        self._heads = 0
        self._reason = b""
        self._headers: list[Header] = []
        self._content: list[bytes] | None = None
        if dechunk:
            self._content = []
            self.on_body: Callable[[bytes], None] = self._content.append
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> bytes:
        """Take in what has come; returns what of it is body. Raises `InvalidResponseError`."""
        in_body = self.head is not None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.whole:
                raise InvalidResponseError(f"not valid HTTP: {error}") from error
            self._excess = True
        if self._excess:
            # Nobody can say any more where this response ends, unless it has no body at all.
            self.keep_alive = False
            if not self._bodiless:
                raise InvalidResponseError("there were bytes behind its end")
        body = data if in_body else self._behind_head(data)
        if self.whole:
            del self._parser  # It holds this reader's methods: left alone, the two would live on.
        if self._bodiless:
            if body:
                self.keep_alive = False  # More of it may be on its way.
            return b""
        if self._content is not None:
            body = b"".join(self._content)
            self._content.clear()
        return body

    def end_of_stream(self) -> bool:
        """The connection has ended in good order. Is the response whole now?"""
        if self.head is not None and self.head.until_close:
            self.whole = True
        return self.whole

    def _behind_head(self, data: bytes) -> bytes:
        self._raw += data
        if self.head is None:
            if len(self._raw) > _HEAD_LIMIT_BYTES:
                raise InvalidResponseError(f"its head is larger than {_HEAD_LIMIT_BYTES} bytes")
            return b""
        end = 0
        for _ in range(self._heads):
            while self._raw.startswith((b"\r", b"\n"), end):  # llhttp passes over empty lines.
                end += 1
            end = self._raw.index(b"\r\n\r\n", end) + 4
        body, self._raw = self._raw[end:], b""
        return body

    # Called by llhttp

    def on_message_begin(self) -> None:
        """A response begins. One behind the whole one is one too many."""
        self._excess = self.whole

    def on_status(self, reason: bytes) -> None:
        """A piece of the reason phrase."""
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field. Trailers go on with the body's framing."""
        if self.head is None:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """A head is whole."""
        self._heads += 1
        status = self._parser.get_status_code()
        if status < 200 or self.whole:
            return
        framed, coding = False, b""
        for name, value in self._headers:
            lower = name.lower()
            if lower == b"content-length":
                framed = True
            elif lower == b"transfer-encoding":
                coding = value
        framed = framed or coding.rpartition(b",")[2].strip().lower() == b"chunked"
        if status in _NO_BODY:
            self._bodiless = True
        self.head = Head(
            status, self._reason, self._headers, until_close=not framed and not self._bodiless
        )
        if self._bodiless:  # llhttp does not know what was asked, and waits for a body.
            self.keep_alive = bool(self._parser.should_keep_alive())
            self.whole = True

    def on_message_complete(self) -> None:
        """A response is whole: an interim one, or the one."""
        if self.head is None:
            self._headers, self._reason = [], b""
        elif not self.whole:
            self.keep_alive = bool(self._parser.should_keep_alive())
            self.whole = True
