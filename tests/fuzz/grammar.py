"""Valid HTTP/1.1, oddly spelt: whatever RFC 9112 lets a peer send, dice decide what."""

from random import Random
from typing import Final

Header = tuple[bytes, bytes]

_METHODS: Final = [b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"QUERY"]
_TARGETS: Final = [
    *(b"/", b"/v1/completions", b"/a%2Fb%00?c=%20&d=+", b"//two//slashes", b"/..;/../x?y#z", b"*"),
    *(b"/" + b"long" * 300, b"/?http://other.test/", b"/a\\b|c^d`e{f}", b"/'\"<>", b"/;=:@"),
    *(b"http://a.test/x", b"HTTP://a.test:80?q", b"https://u:p@a.test", b"http://[::1]:8/"),
]
_NAMES: Final = [
    *(b"X", b"x-two", b"Accept", b"authorization", b"!#$%&'*+-.^_`|~9", b"Content-Type", b"Cookie"),
    *(b"Content-Length-X", b"X-Transfer-Encoding", b"TransferEncoding", b"Content_Length"),
    *(b"X-Request-Id", b"X-Forwarded-For", b"X-Forwarded-Host", b"x-data-parallel-rank"),
    *(b"TE", b"Trailer", b"Keep-Alive", b"Proxy-Authorization", b"Proxy-Connection", b"Via"),
]
_VALUES: Final = [
    *(b"", b"1", b"a, b", b"a\tb", b'"q\\"uo, ted"', b"\x80\xff", "ä€".encode(), b"x: y", b":"),
    *(b"HTTP/1.1 200 OK", b"chunked", b"0", b"close", b"v" * 700, b"GET / HTTP/1.1", b"5, 5"),
]
_CONNECTION: Final = [
    *(b"close", b"Close", b"keep-alive", b"x-two", b"X, Accept", b"te , trailer", b",", b""),
    *(b"host", b"content-length", b"transfer-encoding", b"x-request-id", b"close, X"),
]
_OWS: Final = [b"", b" ", b" ", b" ", b"\t", b"  \t "]
_EXTENSIONS: Final = [b"", b"", b"", b";a", b";a=b", b';a="b;c"', b";a=b;c=d"]
_REASONS: Final = [b"OK", b"", b"Not Found", b"\x80 reason", b"HTTP/1.1 200 OK", b"a\tb"]


def spelt(name: bytes, rng: Random) -> bytes:
    """A field's name in some case."""
    return rng.choice([name, name, name.lower(), name.upper(), name.swapcase()])


def lines(headers: list[Header], rng: Random) -> bytes:
    """Fields as they may be written, each with its line's end, and the empty line behind them.

    One thing is left out: a tab behind `chunked`, which llhttp takes for a part of it.
    """
    written = []
    for name, value in headers:
        behind = rng.choice([b"", b"", b"", b" ", b"\t"])
        if name == b"Transfer-Encoding":
            behind = behind.replace(b"\t", b" ")
        written.append(spelt(name, rng) + b":" + rng.choice(_OWS) + value + behind)
    return b"".join(line + b"\r\n" for line in [*written, b""])


def body(rng: Random) -> bytes:
    """Content: nothing, JSON, any bytes, or what looks like messages and their framing."""
    kind = rng.randrange(6)
    if kind == 0:
        return b""
    if kind == 1:
        return b'{"model": "m", "prompt": "x", "stream": true}'
    if kind == 2:
        return b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: evil\r\n\r\n"
    if kind == 3:
        return b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    return rng.randbytes(rng.choice([1, 2, 5, 16, 255, 256, rng.randrange(1500)]))


def chunked(content: bytes, rng: Random) -> bytes:
    """Content as chunks, with extensions, odd sizes' spelling, and trailers."""
    framed, at = [], 0
    sizes = rng.choice([[1], [2, 3], [1, 2, 15, 16, 17, 300, 1000], [1000]])
    while at < len(content):
        size = rng.choice(sizes)
        piece = content[at : at + size]
        at += size
        digits = rng.choice([b"%x", b"%X", b"0%x", b"%04X"]) % len(piece)
        framed.append(digits + rng.choice(_EXTENSIONS) + b"\r\n" + piece + b"\r\n")
    end = rng.choice([b"0", b"0", b"00", b"0000"]) + rng.choice(_EXTENSIONS) + b"\r\n"
    trailers = [(b"X-Trailer", rng.choice(_VALUES)) for _ in range(rng.choice([0, 0, 0, 1, 2]))]
    return b"".join(framed) + end + lines(trailers, rng)


def _fields(rng: Random) -> list[Header]:
    fields = [(rng.choice(_NAMES), rng.choice(_VALUES)) for _ in range(rng.choice([0, 1, 2, 6]))]
    if rng.random() < 0.2:
        fields.append((b"Connection", rng.choice(_CONNECTION)))
    return fields


def request(rng: Random) -> bytes:
    """One request."""
    version = b"1.0" if rng.random() < 0.1 else b"1.1"
    headers = _fields(rng)
    if version == b"1.1" or rng.random() < 0.5:
        headers.append((b"Host", rng.choice([b"a", b"router.test:8080", b"[::1]", b""])))
    content, framed = body(rng), b""
    if rng.random() < 0.3 and version == b"1.1":
        headers.append((b"Transfer-Encoding", spelt(b"chunked", rng)))
        framed = chunked(content, rng)
    elif rng.random() < 0.6:
        headers.append((b"Content-Length", rng.choice([b"%d", b"%d", b"00%d"]) % len(content)))
        framed = content
    if rng.random() < 0.05:
        headers.append((b"Expect", b"100-continue"))
    if rng.random() < 0.05:  # A wish that nobody need grant.
        headers += [(b"Connection", b"Upgrade"), (b"Upgrade", rng.choice([b"h2c", b"websocket"]))]
    rng.shuffle(headers)
    blank = rng.choice([b"", b"", b"", b"\r\n", b"\r\n\r\n"])
    first = rng.choice(_METHODS) + b" " + rng.choice(_TARGETS) + b" HTTP/" + version + b"\r\n"
    return blank + first + lines(headers, rng) + framed


def requests(rng: Random) -> bytes:
    """One request, or several in a row."""
    return b"".join(request(rng) for _ in range(rng.choice([1, 1, 1, 2, 3, 5])))


def response(rng: Random, *, bodiless: bool = False) -> bytes:
    """One response, behind interim ones or none. `bodiless`: it answers a HEAD."""
    interim = b"".join(_interim(rng) for _ in range(rng.choice([0, 0, 0, 1, 2])))
    status = rng.choice([200, 200, 200, 201, 204, 206, 304, 400, 404, 500, 503, 599, 205])
    headers, content, framed = _fields(rng), body(rng), b""
    kind = rng.choice(["sized", "sized", "chunked", "chunked", "until close", "empty"])
    if kind == "sized":
        headers.append((b"Content-Length", b"%d" % len(content)))
        framed = content
    elif kind == "chunked":
        headers.append((b"Transfer-Encoding", spelt(b"chunked", rng)))
        framed = chunked(content, rng)
    elif kind == "until close":
        framed = content
    else:
        headers.append((b"Content-Length", b"0"))
    if bodiless or status in (204, 304):
        framed = b""
    rng.shuffle(headers)
    version = rng.choice([b"1.1"] * 5 + [b"1.0"]) if kind != "chunked" else b"1.1"
    blank = rng.choice([b"", b"", b"", b"", b"\r\n"])  # Against the RFC, and harmless.
    first = blank + b"HTTP/%s %d %s\r\n" % (version, status, rng.choice(_REASONS))
    return interim + first + lines(headers, rng) + framed


def _interim(rng: Random) -> bytes:
    first = rng.choice([b"HTTP/1.1 100 Continue\r\n", b"HTTP/1.1 103 Early Hints\r\n"])
    return first + lines([(b"Link", b"</a>")] * rng.randrange(2), rng)
