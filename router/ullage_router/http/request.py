"""Reading requests: whole ones come out, or the refusal that ends the connection.

Pure: bytes in, values out, no sockets. llhttp in its strict mode decides what is HTTP: what it
refuses (two lengths, a length beside chunks, bare line feeds, obsolete folding, …) goes no further.
"""

import re
from enum import Enum, auto
from functools import lru_cache
from typing import Final

import httptools

from ullage_router.http.access import Access
from ullage_router.http.errors import (
    NO_CONNECT,
    NO_HOST,
    NOT_HTTP,
    UNKNOWN_CODING,
    Refusal,
    body_too_large,
    head_too_large,
    not_http,
    too_many_headers,
)
from ullage_router.http.message import (
    FRAMING,
    NOTED,
    WITHHELD_FROM_REPLICA,
    Fields,
    Request,
    without_named,
)

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_MOST_PIECES: Final = 64
_VERSIONS: Final = ("1.0", "1.1")


_HOST: Final = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[-A-Za-z0-9._~%!$&'()*+,;=]*)(:\d*)?")


@lru_cache(maxsize=1024)
def _names_a_host(value: bytes) -> bool:
    """Is it a host and perhaps a port (RFC 9110 §7.2)? An empty one says that there is none."""
    return _HOST.fullmatch(value.strip()) is not None


@lru_cache(maxsize=16)
def _sorted(noted: frozenset[bytes]) -> tuple[frozenset[bytes], frozenset[bytes]]:
    """What is noted and passes, and all that is noted or withheld."""
    return noted - WITHHELD_FROM_REPLICA, noted | WITHHELD_FROM_REPLICA


class Phase(Enum):
    """What a connection waits for."""

    IDLE = auto()
    """A request: nothing of it has come."""
    HEAD = auto()
    """The rest of a head."""
    BODY = auto()
    """The rest of a body, or trailers."""
    TUNNEL = auto()
    """Nothing: what follows a request to change the protocol is not ours to read."""


IDLE, HEAD, BODY, TUNNEL = Phase
"""On each request's path: to look a member up in its enum takes as long as the rest of a line."""


class RequestReader:
    """Reads the requests of one connection, pipelined ones too."""

    def __init__(
        self,
        client: bytes,
        *,
        max_head_bytes: int,
        max_headers: int,
        max_body_bytes: int,
        tls: bool = False,
        noted: frozenset[bytes] = NOTED,
    ) -> None:
        """`client`: the peer's IP address, for `X-Forwarded-For`.

        `noted`: fields, in lower case, of which the values are noted although they pass.
        """
        self.refusal: Refusal | None = None
        """Set: nothing more can be read from this connection, and this is why."""
        self.wants_continue = False
        """The client waits for `100 Continue` before it sends the body."""
        self.phase: Phase = IDLE
        self.beyond = bytearray()
        """What came behind a request to change the protocol."""
        self.access: Access | None = None
        """Who may send requests; None: everybody."""
        self.client = client
        self._tls = tls
        self._max_head_bytes = max_head_bytes
        self._max_headers = max_headers
        self._max_body_bytes = max_body_bytes
        self.note(noted)
        self._read_bytes = 0
        self._unheard_bytes = 0
        self._done: list[Request] = []
        self._parser = httptools.HttpRequestParser(self)
        self._begin()

    def feed(self, data: bytes) -> list[Request]:
        """Take in what has come: the requests that are whole now. Look at `refusal` after."""
        if self.phase is TUNNEL:
            self.beyond += data
            return []
        self._read_bytes = len(data)
        if self.phase is HEAD:
            self._head_reads_bytes += len(data)
        self._unheard_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._past_upgrades(memoryview(data)[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(not_http(str(error)))
        if self._unheard_bytes > self._max_head_bytes:
            self._refuse(head_too_large(self._max_head_bytes))
        done, self._done = self._done, []
        return done

    @property
    def body_bytes(self) -> int:
        """Of a request that is not whole yet: bytes of its body that have come."""
        return self._body_bytes if self.phase is BODY else 0

    def note(self, noted: frozenset[bytes]) -> None:
        """Note the values of these fields from now on, although they pass."""
        self._noted, self._looked_at = _sorted(noted)

    def go_on(self) -> list[Request]:
        """The protocol was not changed after all: read on as HTTP. Returns what `feed` does."""
        self.phase = IDLE
        beyond, self.beyond = bytes(self.beyond), bytearray()
        return self.feed(beyond)

    def close(self) -> None:
        """Nothing more will come. (The parser holds this reader's methods: a cycle ends here.)"""
        self.refusal = self.refusal or NOT_HTTP
        self._done = []
        del self._parser

    def _past_upgrades(self, unread: memoryview) -> None:
        """Go on behind a head that asked for another protocol, where llhttp stops."""
        while self.refusal is None:
            if self._begins_tunnel():
                self.phase = TUNNEL
                self.beyond += unread
                return
            try:
                self._read_without_upgrade()
                self._parser.feed_data(unread)
            except httptools.HttpParserUpgrade as upgrade:  # Another, pipelined behind it.
                unread = unread[upgrade.args[0] :]
            except httptools.HttpParserError:
                self._refuse(NOT_HTTP)
            else:
                return

    def _begins_tunnel(self) -> bool:
        """Is what was asked for a WebSocket? It is a tunnel: nothing behind it is a request."""
        method, values = self._parser.get_method(), self._fields.values
        if method == b"CONNECT":
            self._refuse(NO_CONNECT)
            return False
        websocket = values[b"upgrade"][0].lower() == b"websocket" and self._version == "1.1"
        if not websocket or method != b"GET" or not FRAMING.isdisjoint(values):
            return False
        self._finish(method, keep_alive=self._parser.should_keep_alive(), websocket=True)
        self._parser = httptools.HttpRequestParser(self)
        return True

    def _read_without_upgrade(self) -> None:
        """Read the head again, without its wish; its body follows, which llhttp has not read.

        Any wish but for a WebSocket is the client's to make and ours to ignore (RFC 9110 §7.8), one
        for h2c above all.
        """
        method, fields = self._parser.get_method(), self._fields
        lines = [b"%s %s HTTP/%s" % (method, self._target, self._version.encode()), *fields.kept]
        passed = self._noted | {b"upgrade"}
        lines += [n + b": " + v for n, vs in fields.values.items() for v in vs if n not in passed]
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"\r\n".join(lines) + b"\r\n\r\n")

    def _refuse(self, refusal: Refusal) -> None:
        self.refusal = self.refusal or refusal

    def _begin(self) -> None:
        self._target = b""
        self._kept: list[bytes] = []
        self._values: dict[bytes, list[bytes]] = {}
        self._headers = 0
        self._pieces: list[bytes | bytearray] = []
        self._rest = bytearray()
        self._body_bytes = 0

    # Called by llhttp

    def on_message_begin(self) -> None:
        """A request begins."""
        self.phase = HEAD
        self._unheard_bytes = 0
        self._head_reads_bytes = self._read_bytes
        self._begin()

    def on_url(self, piece: bytes) -> None:
        """A piece of the target."""
        self._target += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field; or a trailer, which ends here."""
        self._headers += 1
        lower = name.lower()
        if lower in self._looked_at:
            self._values.setdefault(lower, []).append(value)
            if lower not in self._noted:
                return
        self._kept.append(name + b": " + value)

    def on_headers_complete(self) -> None:
        """The head is whole: can its body be taken?"""
        self.phase = BODY
        kept, values = self._kept, self._values
        self._kept, self._values = [], {}  # For trailers.
        self._fields = Fields(kept, values)
        if self._headers > self._max_headers:
            self._refuse(too_many_headers(self._max_headers))
        if self._head_reads_bytes > self._max_head_bytes:
            exactly = len(self._target) + sum(len(line) + 2 for line in kept)
            withheld = ((n, v) for n, all_ in values.items() for v in all_ if n not in self._noted)
            exactly += sum(len(n) + len(v) + 4 for n, v in withheld)
            if exactly > self._max_head_bytes:
                self._refuse(head_too_large(self._max_head_bytes))
        self._unheard_bytes = 0
        self._version = self._parser.get_http_version()
        self._judge(values, self._version)
        if self.access is not None:
            refusal = self.access.refusal(self._target, values)
            if refusal is not None:
                self._refuse(refusal)
        if b"connection" in values:
            self._fields = without_named(self._fields)

    def _judge(self, values: dict[bytes, list[bytes]], version: str) -> None:
        hosts = values.get(b"host")
        if version not in _VERSIONS:
            self._refuse(NOT_HTTP)
        if hosts is None:
            if version == "1.1":
                self._refuse(NO_HOST)
        elif len(hosts) > 1 or not _names_a_host(hosts[0]):
            self._refuse(NO_HOST)
        codings = values.get(b"transfer-encoding")
        if codings is not None:
            if version == "1.0":  # Its framing cannot be trusted (RFC 9112 §6.1).
                self._refuse(NOT_HTTP)
            if len(codings) > 1 or codings[0].strip().lower() != b"chunked":
                self._refuse(UNKNOWN_CODING)
        lengths = values.get(b"content-length")
        if lengths is not None and int(lengths[0]) > self._max_body_bytes:
            self._refuse(body_too_large(self._max_body_bytes))
        expected = values.get(b"expect")
        if expected is not None and expected[0].lower() == b"100-continue":
            self.wants_continue = version == "1.1"

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        self._unheard_bytes = 0
        self._body_bytes += len(piece)
        if self._body_bytes > self._max_body_bytes:
            self._refuse(body_too_large(self._max_body_bytes))
        elif self.refusal is not None:
            return
        elif len(self._pieces) < _MOST_PIECES:
            self._pieces.append(piece)
        else:  # Very small pieces would weigh many times their size, so they are joined.
            self._rest += piece

    def on_message_complete(self) -> None:
        """The request is whole."""
        self.wants_continue = False
        self.phase = IDLE
        self._unheard_bytes = 0
        if self.refusal is None and not self._parser.should_upgrade():
            keep_alive = self._parser.should_keep_alive()
            self._finish(self._parser.get_method(), keep_alive=keep_alive)

    def _finish(self, method: bytes, *, keep_alive: bool, websocket: bool = False) -> None:
        pieces = self._pieces if not self._rest else [*self._pieces, self._rest]
        fields = self._fields if self.access is None else self.access.passed(self._fields)
        self._done.append(
            Request(
                method,
                self._target,
                fields,
                bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces),
                self._version == "1.0",
                keep_alive,
                self.client,
                self._tls,
                websocket,
            )
        )
