"""Reading responses: where a head ends, where a body ends, what of it goes to the client.

Pure: bytes in, bytes out, no sockets. llhttp parses every byte, but only to find boundaries: a
body goes on as it came, chunk framing included. Only a client that cannot read chunks (HTTP/1.0)
gets the bare content.
"""

import re
from collections.abc import Callable
from typing import Final

import httptools

from ullage_router.http.message import (
    FRAMING,
    HOP_BY_HOP,
    JUDGED_IN_ANSWER,
    Fields,
    Head,
    without_named,
)

_HEAD_LIMIT_BYTES: Final = 262_144
_NO_BODY: Final = (204, 304)
_SWITCHED: Final = 101
_BEHIND: Final = "there were bytes behind its end"
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_EVENT_ENDS: Final = (b"\n\n\r\n", b"\r\r\r\n", b"\r\n\r\n\r\n")
SHORT_BYTES: Final = 64
"""A piece up to this size says too little by itself: `[DONE]`, an empty chunk."""
TAIL_BYTES: Final = 1024
LAST_CHUNK: Final = b"0\r\n\r\n"


class InvalidResponseError(ValueError):
    """The replica's fault: what it sent is not one HTTP response."""


class ResponseReader:
    """Reads the responses on one connection, one at a time. Interim ones (1xx) are dropped."""

    __slots__ = (
        "__weakref__",
        "_bodiless",
        "_content",
        "_excess",
        "_heads",
        "_kept",
        "_left_bytes",
        "_parser",
        "_raw",
        "_reason",
        "_values",
        "_websocket",
        "head",
        "keep_alive",
        "parse",
        "tail",
        "whole",
    )

    def __init__(self) -> None:
        self.head: Head | None = None
        self.whole = False
        self.keep_alive = False
        """May the connection carry another request? Known once the response is whole."""
        self.tail = b""
        """The last bytes of the body so far: the last piece, with what came before a short one."""
        self.parse: Callable[[bytes], object] = _closed
        """Reads a piece of a body that goes on as it is; look at `passed` after."""
        self._parser: httptools.HttpResponseParser | None = None

    def begin(self, *, bodiless: bool, dechunk: bool, websocket: bool = False) -> None:
        """Expect one response.

        `bodiless`: it answers a HEAD, so that no body follows whatever its head says. `websocket`:
        it may change the protocol.
        """
        self.head = None
        self.whole = self.keep_alive = False
        self._bodiless = bodiless
        self._websocket = websocket
        self._excess = False
        self._raw = b""
        self._heads = 0
        self._left_bytes = 0
        self.tail = b""
        self._kept: list[bytes] = []
        self._values: dict[bytes, list[bytes]] = {}
        self._reason = b""
        self._content: list[bytes] | None = [] if dechunk else None
        if self._parser is None or dechunk:
            self._parser = httptools.HttpResponseParser(_Dechunking(self) if dechunk else self)
            self.parse = self._parser.feed_data

    def feed(self, data: bytes) -> bytes:
        """Take in what has come; returns what of it is body. Raises `InvalidResponseError`."""
        in_body = self.head is not None
        try:
            self.parse(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._switch(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if not self.whole:
                raise InvalidResponseError(f"not valid HTTP: {error}") from error
            self._excess = True
        if self._excess:
            # Nobody can say any more where this response ends, unless it has no body at all.
            self.keep_alive = False
            if not self._bodiless:
                raise InvalidResponseError(_BEHIND)
        body = data if in_body else self._behind_head(data)
        self._left_bytes -= len(body)
        self.tail = body if len(body) > SHORT_BYTES else self.tail[-TAIL_BYTES:] + body
        if self._bodiless:
            return self._without_body(body)
        if self.whole:
            self._check_end()
        if self._content is not None:
            body = b"".join(self._content)
            self._content.clear()
            if self.whole:
                self._parser = None  # It would go on to collect contents, and nobody to take them.
        return body

    def _without_body(self, behind: bytes) -> bytes:
        if self.whole:
            self._parser = None  # It does not know what was asked, and waits for a body.
        if behind:
            self.keep_alive = False  # More of it may be on its way.
        return b""

    def passed(self) -> None:
        """The response is whole, and its last piece went to `parse` alone.

        Raises `InvalidResponseError` where there was more than that.
        """
        if self._excess:
            raise InvalidResponseError(_BEHIND)
        self._check_end()

    def end_of_stream(self) -> bool:
        """The connection has ended in good order. Is the response whole now?"""
        if self.head is not None and self.head.until_close:
            self.whole = True
        return self.whole

    def between_events(self) -> bool:
        """Has what passed so far ended with an event and with a chunk, so that another may come?

        Nothing can be read after: the last chunk is put in, to see whether it would end the body.
        """
        if self.head is None or not self.head.chunked or self.whole:
            return False
        if not self.tail.endswith(_EVENT_ENDS):
            return False
        try:
            self.parse(LAST_CHUNK)
        except httptools.HttpParserError:
            return False
        return self.whole

    def close(self) -> None:
        """Nothing more will come. (The parser holds this reader's methods: a cycle ends here.)"""
        self._parser = None
        self.parse = _closed

    def _check_end(self) -> None:
        """llhttp passes over line ends behind a response: they must not reach the client."""
        assert self.head is not None
        if self.head.chunked:
            sound = self.tail.endswith(b"\r\n\r\n") and self.tail[-5:-4] not in (b"\r", b"\n")
        else:
            sound = self._left_bytes == 0
        if not sound:
            raise InvalidResponseError(_BEHIND)

    def _switch(self, behind: bytes) -> bytes:
        if self.head is None or not self.head.switched:
            raise InvalidResponseError("it changes the protocol unasked")
        self._parser = None
        return behind

    def _behind_head(self, data: bytes) -> bytes:
        raw = self._raw + data
        if self.head is None:
            if len(raw) > _HEAD_LIMIT_BYTES:
                raise InvalidResponseError(f"its head is larger than {_HEAD_LIMIT_BYTES} bytes")
            self._raw = raw
            return b""
        end = 0
        for _ in range(self._heads):  # Interim ones, and the one.
            while raw.startswith((b"\r", b"\n"), end):  # llhttp passes over empty lines.
                end += 1
            if not raw.startswith(b"HTTP/1.", end):
                raise InvalidResponseError("it is neither HTTP/1.1 nor HTTP/1.0")
            end = raw.index(b"\r\n\r\n", end) + 4
        self._raw = b""
        return raw[end:]

    # Called by llhttp

    def on_message_begin(self) -> None:
        """A response begins. One behind the whole one is one too many."""
        self._excess = self.whole

    def on_status(self, reason: bytes) -> None:
        """A piece of the reason phrase."""
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field. Trailers go on with the body's framing."""
        lower = name.lower()
        if self.head is not None:
            if lower in FRAMING:
                raise InvalidResponseError("its framing changes behind its body")
            return
        if lower in JUDGED_IN_ANSWER:
            self._values.setdefault(lower, []).append(value)
            if lower in HOP_BY_HOP:
                return
        self._kept.append(name + b": " + value)

    def on_headers_complete(self) -> None:
        """A head is whole."""
        self._heads += 1
        assert self._parser is not None
        status = self._parser.get_status_code()
        fields = Fields(self._kept, self._values)
        self._kept, self._values = [], {}
        if self.whole or (status < 200 and not (self._websocket and status == _SWITCHED)):
            return
        if b"connection" in fields.values:
            fields = without_named(fields)
        self._bodiless = self._bodiless or status in _NO_BODY
        bodiless = self._bodiless or status == _SWITCHED
        chunked = self._is_chunked(fields.values.get(b"transfer-encoding"))
        lengths = fields.values.get(b"content-length")
        self._left_bytes = int(lengths[0] or 0) if lengths else 0
        framed = chunked or bodiless or lengths is not None
        if self._reason != b"OK" and _CONTROL.search(self._reason):
            raise InvalidResponseError("its reason is no text")
        self.head = Head(status, self._reason, fields, chunked, until_close=not framed)
        if self._bodiless:
            self.keep_alive = self._parser.should_keep_alive()
            self.whole = True

    def _is_chunked(self, codings: list[bytes] | None) -> bool:
        """Do chunks frame the body? What a client could read otherwise than llhttp is refused."""
        if codings is None:
            return False
        *others, last = (coding.strip(b" ").lower() for coding in codings[0].split(b","))
        if len(codings) > 1 or last != b"chunked" or b"chunked" in others:
            raise InvalidResponseError("its transfer coding is not understood")
        if others and self._content is not None:
            raise InvalidResponseError("its content would lose its coding with its chunks")
        return True

    def on_message_complete(self) -> None:
        """A response is whole: an interim one, or the one."""
        if self.head is None:
            self._reason = b""
        elif not self.whole and self.head.status != _SWITCHED:
            assert self._parser is not None
            self.keep_alive = self._parser.should_keep_alive()
            self.whole = True


class _Dechunking:
    """A reader's callbacks, and the content of the body beside."""

    def __init__(self, reader: ResponseReader) -> None:
        assert reader._content is not None
        self.on_body = reader._content.append
        self.on_message_begin = reader.on_message_begin
        self.on_status = reader.on_status
        self.on_header = reader.on_header
        self.on_headers_complete = reader.on_headers_complete
        self.on_message_complete = reader.on_message_complete


def _closed(_: bytes) -> None:
    raise InvalidResponseError("the connection is closed")
