"""Reading requests: whole ones come out, or the refusal that ends the connection.

Pure: bytes in, values out, no sockets. llhttp in its strict mode decides what is HTTP: what it
refuses (two lengths, a length beside chunks, bare line feeds, obsolete folding, …) goes no further.
"""

from typing import Final

import httptools

from ullage_router.http.errors import (
    NO_CONNECT,
    NOT_HTTP,
    UNKNOWN_CODING,
    Refusal,
    body_too_large,
    head_too_large,
)
from ullage_router.http.message import Header, Request

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_MOST_PIECES: Final = 64
_VERSIONS: Final = ("1.0", "1.1")


class RequestReader:
    """Reads the requests of one connection, pipelined ones too."""

    def __init__(self, client: bytes, *, max_head_bytes: int, max_body_bytes: int) -> None:
        """`client`: the peer's IP address, for `X-Forwarded-For`."""
        self.refusal: Refusal | None = None
        """Set: nothing more can be read from this connection, and this is why."""
        self.wants_continue = False
        """The client waits for `100 Continue` before it sends the body."""
        self._client = client
        self._max_head_bytes = max_head_bytes
        self._max_body_bytes = max_body_bytes
        self._line_bytes = 0  # Since llhttp last had something to tell: a line without an end.
        self._done: list[Request] = []
        self._parser = httptools.HttpRequestParser(self)
        self.on_message_begin()

    def feed(self, data: bytes) -> list[Request]:
        """Take in what has come: the requests that are whole now. Look at `refusal` after."""
        unread = memoryview(data)
        self._line_bytes += len(data)
        while unread and self.refusal is None:
            try:
                self._parser.feed_data(unread)
                break
            except httptools.HttpParserUpgrade as upgrade:
                unread = unread[upgrade.args[0] :]
                self._past_upgrade()
            except httptools.HttpParserError:
                self._refuse(NOT_HTTP)
        if self._line_bytes > self._max_head_bytes:
            self._refuse(head_too_large(self._max_head_bytes))
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """Nothing more will come. (The parser holds this reader's methods: a cycle ends here.)"""
        self.refusal = self.refusal or NOT_HTTP
        del self._parser

    def _past_upgrade(self) -> None:
        """Go on behind a head that asked for another protocol, as if it had not asked.

        llhttp stops at such a head, body or no body. The wish is the client's to make and ours to
        ignore (RFC 9110 §7.8), so the same head is read again without it.
        """
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._refuse(NO_CONNECT)
        if self.refusal is not None:
            return
        lines = [b"%s %s HTTP/%s" % (method, self._target, self._version.encode())]
        lines += [b"%s: %s" % (n, v) for n, v in self._headers if n.lower() != b"upgrade"]
        self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(b"\r\n".join(lines) + b"\r\n\r\n")
        except httptools.HttpParserError:
            self._refuse(NOT_HTTP)

    def _refuse(self, refusal: Refusal) -> None:
        self.refusal = self.refusal or refusal

    # Called by llhttp

    def on_message_begin(self) -> None:
        """A request begins."""
        self._target = b""
        self._headers: list[Header] = []
        self._pieces: list[bytes | bytearray] = []
        self._rest = bytearray()
        self._head_bytes = 0
        self._body_bytes = 0
        self._head_whole = False
        self._line_bytes = 0

    def on_url(self, piece: bytes) -> None:
        """A piece of the target."""
        self._target += piece
        self._count_head(len(piece))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field; or a trailer, which ends here."""
        self._count_head(len(name) + len(value) + 4)
        if not self._head_whole:
            self._headers.append((name, value))

    def _count_head(self, size: int) -> None:
        self._line_bytes = 0
        self._head_bytes += size
        if self._head_bytes > self._max_head_bytes:
            self._refuse(head_too_large(self._max_head_bytes))

    def on_headers_complete(self) -> None:
        """The head is whole: can its body be taken?"""
        self._head_whole = True
        self._version = self._parser.get_http_version()
        fields: dict[bytes, bytes] = {}
        hosts = 0
        for name, value in self._headers:
            lower = name.lower()
            hosts += lower == b"host"
            fields.setdefault(lower, value)
        if self._version not in _VERSIONS or hosts > 1 or (hosts == 0 and self._version == "1.1"):
            self._refuse(NOT_HTTP)
        if fields.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            self._refuse(UNKNOWN_CODING)
        if int(fields.get(b"content-length", b"0")) > self._max_body_bytes:
            self._refuse(body_too_large(self._max_body_bytes))
        expects = fields.get(b"expect", b"").lower() == b"100-continue"
        self.wants_continue = expects and self._version == "1.1"

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        self._line_bytes = 0
        self._body_bytes += len(piece)
        if self._body_bytes > self._max_body_bytes:
            self._refuse(body_too_large(self._max_body_bytes))
        elif self.refusal is None:
            self._keep(piece)

    def _keep(self, piece: bytes) -> None:
        """Add a piece. Very small ones would weigh many times their size, so they are joined."""
        if len(self._pieces) < _MOST_PIECES:
            self._pieces.append(piece)
        else:
            self._rest += piece

    def on_message_complete(self) -> None:
        """The request is whole."""
        self.wants_continue = False
        if self.refusal is not None or self._parser.should_upgrade():
            return
        pieces = self._pieces if not self._rest else [*self._pieces, self._rest]
        self._done.append(
            Request(
                method=self._parser.get_method(),
                target=self._target,
                headers=self._headers,
                body=bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces),
                http_1_0=self._version == "1.0",
                keep_alive=bool(self._parser.should_keep_alive()),
                client=self._client,
            )
        )
