"""Replicas that fail: what is tried again, where, how often, and what the client gets to know."""

import asyncio

from conformance.checks import (
    body,
    field,
    on_two_replicas,
    openai_error,
    status,
    stays_open,
    times,
)
from conformance.play import Play
from conformance.promise import (
    ASK,
    ASK_STREAM,
    NONE,
    PAUSE_S,
    REPLY,
    WELL,
    Row,
    Script,
    Seen,
    Then,
    head,
    post,
    reply,
    says,
)
from conformance.replica import Call

RETRY_AFTER = b"Retry-After: 7"
ERROR = b'{"error":{"message":"no","type":"BadRequestError","param":null,"code":%d}}'


def answers_no(code: int, reason: bytes) -> Script:
    return says(reply(ERROR % code, RETRY_AFTER, first=b"HTTP/1.1 %d %s" % (code, reason)))


def used_before(call: Call) -> bool:
    """Did the connection carry a request of this row before?"""
    earlier = (request.connection for request in call.stage.seen[:-1])
    return call.request.connection in earlier


async def closes_second_time(call: Call) -> None:
    """Answers the first request of a connection; the second one finds it closed."""
    if used_before(call):
        call.close()
    else:
        await call.send(reply())


async def closes_second_time_within_the_head(call: Call) -> None:
    if used_before(call):
        await call.send(b"HTTP/1.1 200 OK\r\nContent-Le")
        call.close()
    else:
        await call.send(reply())


def first_asked(script: Script) -> Script:
    """The replica that is asked first always does this; the other one serves."""

    async def either(call: Call) -> None:
        failing = call.request.replica == call.stage.seen[0].replica
        await (script if failing else WELL)(call)

    return either


async def asks_now_and_then(play: Play) -> None:
    """So that the replica has closed in between."""
    for _ in range(5):
        await play.ask(post())
        await asyncio.sleep(2 * PAUSE_S)


async def asks_eight_times(play: Play) -> None:
    for _ in range(8):
        await play.ask(post())


async def breaks_off_a_reused_connection(play: Play) -> None:
    """Each request has a body of its own, so that a second try can be told from a next request."""
    for number in range(8):
        await play.ask(post(ASK.replace(b"hi", b"%d" % number)))


async def while_one_is_down(play: Play) -> None:
    await play.stage.replicas[0].down()
    try:
        await asks_eight_times(play)
    finally:
        await play.stage.replicas[0].up()


async def while_one_is_a_hole(play: Play) -> None:
    await play.stage.replicas[0].hole()
    try:
        for _ in range(4):
            await play.ask(post())
    finally:
        await play.stage.replicas[0].down()
        await play.stage.replicas[0].up()


def all_served(seen: Seen) -> str | None:
    got = [answer.status for answer in seen.answers]
    bad = [str(status) for status in got if status != 200]
    return f"{len(bad)} of {len(got)} failed, {bad[0]}" if bad else None


def once_each(seen: Seen) -> str | None:
    """As many sends as requests, and at most one more for each that found its connection closed."""
    return None if len(seen.requests) <= 2 * len(seen.answers) else f"{len(seen.requests)} sends"


def never_twice_to_one(seen: Seen) -> str | None:
    """No request went to the replica that had just broken it off."""
    pairs = zip(seen.requests, seen.requests[1:], strict=False)
    again = [b for a, b in pairs if a.body == b.body and a.replica == b.replica]
    return "sent to the same replica again" if again else None


def passed_on_once(code: int, reason: bytes, source: str) -> Row:
    return Row(
        name=f"A replica's {code} is passed on as it is, and the request sent once.",
        source=source,
        sends=(post(),),
        replica=answers_no(code, reason),
        client=(status(code), body(ERROR % code), field(b"retry-after", b"7"), stays_open),
        upstream=(times(1),),
    )


FAULTS = {
    "closes before its answer": says(Then.CLOSE),
    "resets before its answer": says(Then.RESET),
    "closes within its answer's head": says(b"HTTP/1.1 200 OK\r\nContent-Le", Then.CLOSE),
}
INVALID = {
    "closes behind `100 Continue`": says(head(b"HTTP/1.1 100 Continue"), Then.CLOSE),
    "answers in another protocol": says(b"SSH-2.0-OpenSSH_9\r\n\r\n", Then.CLOSE),
    "states two lengths": says(
        head(b"HTTP/1.1 200 OK", b"Content-Length: 2", b"Content-Length: 3") + b"{}", Then.CLOSE
    ),
}

ROWS = (
    Row(
        name="A connection that the replica closed while idle costs no request.",
        source="report 14 (vllm#41567, llm-d#1564): keep-alive race",
        sends=asks_now_and_then,
        replica=says(reply(), Then.PAUSE, Then.CLOSE),
        client=(all_served,),
        upstream=(times(5),),
    ),
    Row(
        name="A reused connection that closes at the request: once more, on a new one.",
        source="report 14",
        sends=asks_eight_times,
        replica=closes_second_time,
        client=(all_served,),
        upstream=(once_each,),
    ),
    Row(
        name="A replica that refuses connections: another one serves.",
        source="report 15; measured: production-stack fails half",
        sends=while_one_is_down,
        replica=WELL,
        client=(all_served,),
        upstream=(times(8),),
    ),
    Row(
        name="A replica that neither accepts nor refuses: another one serves, within 2.5 s.",
        source="report 19",
        sends=while_one_is_a_hole,
        replica=WELL,
        client=(all_served,),
    ),
    *(
        Row(
            name=f"A replica that {fault}: another one serves.",
            source="report 15 (skypilot#3916)",
            sends=(post(),),
            replica=first_asked(script),
            fresh=True,
            client=(status(200), body(REPLY), stays_open),
            ours=(on_two_replicas,),
        )
        for fault, script in FAULTS.items()
    ),
    *(
        Row(
            name=f"A replica that {fault}: another one serves.",
            source="RFC 9110 §15.6.3",
            sends=(post(),),
            replica=first_asked(script),
            fresh=True,
            client=(status(200), body(REPLY)),
            upstream=(on_two_replicas,),
            peers=NONE,
        )
        for fault, script in INVALID.items()
    ),
    Row(
        name="A reused connection that closes within its answer: not the same replica again.",
        source="report 15: it had taken the request",
        sends=breaks_off_a_reused_connection,
        replica=closes_second_time_within_the_head,
        upstream=(never_twice_to_one,),
        peers=NONE,
    ),
    Row(
        name="A request is never sent a third time.",
        fresh=True,
        source="report 15: retry amplification; measured: 5, 10 sends",
        sends=(post(),),
        replica=says(Then.CLOSE),
        upstream=(times(1, 2),),
        ours=(status(502), openai_error(), stays_open),
    ),
    passed_on_once(429, b"Too Many Requests", "reports 15, 16; measured: 5 sends"),
    passed_on_once(400, b"Bad Request", "reports 16, 17 (vllm-ascend#12168)"),
    passed_on_once(404, b"Not Found", "report 16"),
    passed_on_once(500, b"Internal Server Error", "report 15"),
    Row(
        name="A 4xx does not close the way to its replica.",
        source="report 16 (vllm-project/router#148, sglang#3070): 4xx trips the breaker",
        sends=(post() * 20,),
        answers=20,
        replica=answers_no(400, b"Bad Request"),
        client=(status(*[400] * 20), stays_open),
        upstream=(times(20),),
    ),
    Row(
        name="A 4xx to a request that wants a stream is that 4xx.",
        source="report 17 (vllm-ascend#12168): it became an empty 200",
        sends=(post(ASK_STREAM),),
        replica=answers_no(422, b"Unprocessable Entity"),
        client=(status(422), body(ERROR % 422), stays_open),
        upstream=(times(1),),
    ),
)
