"""Bytes made wrong, the way attackers and broken peers make them wrong."""

import itertools
import re
from collections.abc import Callable
from random import Random
from typing import Final

_BYTES: Final = [
    *(b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"\0", b" ", b"\t", b"\r\n ", b"\r\n\t", b":", b","),
    *(b";", b"\x0b", b"\x0c", b"\x7f", b"\x85", b"\xff", b"0", b"-", b"+", b"\x00" * 8, b'"'),
]
_FIELDS: Final = [
    *(b"Content-Length: 0", b"Content-Length: 5", b"Content-Length: 5, 5", b"Content-Length: +5"),
    *(b"Content-Length : 5", b"Content-Length:", b"Content-Length: 18446744073709551621"),
    *(b"Content-Length\t: 5", b" Content-Length: 5", b"\tTransfer-Encoding: chunked"),
    *(b"Content-Length: 5\x00", b"Content-Length: 0x5", b"Content-Length: -1", b"Host: evil"),
    *(b"Transfer-Encoding: chunked", b"transfer-encoding: Chunked", b"Transfer-Encoding: gzip"),
    *(b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding: identity, chunked"),
    *(b"Transfer-Encoding : chunked", b"Transfer-Encoding:\x0bchunked", b"Transfer-Encoding:"),
    *(
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: chunked\x00",
        b"Transfer\xadEncoding: 1",
    ),
    *(b"Transfer-Encoding:\r\n chunked", b"Transfer-Encoding: chunked;q=1", b"X: a\r\n b"),
    *(b"Transfer-Encoding: ,chunked", b'Transfer-Encoding: "chunked"', b"Connection: close"),
    *(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", b"Transfer_Encoding: chunked"),
    *(b"Connection: Transfer-Encoding, Content-Length", b"Connection: upgrade\r\nUpgrade: h2c"),
    *(b"Connection: upgrade\r\nUpgrade: websocket", b"Expect: 100-continue", b"\r\n", b": v", b"x"),
    *(b"X: \xc4\x8d\xc4\x8aContent-Length: 5", b"Connection: host", b"X: " + b"y" * 9000),
]
_LINE: Final = re.compile(rb"\r\n")
_SIZE: Final = re.compile(rb"(?<=\r\n)[0-9A-Fa-f]{1,5}(?=[;\r])")
_SIZES: Final = [
    *(
        b"0x%x",
        b"+%x",
        b"-%x",
        b" %x",
        b"%x ",
        b"%x\t",
        b"%x\0",
        b"%x;",
        b"%x\n",
        b"%x;a\rb",
        b"%xg",
    ),
    *(
        b"0000000000000000000%x",
        b"1000000000000000%x",
        b"%x;" + b"e" * 9000,
        b"%x;a=\x00",
        b"%x, 0",
    ),
]
_FIRST: Final = [
    *(b"HTTP/1.2", b"HTTP/0.9", b"HTTP/2.0", b"http/1.1", b"HTTP/1.1.", b"HTTP /1.1", b"RTSP/1.0"),
    *(b"HTTP/1.0", b"HTTP/11", b"HTTP/1.1 ", b"HTTP/1.1\t", b"ICE/1.0", b"HTTP/1.01", b""),
]
_VERSION: Final = re.compile(rb"HTTP/1\.[01]")


def mutated(data: bytes, other: Callable[[], bytes], rng: Random) -> bytes:
    """`data` with a few faults. `other`: makes further messages to splice in."""
    for _ in range(rng.choice([1, 1, 1, 2, 2, 4, 8])):
        data = (
            rng.choice(_FAULTS)(data, rng) if rng.random() < 0.92 else _splice(data, other(), rng)
        )
    return data


def cut(data: bytes, rng: Random) -> list[bytes]:
    """`data` in pieces: one byte each, at random places, or around the ends of lines."""
    kind = rng.randrange(4)
    if kind == 0 and len(data) < 1500:
        return [data[i : i + 1] for i in range(len(data))]
    if kind == 1:
        ends = [found.start() + rng.randrange(3) for found in _LINE.finditer(data)]
        edges = sorted({0, *(e for e in ends if rng.random() < 0.4), len(data)})
    else:
        edges = sorted({0, *(rng.randrange(len(data) + 1) for _ in range(rng.randrange(9)))})
        edges.append(len(data))
    return [data[a:b] for a, b in itertools.pairwise(edges) if a < b]


def _at(data: bytes, rng: Random) -> int:
    return rng.randrange(len(data) + 1)


def _flip(data: bytes, rng: Random) -> bytes:
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _insert(data: bytes, rng: Random) -> bytes:
    at = _at(data, rng)
    return data[:at] + rng.choice(_BYTES) + data[at:]


def _replace(data: bytes, rng: Random) -> bytes:
    at = _at(data, rng)
    return data[:at] + rng.choice(_BYTES) + data[at + 1 :]


def _delete(data: bytes, rng: Random) -> bytes:
    at = _at(data, rng)
    return data[:at] + data[at + rng.choice([1, 1, 2, rng.randrange(40)]) :]


def _repeat(data: bytes, rng: Random) -> bytes:
    at = _at(data, rng)
    piece = data[at : at + rng.randrange(60)]
    return data[:at] + piece * rng.choice([2, 3, 300]) + data[at:]


def _at_line(data: bytes, rng: Random, new: bytes) -> bytes:
    places = [found.end() for found in _LINE.finditer(data)]
    at = rng.choice(places) if places else 0
    return data[:at] + new + data[at:]


def _field(data: bytes, rng: Random) -> bytes:
    return _at_line(data, rng, rng.choice(_FIELDS) + b"\r\n")


def _line_end(data: bytes, rng: Random) -> bytes:
    places = [found.start() for found in _LINE.finditer(data)]
    if not places:
        return data
    at = rng.choice(places)
    return (
        data[:at] + rng.choice([b"\n", b"\r", b"", b"\r\r\n", b"\n\r", b" \r\n"]) + data[at + 2 :]
    )


def _chunk_size(data: bytes, rng: Random) -> bytes:
    places = list(_SIZE.finditer(data))
    if not places:
        return _field(data, rng)
    place = rng.choice(places)
    size = max(0, int(place[0], 16) + rng.choice([0, 0, 0, -1, 1, 16]))
    return data[: place.start()] + rng.choice([*_SIZES, b"%x"]) % size + data[place.end() :]


def _version(data: bytes, rng: Random) -> bytes:
    places = list(_VERSION.finditer(data))
    if not places:
        return data
    place = rng.choice(places)
    return data[: place.start()] + rng.choice(_FIRST) + data[place.end() :]


def _truncate(data: bytes, rng: Random) -> bytes:
    return data[: _at(data, rng)]


def _lengthen(data: bytes, rng: Random) -> bytes:
    at = _at(data, rng)
    return (
        data[:at]
        + rng.choice([b"a", b" ", b"\r\n", b"\0", b"0"]) * rng.choice([99, 9_000])
        + data[at:]
    )


def _splice(data: bytes, other: bytes, rng: Random) -> bytes:
    return data[: _at(data, rng)] + other[_at(other, rng) * rng.randrange(2) :]


_FAULTS: Final = [
    *(_flip, _insert, _insert, _replace, _delete, _repeat, _field, _field, _field, _line_end),
    *(_chunk_size, _chunk_size, _version, _truncate, _lengthen),
]
