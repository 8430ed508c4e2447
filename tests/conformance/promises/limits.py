"""What one client may take of the proxy, and what it is told when it is too much."""

from conformance.checks import (
    closed,
    nothing,
    refused,
    status,
    stays_open,
)
from conformance.promise import (
    ASK,
    NONE,
    WELL,
    Do,
    Row,
    chunked_post,
    get,
    post,
)

EXPECTS = b"Expect: 100-continue"
TOO_LONG = b"x" * 10_001


ROWS = (
    Row(
        name="A head that is too large is 431.",
        source="RFC 6585 §5",
        sends=(post(ASK, b"X-A: " + b"x" * 5000), Do.PAUSE),
        replica=WELL,
        client=(refused(431), closed),
        upstream=(nothing,),
        site="limits",
        peers=NONE,
    ),
    Row(
        name="A head that never ends is 431 as soon as it is too large.",
        source="RFC 6585 §5",
        sends=(b"GET / HTTP/1.1\r\nX-A: " + b"x" * 1_000_000,),
        replica=WELL,
        client=(refused(431), closed),
        site="limits",
        peers=NONE,
    ),
    Row(
        name="A target that is too long is 414 or 431.",
        source="RFC 9110 §15.5.15",
        sends=(get(b"/" + b"x" * 5000), Do.PAUSE),
        replica=WELL,
        client=(refused(414, 431), closed),
        upstream=(nothing,),
        site="limits",
        peers=NONE,
    ),
    Row(
        name="Too many fields are 431.",
        source="RFC 6585 §5",
        sends=(post(ASK, *(b"X-%d: 1" % number for number in range(30))), Do.PAUSE),
        replica=WELL,
        client=(refused(431), closed),
        upstream=(nothing,),
        site="limits",
        peers=NONE,
    ),
    Row(
        name="As many fields as are allowed are served.",
        source="README",
        sends=(post(ASK, *(b"X-%d: 1" % number for number in range(16))),),
        replica=WELL,
        client=(status(200), stays_open),
        site="limits",
        peers=NONE,
    ),
    *(
        Row(
            name=f"Unless configured otherwise, {count} fields are {code}.",
            source="README",
            sends=(post(ASK, *(b"X-%d: 1" % number for number in range(count - 3))), Do.PAUSE),
            replica=WELL,
            client=(status(code),),
            peers=NONE,
        )
        for count, code in ((128, 200), (129, 431))
    ),
    Row(
        name="A body whose length is too large is 413 before any of it is sent.",
        source="RFC 9110 §15.5.14",
        sends=(post(TOO_LONG)[: -len(TOO_LONG)],),
        replica=WELL,
        client=(refused(413), closed),
        upstream=(nothing,),
        site="limits",
        peers=NONE,
    ),
    Row(
        name="A client that expects 100 gets 413 in its place.",
        source="RFC 9110 §10.1.1",
        sends=(post(TOO_LONG, EXPECTS)[: -len(TOO_LONG)],),
        replica=WELL,
        client=(
            refused(413),
            closed,
            lambda seen: "100 Continue" if seen.answers[0].interim else None,
        ),
        upstream=(nothing,),
        site="limits",
        peers=NONE,
    ),
    Row(
        name="A body that becomes too large by its chunks is 413.",
        source="RFC 9110 §15.5.14",
        sends=(chunked_post(*[b"x" * 1000] * 11, end=b""),),
        replica=WELL,
        client=(refused(413), closed),
        upstream=(nothing,),
        site="limits",
        peers=NONE,
    ),
    Row(
        name="A body of just the limit is served.",
        source="README",
        sends=(post(b"x" * 10_000),),
        replica=WELL,
        client=(status(200), stays_open),
        site="limits",
        peers=NONE,
    ),
)
