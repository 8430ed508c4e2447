"""The first event of a stream: whether it is a refusal.

vLLM begins to answer a stream before it knows whether it has room. A full one says 200, and in its
first event what it would have said with a 503:

    data: {"error": {"message": "…", "type": "…", "param": null, "code": 503}}

So the answer is held back until its first event has been looked at; nothing has gone out then, and
another replica may still be tried. An event that does not begin like this one is let go at once.
"""

from collections.abc import Callable
from typing import Final

import httptools
import msgspec

MOST_BYTES: Final = 65_536
_REFUSAL: Final = b'data:{"error":'
_LOOK_AT_BYTES: Final = 64
_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
_CHUNKED: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_FULL: Final = 503


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    code: int | str | None = None


class _Event(msgspec.Struct, frozen=True):
    error: _Error | None = None


_decoder: Final = msgspec.json.Decoder(_Event)


class FirstEvent:
    """Collects a stream's body until its first event is whole."""

    def __init__(self, *, chunked: bool) -> None:
        """`chunked`: the body comes with its framing, which is no part of the event."""
        self.raw = bytearray()
        """All that has come, as it came."""
        self._content = self.raw
        self._parser: httptools.HttpResponseParser | None = None
        if chunked:
            self._content = bytearray()
            self._parser = httptools.HttpResponseParser(_Content(self._content))
            self._parser.feed_data(_CHUNKED)

    def feed(self, data: bytes) -> bool:
        """Take in a piece. True: enough has come to know whether it is a refusal."""
        self.raw += data
        if self._parser is not None:
            self._parser.feed_data(data)
        beginning = bytes(self._content[:_LOOK_AT_BYTES]).replace(b" ", b"")[: len(_REFUSAL)]
        if not _REFUSAL.startswith(beginning):
            return True
        return len(self.raw) > MOST_BYTES or any(end in self._content for end in _ENDS)

    @property
    def refusal(self) -> str | None:
        """What the replica says that it has no room; None: it is no refusal."""
        line = bytes(self._content).partition(b"\n")[0]
        return _refusal_in(line[5:]) if line.startswith(b"data:") else None


class _Content:
    """What llhttp finds between the chunks' framing."""

    def __init__(self, content: bytearray) -> None:
        self.on_body: Callable[[bytes], None] = content.extend


def _refusal_in(payload: bytes) -> str | None:
    try:
        error = _decoder.decode(payload).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return error.message if error is not None and error.code in (_FULL, str(_FULL)) else None
