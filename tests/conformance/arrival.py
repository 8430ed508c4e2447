"""Requests as they arrive at a replica, read as strictly as RFC 9112 allows.

Rule: what is not one clean request has a `flaw`. A replica that reads less strictly could take it
for something else.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from conformance.wire import Header

CUT = "cut short"
"""The flaw of a request that ended before it was whole: it has no meaning, and does no harm."""
_NOT_IN_TARGET = re.compile(rb"[\x00-\x1f\x7f]")
_NOT_IN_FIELD = re.compile(rb"[\x00\r\n]")
_VERSIONS = (b"HTTP/1.0", b"HTTP/1.1")
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


@dataclass
class Got:
    """A request as it arrived."""

    method: bytes
    target: bytes
    headers: list[Header]
    version: bytes = b""
    body: bytes = b""
    trailers: list[Header] = field(default_factory=list)
    replica: int = 0
    connection: int = 0
    flaw: str = ""

    def all(self, name: bytes) -> list[bytes]:
        """Every value of a field; `name` in lower case."""
        return [value for given, value in self.headers if given.lower() == name]


async def read_request(reader: asyncio.StreamReader, say: Callable[[bytes], object]) -> Got:
    """The next request, or `EOFError` between two of them.

    As vLLM's server does, one that waits for `100 Continue` is told so, by `say`.
    """
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            return Got(b"", error.partial[:80], [], flaw="not a whole head")
        raise EOFError from error
    request = read_head(raw[:-4])
    if request.flaw:
        return request
    if request.all(b"expect") == [b"100-continue"]:
        say(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        if request.all(b"transfer-encoding"):
            await _read_chunks(request, reader)
        elif lengths := request.all(b"content-length"):
            request.body = await reader.readexactly(int(lengths[0]))
    except (asyncio.IncompleteReadError, ConnectionError):
        request.flaw = CUT
    return request


def read_head(raw: bytes) -> Got:
    """A request's head, with what is wrong with it."""
    first, *lines = raw.split(b"\r\n")
    parts = first.split(b" ")
    if len(parts) != 3 or parts[2] not in _VERSIONS or not all(parts):
        return Got(b"", first, [], flaw=f"request line {first[:60]!r}")
    pairs = [(name, value.strip(b" \t")) for name, _, value in (x.partition(b":") for x in lines)]
    request = Got(parts[0], parts[1], pairs, parts[2])
    if bad_byte := _NOT_IN_TARGET.search(first) or _NOT_IN_FIELD.search(b"".join(lines)):
        request.flaw = f"{bad_byte[0]!r} within its head"
    elif bad := [x for x in lines if b":" not in x or not _NAME.fullmatch(x.partition(b":")[0])]:
        request.flaw = f"header line {bad[0][:40]!r}"
    elif len(request.all(b"host")) > 1 or (parts[2] == b"HTTP/1.1" and not request.all(b"host")):
        request.flaw = f"{len(request.all(b'host'))} Host fields"
    lengths, codings = request.all(b"content-length"), request.all(b"transfer-encoding")
    if (len(lengths) + len(codings)) > 1:
        request.flaw = "framed twice"
    elif codings and parts[2] == b"HTTP/1.0":
        request.flaw = "chunks in HTTP/1.0"
    elif (lengths and not lengths[0].isdigit()) or (codings and codings[0].lower() != b"chunked"):
        request.flaw = f"framed by {(lengths + codings)[0]!r}"
    return request


async def _read_chunks(request: Got, reader: asyncio.StreamReader) -> None:
    while True:
        line = (await reader.readuntil(b"\r\n"))[:-2]
        if not re.fullmatch(rb"[0-9a-fA-F]{1,8}", line):
            request.flaw = f"chunk line {line[:30]!r}"
            return
        if not (size := int(line, 16)):
            break
        request.body += await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            request.flaw = "chunk without its end"
            return
    while (line := (await reader.readuntil(b"\r\n"))[:-2]) != b"":
        name, _, value = line.partition(b":")
        request.trailers.append((name, value.strip()))
