"""Bodies and targets: what was sent is what arrives, in both directions."""

import asyncio
import gzip
from random import Random

from conformance.checks import (
    arrived,
    body,
    brings,
    clean,
    field,
    framed,
    status,
    stays_open,
    targets,
    times,
    whole,
)
from conformance.play import Play
from conformance.promise import (
    ALL,
    ASK,
    ASK_STREAM,
    CHAT,
    DONE,
    GENERAL,
    LAST,
    NONE,
    REPLY,
    WELL,
    Row,
    Then,
    Wrong,
    chunk,
    chunked_post,
    event,
    get,
    head,
    post,
    reply,
    says,
    stream,
)
from conformance.replica import Call

BLOB = Random(5).randbytes(8_000_000)
PACKED = gzip.compress(REPLY, mtime=0)
UNUSUAL = (
    b'{ "seed":18446744073709551616,"zz":{"a":[1.0e0]},\n"model":"tiny" , '
    b'"messages" : [{"role":"user","content":"\\u00e4 \xc3\xa4","x-custom":1}]}'
)
FOREIGN = UNUSUAL.replace(b"18446744073709551616", b"7")
FILE = b"RIFF\x00\xff\r\n\r\n--\r\n\x00"
UPLOAD = (
    b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\ntiny\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
    b"Content-Type: audio/wav\r\n\r\n" + FILE + b"\r\n--x--\r\n"
)
HUGE = b"data: " + ("😀ä" * 250_000).encode() + b"\n\n"
CUTS = [HUGE[:7], HUGE[7:8], HUGE[8:65_537], HUGE[65_537:65_539], HUGE[65_539:]]
EVENTS = 10


async def one_by_one(call: Call) -> None:
    """Sends an event for each word that the client has the one before."""
    await call.send(stream())
    for number in range(EVENTS):
        await call.send(chunk(event(number)))
        await call.notes.get()
    await call.send(chunk(DONE) + LAST)


async def reads_one_by_one(play: Play) -> None:
    await play.wire.send(post(ASK_STREAM))
    answer = await play.wire.head()
    for number in range(EVENTS):
        if answer.flaw or await play.wire.piece(answer, 1.0) != event(number):
            raise Wrong(answer.flaw or f"event {number} was held back")
        play.stage.notes.put_nowait(0.0)
    await play.wire.piece(answer)
    play.seen.answers.append(answer)


async def head_first(call: Call) -> None:
    await call.send(head(b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked"))
    await call.notes.get()
    await call.send(chunk(REPLY) + LAST)


async def reads_the_head_first(play: Play) -> None:
    await play.wire.send(post(ASK))
    answer = await play.wire.head(within_s=1.0)
    play.seen.answers.append(answer)
    play.stage.notes.put_nowait(0.0)


async def sends_slowly(call: Call) -> None:
    for piece in CUTS:
        framed_piece = chunk(piece)
        await call.send(framed_piece[:3])
        await asyncio.sleep(0.002)
        await call.send(framed_piece[3:])


async def huge_event(call: Call) -> None:
    await call.send(stream())
    await sends_slowly(call)
    await call.send(LAST)


ROWS = (
    Row(
        name="A JSON body reaches the replica byte for byte, fields unknown to the proxy too.",
        source="report 22; measured: re-serialised, fields injected or lost",
        sends=(post(FOREIGN),),
        replica=WELL,
        client=(status(200),),
        upstream=(arrived(FOREIGN),),
    ),
    Row(
        name="A `seed` beyond int64 is the replica's to judge.",
        source="report 22; measured: 400, 422",
        sends=(post(UNUSUAL),),
        replica=WELL,
        client=(status(200),),
        upstream=(arrived(UNUSUAL),),
    ),
    Row(
        name="A body in chunks reaches the replica byte for byte.",
        source="RFC 9112 §7.1",
        sends=(chunked_post(FOREIGN[:1], FOREIGN[1:30], FOREIGN[30:]),),
        replica=WELL,
        client=(status(200), stays_open),
        upstream=(arrived(FOREIGN),),
    ),
    Row(
        name="The file of a multipart upload reaches the replica byte for byte.",
        source="peers.md: multipart uploads",
        sends=(
            post(
                UPLOAD,
                target=b"/v1/audio/transcriptions",
                kind=b"multipart/form-data; boundary=x",
            ),
        ),
        replica=WELL,
        client=(status(200),),
        upstream=(
            lambda seen: None if [FILE in r.body for r in seen.requests] == [True] else "changed",
        ),
        ours=(arrived(UPLOAD), brings(b"content-type", b"multipart/form-data; boundary=x")),
    ),
    Row(
        name="A body of 8 MB passes, any bytes.",
        source="RFC 9110 §6.4",
        sends=(post(BLOB, target=b"/v1/files", kind=b"application/octet-stream"),),
        replica=WELL,
        client=(status(200), stays_open),
        upstream=(arrived(BLOB),),
        peers=GENERAL,
    ),
    Row(
        name="A POST with an empty body says so.",
        source="RFC 9110 §8.6",
        sends=(post(b"", target=b"/pause"),),
        replica=WELL,
        client=(status(200),),
        upstream=(arrived(b""), brings(b"content-length", b"0")),
        peers=GENERAL,
    ),
    Row(
        name="An answer of 8 MB comes back byte for byte, sized.",
        source="RFC 9110 §6.4",
        sends=(post(),),
        replica=says(reply(BLOB, b"Content-Type: application/octet-stream")),
        client=(status(200), framed("sized"), body(BLOB), stays_open),
        peers=ALL,
    ),
    Row(
        name="An answer of 8 MB comes back byte for byte, in chunks.",
        source="RFC 9112 §7.1",
        sends=(post(),),
        replica=says(
            stream(), *(chunk(BLOB[i : i + 99_991]) for i in range(0, len(BLOB), 99_991)), LAST
        ),
        client=(status(200), body(BLOB), whole, stays_open),
    ),
    Row(
        name="A 1.5 MB event comes back byte for byte, however it was cut.",
        source="report 18 (TensorRT-LLM#13952): huge SSE line, split UTF-8",
        sends=(post(ASK_STREAM),),
        replica=huge_event,
        client=(status(200), body(HUGE), whole),
    ),
    Row(
        name="Each event arrives before the next one is sent.",
        source="report 24 (dstack#4269, litellm#29557): buffered streaming",
        sends=reads_one_by_one,
        replica=one_by_one,
        client=(status(200), whole),
    ),
    Row(
        name="The head of an answer that is no stream does not wait for its body.",
        source="report 24",
        sends=reads_the_head_first,
        replica=head_first,
        client=(status(200),),
        peers=GENERAL,
    ),
    Row(
        name="A gzip answer stays gzip, and says so.",
        source="measured: the header lost, the body still gzip",
        sends=(post(ASK, b"Accept-Encoding: gzip"),),
        replica=says(reply(PACKED, b"Content-Encoding: gzip")),
        client=(status(200), body(PACKED), field(b"content-encoding", b"gzip")),
    ),
    Row(
        name="An answer without any body is one.",
        source="RFC 9112 §6.3",
        sends=(post(),),
        replica=says(reply(b"")),
        client=(status(200), body(b""), whole, stays_open),
    ),
    Row(
        name="A body behind the answer's end reaches no client.",
        source="RFC 9112 §6.3: response splitting",
        sends=(post(),),
        replica=says(reply(b"{}") + reply(b'"EVIL"')),
        client=(lambda seen: "it came" if any(b"EVIL" in a.body for a in seen.answers) else None,),
    ),
    *(
        Row(
            name=f"The target `{target.decode()}` goes on as it was sent.",
            source="RFC 9110 §7.7; peers.md: `%2F` kept as sent",
            sends=(post(ASK, target=target),),
            replica=WELL,
            client=(status(200),),
            upstream=(targets(target),),
            peers=peers,
        )
        for target, peers in (
            (b"/v1/files/a%2Fb%20c", GENERAL),
            (b"/v1//files", GENERAL),
            (b"/v1/files;v=1/../x", NONE),
            (b"/v1/files?", GENERAL),
            (CHAT + b"?a=b%20c&a=d+e&f=/../?", ALL),
        )
    ),
    Row(
        name="An absolute target is served, and goes on in origin form.",
        source="RFC 9112 §3.2.2; a replica must understand either form",
        sends=(post(ASK, target=b"http://router.test/v1/completions?a=b"),),
        replica=WELL,
        client=(status(200),),
        upstream=(times(1), clean),
        ours=(targets(b"/v1/completions?a=b"),),
        peers=GENERAL,
    ),
    Row(
        name="The host of an absolute target beats the Host field.",
        source="RFC 9112 §3.2.2",
        sends=(get(b"http://asked.test:81/a"),),
        replica=WELL,
        client=(status(200),),
        upstream=(targets(b"/a"), brings(b"x-forwarded-host", b"asked.test:81")),
        peers=NONE,
    ),
    Row(
        name="A status and a reason phrase come back as they are.",
        source="RFC 9112 §4",
        sends=(post(),),
        replica=says(reply(b"{}", first=b"HTTP/1.1 299 So \xe4 So")),
        client=(
            status(299),
            lambda seen: None if seen.answers[0].reason == b"So \xe4 So" else "other reason",
        ),
        peers=NONE,
    ),
    Row(
        name="An answer without a reason phrase is one.",
        source="RFC 9112 §4",
        sends=(post(),),
        replica=says(head(b"HTTP/1.1 200 ", b"Content-Length: 2") + b"{}", Then.PAUSE),
        client=(status(200), body(b"{}"), stays_open),
    ),
)
