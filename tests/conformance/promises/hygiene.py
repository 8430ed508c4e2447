"""Fields: what belongs to one connection ends there, everything else is passed on."""

from conformance.checks import arrived, body, brings, field, has, lacks, status, stays_open, times
from conformance.promise import (
    ASK,
    ASK_STREAM,
    DONE,
    GENERAL,
    LAST,
    NONE,
    REPLY,
    WELL,
    Row,
    Seen,
    chunk,
    get,
    post,
    reply,
    says,
    stream,
)

HOP = (
    b"Connection: keep-alive, X-Private",
    b"X-Private: 1",
    b"Keep-Alive: timeout=5",
    b"Proxy-Connection: keep-alive",
    b"Proxy-Authorization: Basic eA==",
    b"TE: trailers",
    b"Trailer: X-Sum",
)
TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
MINE = (
    (b"authorization", b"Bearer secret"),
    (b"cookie", b"a=1; b=2"),
    (b"user-agent", b"client/1"),
    (b"accept", b"text/event-stream"),
    (b"traceparent", TRACE),
    (b"tracestate", b"a=1,b=2"),
    (b"x-custom", b'a , "b"; c=d'),
)


def named(name: bytes) -> bytes:
    return b"Connection: " + name


def same_id(seen: Seen) -> str | None:
    """The replica and the client are told the same X-Request-Id."""
    there = seen.requests[-1].all(b"x-request-id") if seen.requests else []
    here = seen.answers[-1].all(b"x-request-id")
    return None if len(there) == 1 and there == here else f"told {there} and {here}"


def host_of_replica(seen: Seen) -> str | None:
    (host,) = seen.requests[0].all(b"host")
    return None if host.startswith(b"127.0.0.1:") else f"Host: {host.decode()}"


ROWS = (
    Row(
        name="A request's hop-by-hop fields end at the proxy, and those that Connection names.",
        source="RFC 9110 §7.6.1",
        sends=(post(ASK, *HOP),),
        replica=WELL,
        client=(status(200), stays_open),
        upstream=(lacks(b"x-private", b"keep-alive", b"proxy-connection", b"te", b"trailer"),),
        ours=(lacks(b"connection", b"proxy-authorization"),),
    ),
    Row(
        name="An answer's hop-by-hop fields end at the proxy, and those that Connection names.",
        source="RFC 9110 §7.6.1",
        sends=(post(),),
        replica=says(
            reply(REPLY, *HOP[:3], b"Proxy-Authenticate: Basic", b"Upgrade: h2c", b"X-Public: 1")
        ),
        client=(
            status(200),
            field(b"x-private"),
            field(b"keep-alive"),
            field(b"upgrade"),
            field(b"x-public", b"1"),
            stays_open,
        ),
        ours=(field(b"connection"), field(b"proxy-authenticate")),
    ),
    *(
        Row(
            name=f"`Connection: {name.decode()}` cannot take that field away.",
            source="RFC 9110 §7.6.1; hop-by-hop abuse",
            sends=(post(ASK, named(name)),),
            replica=WELL,
            client=(status(200), stays_open),
            upstream=(lambda seen: None if len(seen.requests) == 1 else "not sent once",),
            ours=(arrived(ASK),),
        )
        for name in (b"content-length", b"host", b"transfer-encoding, content-length")
    ),
    Row(
        name="`Connection: x-forwarded-for, x-request-id` cannot take away what the proxy says.",
        source="RFC 9110 §7.6.1; hop-by-hop abuse",
        sends=(post(ASK, named(b"close, x-forwarded-for, x-request-id")),),
        replica=WELL,
        client=(status(200),),
        upstream=(brings(b"x-forwarded-for", b"127.0.0.1"),),
        ours=(same_id,),
    ),
    Row(
        name="Host is the replica's own.",
        source="RFC 9112 §3.2",
        sends=(post(),),
        replica=WELL,
        client=(status(200),),
        upstream=(host_of_replica,),
        peers=NONE,
    ),
    Row(
        name="The client joins X-Forwarded-For, behind earlier proxies.",
        source="RFC 7239 §4 in its older spelling",
        sends=(post(ASK, b"X-Forwarded-For: 192.0.2.1, 192.0.2.2"),),
        replica=WELL,
        client=(status(200),),
        upstream=(
            lambda seen: (
                None
                if (
                    b", ".join(seen.requests[0].all(b"x-forwarded-for"))
                    == b"192.0.2.1, 192.0.2.2, 127.0.0.1"
                )
                else f"{seen.requests[0].all(b'x-forwarded-for')}"
            ),
        ),
    ),
    Row(
        name="X-Forwarded-Proto and -Host say what was asked for, and cannot be forged.",
        source="RFC 7239 §5 in its older spelling",
        sends=(post(ASK, b"X-Forwarded-Proto: https", b"X-Forwarded-Host: forged"),),
        replica=WELL,
        client=(status(200),),
        upstream=(
            brings(b"x-forwarded-proto", b"http"),
            brings(b"x-forwarded-host", b"router.test"),
        ),
        peers=GENERAL,
    ),
    Row(
        name="A request without an X-Request-Id gets one; both sides are told.",
        source="convention",
        sends=(post(),),
        replica=WELL,
        client=(status(200),),
        upstream=(same_id,),
        peers=NONE,
    ),
    Row(
        name="An X-Request-Id that the client brings is kept; both sides are told.",
        source="convention",
        sends=(post(ASK, b"X-Request-Id: mine"),),
        replica=WELL,
        client=(status(200),),
        upstream=(brings(b"x-request-id", b"mine"),),
        ours=(same_id,),
    ),
    Row(
        name="An X-Request-Id that the replica gives is the client's.",
        source="convention; vLLM's --enable-request-id-headers",
        sends=(post(),),
        replica=says(reply(REPLY, b"X-Request-Id: theirs")),
        client=(status(200), field(b"x-request-id", b"theirs")),
        peers=NONE,
    ),
    *(
        Row(
            name=f"`{name.decode()}` reaches the replica.",
            source="report 22 (vllm-project/router#161): headers lost",
            sends=(post(ASK, name + b": " + value),),
            replica=WELL,
            client=(status(200),),
            upstream=(brings(name, value),),
        )
        for name, value in MINE
    ),
    Row(
        name="Repeated fields, empty ones, and bytes beyond ASCII reach the replica.",
        source="RFC 9110 §5.3, §5.5",
        sends=(post(ASK, b"X-A: 1", b"X-B:", b"X-A: 2", b"X-C: \xc3\xa4"),),
        replica=WELL,
        client=(status(200),),
        upstream=(
            brings(b"x-a", b"1", b"2"),
            brings(b"x-b", b""),
            brings(b"x-c", b"\xc3\xa4"),
        ),
    ),
    Row(
        name="`Expect` with another wish than 100 is not forwarded as one to wait for.",
        source="RFC 9110 §10.1.1: 417, or as if it were not there",
        sends=(post(ASK, b"Expect: 200-maybe"),),
        replica=WELL,
        client=(
            lambda seen: None if seen.answers[0].status in (200, 417) else "neither 200 nor 417",
        ),
        upstream=(times(0, 1),),
    ),
    Row(
        name="Both of two Set-Cookie come back.",
        source="RFC 9110 §5.3; measured: one lost",
        sends=(post(),),
        replica=says(reply(REPLY, b"Set-Cookie: a=1; Path=/", b"Set-Cookie: b=2")),
        client=(status(200), field(b"set-cookie", b"a=1; Path=/", b"b=2")),
    ),
    Row(
        name="A stream's fields come back.",
        source="report 22",
        sends=(post(ASK_STREAM),),
        replica=says(stream(b"X-A: 1", b"Cache-Control: no-cache") + chunk(DONE) + LAST),
        client=(status(200), field(b"x-a", b"1"), field(b"cache-control", b"no-cache")),
    ),
    Row(
        name="CORS is the replica's affair: its fields come back.",
        source="report 22",
        sends=(post(ASK, b"Origin: http://a.test"),),
        replica=says(reply(REPLY, b"Access-Control-Allow-Origin: *", b"Vary: Origin")),
        client=(field(b"access-control-allow-origin", b"*"),),
        ours=(field(b"vary", b"Origin"),),
    ),
    Row(
        name="An answer names the replica that gave it.",
        source="README",
        sends=(post(),),
        replica=WELL,
        client=(status(200), has(b"x-ullage-replica"), body(REPLY)),
        peers=NONE,
    ),
    Row(
        name="A Date that the replica gives is not doubled.",
        source="RFC 9110 §6.6.1",
        sends=(get(),),
        replica=says(reply(REPLY, b"Date: Thu, 01 Jan 2026 00:00:00 GMT", b"Server: uvicorn")),
        client=(status(200), has(b"date"), has(b"server")),
        peers=GENERAL,
    ),
)
