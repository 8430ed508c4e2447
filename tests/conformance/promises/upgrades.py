"""WebSocket is a tunnel; every other wish to upgrade is not passed on."""

from random import Random

from conformance.checks import arrived, brings, lacks, meant, status, stays_open, times
from conformance.play import Play
from conformance.promise import (
    ASK,
    GENERAL,
    NONE,
    WELL,
    Row,
    Wrong,
    get,
    head,
    post,
    reply,
    says,
)
from conformance.replica import Call

WISH = (b"Connection: Upgrade", b"Upgrade: websocket")
KEY = (b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", b"Sec-WebSocket-Version: 13")
HANDSHAKE = get(b"/v1/realtime?model=tiny", *WISH, *KEY)
ACCEPT = b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
SWITCHED = head(b"HTTP/1.1 101 Switching Protocols", *WISH, ACCEPT)
LARGE = Random(3).randbytes(3_000_000)


async def echoes(call: Call) -> None:
    """Accepts, then sends back what comes; the word `bye` ends it."""
    await call.send(SWITCHED)
    while data := await call.reader.read(65_536):
        await call.send(data)
        if data.endswith(b"bye"):
            break
    call.close()


async def tells_its_end(call: Call) -> None:
    await call.send(SWITCHED)
    call.notes.put_nowait(await call.gone())


async def open_tunnel(play: Play, handshake: bytes = HANDSHAKE) -> None:
    """Ask for it; `Wrong` unless it stands."""
    await play.wire.send(handshake)
    answer = await play.wire.head()
    if [each.status for each in answer.interim] != [101]:
        raise Wrong(answer.flaw or f"no tunnel: status {answer.status}")
    if answer.interim[0].all(b"upgrade") != [b"websocket"]:
        raise Wrong("101 without Upgrade")
    if not answer.interim[0].all(b"sec-websocket-accept"):
        raise Wrong("101 without Sec-WebSocket-Accept")


async def both_ways(play: Play) -> None:
    await open_tunnel(play)
    for word in (b"\x81\x05hello", b"\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x00"):
        await play.wire.send(word)
        if (got := await play.wire.raw(len(word))) != word:
            raise Wrong(f"the tunnel gave {got[:20]!r}")


async def much(play: Play) -> None:
    await open_tunnel(play)
    await play.wire.send(LARGE)
    if await play.wire.raw(len(LARGE), 10.0) != LARGE:
        raise Wrong("the tunnel lost or changed bytes")


async def bytes_with_the_handshake(play: Play) -> None:
    await open_tunnel(play, HANDSHAKE + b"early")
    if (got := await play.wire.raw(5)) != b"early":
        raise Wrong(f"the tunnel gave {got!r}")


async def replica_ends(play: Play) -> None:
    await open_tunnel(play)
    await play.wire.send(b"bye")
    if (got := await play.wire.raw(3)) != b"bye":
        raise Wrong(f"the tunnel gave {got!r}")
    if (end := await play.wire.ended()) != "closed":
        raise Wrong(f"connection {end or 'left open'}")


async def client_ends(play: Play) -> None:
    await open_tunnel(play)
    play.wire.leave()
    await play.until(play.stage.notes.get(), 1.0, "the replica is not told")


ROWS = (
    Row(
        name="`Upgrade: websocket` becomes a tunnel, bytes pass both ways.",
        source="RFC 6455 §4; RFC 9110 §7.8; peers.md: WebSocket upgrade",
        sends=both_ways,
        replica=echoes,
        upstream=(brings(b"upgrade", b"websocket"), brings(b"sec-websocket-version", b"13")),
    ),
    Row(
        name="3 MB pass a tunnel unchanged, both ways at once.",
        source="RFC 6455 §5",
        sends=much,
        replica=echoes,
    ),
    Row(
        name="Bytes that came with the handshake are the tunnel's.",
        source="RFC 9110 §7.8",
        sends=bytes_with_the_handshake,
        replica=echoes,
        peers=GENERAL,
    ),
    Row(
        name="A tunnel that the replica ends is ended for the client.",
        source="RFC 6455 §7",
        sends=replica_ends,
        replica=echoes,
    ),
    Row(
        name="A tunnel that the client ends is ended for the replica.",
        source="RFC 6455 §7",
        sends=client_ends,
        replica=tells_its_end,
    ),
    Row(
        name="A replica may refuse a tunnel, and the connection goes on.",
        source="RFC 9110 §7.8",
        sends=(HANDSHAKE,),
        replica=says(reply(b"{}", first=b"HTTP/1.1 403 Forbidden")),
        client=(status(403), stays_open),
    ),
    Row(
        name="`Upgrade: h2c` is not passed on; the request is served as it is.",
        source="RFC 9113 §3.1; curl --http2 and Java ask for it at every first POST",
        sends=(
            post(
                ASK,
                b"Connection: Upgrade, HTTP2-Settings",
                b"Upgrade: h2c",
                b"HTTP2-Settings: AAMAAABkAAQAAP__",
            ),
        ),
        replica=WELL,
        client=(status(200), stays_open),
        upstream=(times(1), lacks(b"upgrade")),
        ours=(lacks(b"http2-settings", b"connection"),),
    ),
    Row(
        name="A length beside `Upgrade`: the body is a body, and nothing behind it a tunnel's.",
        source="RFC 9110 §7.8; smuggling through an upgrade",
        sends=(post(ASK, *WISH, *KEY) + post(ASK),),
        answers=2,
        replica=WELL,
        client=(status(200, 200), stays_open),
        upstream=(arrived(ASK, ASK),),
        peers=GENERAL,
    ),
    Row(
        name="A replica's 101 that nobody asked for opens no tunnel.",
        source="RFC 9110 §15.2.2; smuggling through an upgrade",
        sends=(post(),),
        replica=says(SWITCHED),
        client=(lambda seen: "a tunnel" if seen.answers[0].interim[:1] else None,),
        ours=(status(502),),
    ),
    Row(
        name="A wish without `Connection: upgrade` is none.",
        source="RFC 9110 §7.8",
        sends=(get(b"/v1/realtime", b"Upgrade: websocket", *KEY),),
        replica=WELL,
        client=(status(200), stays_open),
        upstream=(meant(b""), lacks(b"upgrade")),
        peers=NONE,
    ),
)
