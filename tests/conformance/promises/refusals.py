"""What can be read in two ways is not passed on in either: 400, the end, and no replica saw it.

Others are held to the property alone: whatever is sent, a replica sees the one request that was
meant, in clean form, or nothing. How they refuse is their own affair.
"""

from conformance.checks import closed, meant, nothing, refused
from conformance.promise import (
    ALL,
    ASK,
    CHAT,
    GENERAL,
    LAST,
    WELL,
    Check,
    Do,
    Row,
    chunk,
    get,
    head,
    post,
)

HOST = b"Host: router.test"
KIND = b"Content-Type: application/json"
START = (b"POST %s HTTP/1.1" % CHAT, HOST, KIND)
SIZED = b"Content-Length: %d" % len(ASK)
CHUNKED = b"Transfer-Encoding: chunked"
SMUGGLED = get(b"/smuggled")
STRICT: tuple[Check, ...] = (nothing, closed)


def refusal(
    name: str,
    sent: bytes,
    *allowed: bytes,
    source: str = "RFC 9112 §6.3",
    statuses: tuple[int, ...] = (400,),
    peers: tuple[str, ...] = ALL,
) -> Row:
    """`allowed`: the bodies of the requests that others may take it for, if they say it cleanly."""
    return Row(
        name=name,
        source=source,
        sends=(sent, Do.PAUSE),
        replica=WELL,
        upstream=(meant(*(allowed or (ASK,))),),
        ours=(refused(*statuses), *STRICT),
        peers=peers,
    )


def framing(name: str, *fields: bytes, body: bytes = ASK, allowed: bytes = ASK) -> Row:
    """A body whose length is said in a questionable way."""
    return refusal(name, head(*START, *fields) + body, allowed)


def chunks(name: str, body: bytes, *allowed: bytes) -> Row:
    """A chunked body whose chunks are questionable."""
    return refusal(name, head(*START, CHUNKED) + body, *allowed, source="RFC 9112 §7.1")


IN_CHUNKS = chunk(ASK) + LAST
FRAMING = (
    framing("Content-Length, then Transfer-Encoding", SIZED, CHUNKED, body=IN_CHUNKS),
    framing("Transfer-Encoding, then Content-Length", CHUNKED, SIZED, body=IN_CHUNKS),
    framing(
        "Content-Length and an early last chunk, a request behind it",
        b"Content-Length: %d" % (len(LAST) + len(SMUGGLED)),
        CHUNKED,
        body=LAST + SMUGGLED,
        allowed=b"",
    ),
    framing("two different Content-Lengths", SIZED, b"Content-Length: 3"),
    framing("two equal Content-Lengths", SIZED, SIZED),
    framing("two equal lengths in one list", b"Content-Length: 60, 60"),
    framing("two different lengths in one list", b"Content-Length: 60, 3"),
    framing("a negative length", b"Content-Length: -60"),
    framing("a length with a plus", b"Content-Length: +60"),
    framing("a length in hexadecimal", b"Content-Length: 0x3c"),
    framing("a length with a space within", b"Content-Length: 6 0"),
    framing("a length with a fraction", b"Content-Length: 60.0"),
    framing("a length that is no number", b"Content-Length: many"),
    framing("an empty length", b"Content-Length:"),
    framing("a length beyond 64 bits", b"Content-Length: 18446744073709551676"),
    *(
        refusal(
            f"`{coding.decode()}`",
            head(*START, coding) + IN_CHUNKS,
            ASK,
            statuses=(400, 501),
            source="RFC 9112 §6.1",
        )
        for coding in (
            b"Transfer-Encoding: xchunked",
            b"Transfer-Encoding: chunked, identity",
            b"Transfer-Encoding: identity, chunked",
            b"Transfer-Encoding: chunked, chunked",
            b"Transfer-Encoding: identity",
            b"Transfer-Encoding: gzip",
            b"Transfer-Encoding: \x0bchunked",
            b"Transfer-Encoding: chunked;a=b",
            b'Transfer-Encoding: "chunked"',
            b"Transfer-Encoding:",
        )
    ),
    refusal(
        "two Transfer-Encodings",
        head(*START, CHUNKED, b"Transfer-Encoding: identity") + IN_CHUNKS,
        ASK,
        statuses=(400, 501),
    ),
    refusal(
        "chunks from an HTTP/1.0 client",
        head(b"POST %s HTTP/1.0" % CHAT, HOST, KIND, CHUNKED) + IN_CHUNKS,
        ASK,
        source="RFC 9112 §6.1",
    ),
)

CHUNKS = (
    chunks("a negative chunk size", b"-3c\r\n" + ASK + b"\r\n" + LAST),
    chunks("a chunk size with 0x", b"0x3c\r\n" + ASK + b"\r\n" + LAST),
    chunks("a chunk size with a plus", b"+3c\r\n" + ASK + b"\r\n" + LAST),
    chunks("a chunk size with a space before it", b" 3c\r\n" + ASK + b"\r\n" + LAST),
    chunks("a chunk size that is no number", b"xyz\r\n" + ASK + b"\r\n" + LAST),
    chunks("no chunk size", b"\r\n" + ASK + b"\r\n" + LAST),
    chunks("a chunk size beyond 64 bits", b"1000000000000003c\r\n" + ASK + b"\r\n" + LAST),
    chunks("a chunk longer than said", b"3\r\n" + ASK + b"\r\n" + LAST),
    chunks("a chunk shorter than said", b"3f\r\n" + ASK + b"\r\n" + LAST),
    chunks("a bare LF behind a chunk size", b"3c\n" + ASK + b"\r\n" + LAST),
    chunks("a bare LF behind a chunk", b"3c\r\n" + ASK + b"\n" + LAST),
    chunks("a bare CR behind a chunk size", b"3c\r" + ASK + b"\r\n" + LAST),
    chunks("a bare LF within a chunk extension", b"3c;a\nb\r\n" + ASK + b"\r\n" + LAST),
)

HEADS = (
    *(
        refusal(f"{name} in a field's value", post(ASK, b"X-A: a" + bad + b"b"), source=source)
        for name, bad, source in (
            ("NUL", b"\x00", "RFC 9110 §5.5"),
            ("a bare CR", b"\r", "RFC 9112 §2.2"),
            ("a control character", b"\x01", "RFC 9110 §5.5"),
        )
    ),
    *(
        refusal(
            f"{name} in a field's name", post(ASK, b"X" + bad + b"A: 1"), source="RFC 9110 §5.1"
        )
        for name, bad in (("NUL", b"\x00"), ("a space", b" "), ("a bracket", b"["), ("ä", b"\xe4"))
    ),
    *(
        refusal(
            f"{name} in the target", post(ASK, target=b"/v1/a" + bad + b"b"), source="RFC 9112 §3.2"
        )
        for name, bad in (
            ("NUL", b"\x00"),
            ("a control character", b"\x01"),
            ("a space", b" "),
            ("a tab", b"\t"),
            ("DEL", b"\x7f"),
        )
    ),
    refusal(
        "a bare CR within the request line",
        post().replace(b" HTTP/1.1", b"\rX HTTP/1.1", 1),
        source="RFC 9112 §2.2",
    ),
    refusal("a space before the colon", post(ASK, b"X-A : 1"), source="RFC 9112 §5.1"),
    refusal(
        "`Transfer-Encoding : chunked`",
        head(*START, b"Transfer-Encoding : chunked") + IN_CHUNKS,
        ASK,
        source="RFC 9112 §5.1",
    ),
    refusal("a field without a colon", post(ASK, b"X-A"), source="RFC 9112 §5"),
    refusal("a field without a name", post(ASK, b": 1"), source="RFC 9112 §5"),
    refusal("a folded field", post(ASK, b"X-A: a\r\n b"), ASK, source="RFC 9112 §5.2"),
    refusal(
        "a first field that begins with a space",
        post().replace(b"\r\nHost", b"\r\n Host", 1),
        source="RFC 9112 §2.2",
    ),
    refusal(
        "a bare LF at the end of a field",
        post(ASK, b"X-A: 1\nX-B: 2"),
        ASK,
        source="RFC 9112 §2.2",
    ),
    refusal(
        "bare LFs all over",
        post().replace(b"\r\n", b"\n"),
        ASK,
        source="RFC 9112 §2.2",
    ),
    refusal(
        "a bare LF hides a field",
        post(ASK, b"X-A: 1\nTransfer-Encoding: chunked"),
        b"",
        source="RFC 9112 §2.2",
    ),
    refusal("no Host", post().replace(HOST + b"\r\n", b""), source="RFC 9112 §3.2"),
    refusal("two Hosts", post(ASK, b"Host: evil.test"), source="RFC 9112 §3.2"),
    refusal("two equal Hosts", post(ASK, HOST), source="RFC 9112 §3.2"),
    refusal(
        "a Host with a path", post().replace(HOST, b"Host: a/b@c"), ASK, source="RFC 9112 §3.2"
    ),
    refusal(
        "HTTP/2.0",
        post().replace(b"HTTP/1.1", b"HTTP/2.0"),
        ASK,
        source="RFC 9110 §2.5",
        statuses=(400, 505),
    ),
    refusal(
        "HTTP/2's preface",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 9,
        source="RFC 9113 §3.4",
        statuses=(400, 505),
        peers=GENERAL,
    ),
    refusal(
        "a version of two digits",
        post().replace(b"HTTP/1.1", b"HTTP/1.11"),
        ASK,
        source="RFC 9112 §2.3",
        statuses=(400, 505),
    ),
    refusal(
        "a version in lower case",
        post().replace(b"HTTP/1.1", b"http/1.1"),
        ASK,
        source="RFC 9112 §2.3",
    ),
    refusal(
        "HTTP/0.9",
        b"GET /v1/models-of-1991\r\n\r\n",
        b"",
        source="RFC 9112 §2.3",
        statuses=(400, 505),
    ),
    refusal(
        "TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 99, source="RFC 9112 §3"
    ),
    refusal("a method that is no token", post(method=b"PO(ST"), source="RFC 9110 §9.1"),
    refusal("a target that is a word", post(target=b"v1"), ASK, source="RFC 9112 §3.2"),
    refusal(
        "CONNECT",
        head(b"CONNECT db.test:5432 HTTP/1.1", b"Host: db.test:5432"),
        source="RFC 9110 §9.3.6",
        statuses=(405,),
    ),
)


ROWS = (*FRAMING, *CHUNKS, *HEADS)
