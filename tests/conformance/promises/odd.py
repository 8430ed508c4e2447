"""Odd but sound: served, or refused, and never in a form that a replica could take otherwise."""

from conformance.checks import (
    arrived,
    body,
    clean,
    closed,
    meant,
    nothing,
    refused,
    status,
    stays_open,
    times,
)
from conformance.promise import (
    ALL,
    ASK,
    REPLY,
    WELL,
    Do,
    Row,
    chunked_post,
    get,
    head,
    post,
)
from conformance.promises.refusals import CHUNKED, START

EXTENDED = b";name=value" + b';q="a;b"'
SHORT = b"%x" % len(ASK)

ROWS = (
    Row(
        name="A chunk's extension ends at the proxy.",
        source="RFC 9112 §7.1.1",
        sends=(head(*START, CHUNKED) + SHORT + EXTENDED + b"\r\n" + ASK + b"\r\n0;last\r\n\r\n",),
        replica=WELL,
        upstream=(meant(ASK),),
        ours=(status(200), arrived(ASK), stays_open),
    ),
    Row(
        name="A trailer that would be framing is dropped, or refused.",
        source="RFC 9110 §6.5.1",
        sends=(chunked_post(ASK, end=b"0\r\nContent-Length: 3\r\nHost: evil\r\n\r\n"), Do.PAUSE),
        replica=WELL,
        upstream=(meant(ASK),),
        ours=(
            lambda seen: "a trailer went on" if any(r.trailers for r in seen.requests) else None,
        ),
    ),
    Row(
        name="Leading zeroes of a chunk's size mean nothing.",
        source="RFC 9112 §7.1",
        sends=(head(*START, CHUNKED) + b"000" + SHORT + b"\r\n" + ASK + b"\r\n000\r\n\r\n",),
        replica=WELL,
        client=(status(200),),
        upstream=(clean, times(1)),
        ours=(arrived(ASK), stays_open),
    ),
    Row(
        name="`chunked` may be written in capitals.",
        source="RFC 9112 §7: names of codings have no case",
        sends=(
            head(*START, b"Transfer-Encoding: CHUNKED")
            + chunked_post(ASK).split(b"\r\n\r\n", 1)[1],
        ),
        replica=WELL,
        client=(status(200), stays_open),
        upstream=(clean, times(1)),
    ),
    Row(
        name="Leading zeroes of a length mean nothing.",
        source="RFC 9110 §8.6",
        sends=(head(*START, b"Content-Length: 000%d" % len(ASK)) + ASK,),
        replica=WELL,
        client=(status(200), stays_open),
        upstream=(clean, times(1)),
    ),
    Row(
        name="Blanks around a field's value are not part of it.",
        source="RFC 9112 §5.1",
        sends=(head(*START, b"Content-Length: \t%d \t" % len(ASK)) + ASK,),
        replica=WELL,
        client=(status(200), stays_open),
        upstream=(clean, times(1)),
    ),
    Row(
        name="HTTP/1.2 is served as HTTP/1.1, or refused.",
        source="RFC 9110 §2.5",
        sends=(post().replace(b"HTTP/1.1", b"HTTP/1.2"), Do.PAUSE),
        replica=WELL,
        client=(lambda seen: None if seen.answers[0].status in (200, 400, 505) else "no answer",),
        upstream=(meant(ASK),),
    ),
    Row(
        name="A body of a GET is its own, and not the next request.",
        source="RFC 9110 §9.3.1; smuggling",
        sends=(post(ASK, method=b"GET", target=b"/v1/thing") + post(),),
        answers=2,
        replica=WELL,
        upstream=(meant(ASK, ASK),),
        ours=(status(200, 200), arrived(ASK, ASK)),
        peers=("nginx", "haproxy"),
    ),
    Row(
        name="A body of a HEAD is its own, and not the next request.",
        source="RFC 9110 §9.3.2; smuggling",
        sends=(post(ASK, method=b"HEAD", target=b"/v1/thing"), Do.ANSWER, post(method=b"HEAD")),
        bodiless=True,
        replica=WELL,
        upstream=(meant(ASK, ASK),),
        ours=(status(200, 200), stays_open),
        peers=("nginx", "haproxy"),
    ),
    Row(
        name="What came before the refused is answered first.",
        source="RFC 9112 §9.3.2",
        sends=(post() + post() + b"nonsense\r\n\r\n",),
        answers=3,
        replica=WELL,
        upstream=(meant(ASK, ASK),),
        client=(
            lambda seen: None if [a.status for a in seen.answers[:2]] == [200, 200] else "lost",
        ),
        ours=(refused(400), closed),
    ),
    Row(
        name="What comes behind the refused is not read.",
        source="RFC 9112 §9.3.2",
        sends=(b"nonsense\r\n\r\n" + post(), Do.PAUSE),
        replica=WELL,
        ours=(refused(400), closed),
        upstream=(nothing,),
    ),
    Row(
        name="An answer to HEAD that has a body after all poisons nobody.",
        source="RFC 9112 §6.3: response splitting",
        sends=(get(method=b"HEAD"),),
        bodiless=True,
        replica=WELL,
        client=(status(200),),
        peers=("nginx", "haproxy"),
    ),
    Row(
        name="Fields that only look like framing are passed on as what they are.",
        source="RFC 9112 §6.1",
        sends=(post(ASK, b"Content_Length: 3", b"Transfer_Encoding: chunked"),),
        replica=WELL,
        client=(status(200), body(REPLY)),
        upstream=(meant(ASK),),
        ours=(arrived(ASK), stays_open),
        peers=ALL,
    ),
)
