"""Asking peers over HTTP: what they may send, and words for when they do not."""

import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, Protocol

MOST_BYTES: Final = 16 * 1024 * 1024


class _Content(Protocol):
    def iter_any(self) -> AsyncIterator[bytes]: ...


class TooLargeError(ValueError):
    """The peer's fault: its answer, or a line of it, is larger than `MOST_BYTES`."""


async def read_limited(content: _Content, most_bytes: int | None = None) -> bytes:
    """A whole body. Raises `TooLargeError`, once more than that has come; None: `MOST_BYTES`."""
    most_bytes = MOST_BYTES if most_bytes is None else most_bytes
    body = bytearray()
    async for piece in content.iter_any():
        body += piece
        if len(body) > most_bytes:
            raise TooLargeError(f"its answer is larger than {most_bytes} bytes")
    return bytes(body)


async def lines(
    content: _Content, most_bytes: int | None = None
) -> AsyncGenerator[list[bytes], None]:
    """The whole lines of a body, without their ends: each time all that have come by then.

    What has no end is no line. Raises `TooLargeError`, once more than that has come without one;
    None: `MOST_BYTES`.
    """
    most_bytes = MOST_BYTES if most_bytes is None else most_bytes
    rest = bytearray()
    async for piece in content.iter_any():
        whole, end, begun = piece.rpartition(b"\n")
        if end:
            yield bytes(rest + whole).split(b"\n")
            rest.clear()
        rest += begun
        if len(rest) > most_bytes:
            raise TooLargeError(f"a line of its answer is larger than {most_bytes} bytes")


def why_unreachable(error: OSError) -> str:
    """The system's words for a failed connection: `Connection refused`, `Name not known`, …

    Event loops put their own words in `strerror`; names that do not resolve have numbers below 0,
    which the system has no words for. Nor has it for TLS, whose numbers are not its own.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        problem = getattr(error, "verify_message", "") or error.strerror or str(error)
        return f"its certificate is not accepted: {problem}"
    if isinstance(error, ssl.SSLError):
        reason = getattr(error, "reason", "") or error.strerror or str(error)
        return f"no TLS with it: {reason.replace('_', ' ').lower()}"
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__
