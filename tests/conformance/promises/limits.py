"""What one client may take of the proxy, and what it is told when it is too much."""

import asyncio
from time import perf_counter

from conformance.checks import (
    closed,
    nothing,
    refused,
    status,
    stays_open,
)
from conformance.play import Play
from conformance.promise import (
    ASK,
    CHAT,
    NONE,
    WELL,
    Do,
    Row,
    Wrong,
    chunk,
    chunked_post,
    get,
    head,
    post,
    stream,
)
from conformance.replica import Call
from conformance.wire import Wire

EXPECTS = b"Expect: 100-continue"
TOO_LONG = b"x" * 10_001
BEGUN = head(b"POST %s HTTP/1.1" % CHAT, b"Host: router.test", b"Content-Length: 5000")


async def idle_after_an_answer(play: Play) -> None:
    await play.wire.send(post())
    play.seen.answers.append(await play.wire.answer())
    if (end := await play.wire.ended(2.0)) != "closed":
        raise Wrong(f"connection {end or 'left open'}")


async def idle_from_the_start(play: Play) -> None:
    if (end := await play.wire.ended(2.0)) != "closed":
        raise Wrong(f"connection {end or 'left open'}")


async def drips_its_head(play: Play) -> None:
    """A byte now and then does not put the limit off (Slowloris)."""
    for byte in get(CHAT)[:30]:
        await play.wire.send(bytes([byte]))
        await asyncio.sleep(0.04)
    play.seen.answers.append(await play.wire.answer(within_s=1.0))


async def sends_its_body_slowly(play: Play) -> None:
    """Slow is not stalled."""
    sent = post()
    await play.wire.send(sent[: -len(ASK)])
    for start in range(0, len(ASK), 10):
        await asyncio.sleep(0.1)
        await play.wire.send(ASK[start : start + 10])
    play.seen.answers.append(await play.wire.answer())


async def takes_nothing(play: Play) -> None:
    play.wire.pause()
    await play.wire.send(post())
    began_s = perf_counter()
    left_s = await play.until(play.stage.notes.get(), 5.0, "the replica is read no more, for ever")
    if left_s - began_s < 0.3:
        raise Wrong("cut off at once")


async def sends_for_ever(call: Call) -> None:
    try:
        await call.send(stream())
        while True:
            await call.send(chunk(b"x" * 65_536))
    except ConnectionError:
        call.notes.put_nowait(perf_counter())


async def a_fourth_of_three(play: Play) -> None:
    others = [await Wire.connect(play.port) for _ in range(2)]
    for each in (play.wire, *others):
        await each.send(post())
        if (await each.answer()).status != 200:
            raise Wrong("not even three are served")
    async with await Wire.connect(play.port) as fourth:
        play.seen.answers.append(await fourth.answer())
        play.seen.end = await fourth.ended()
    for each in others:
        async with each:
            await each.send(post())
            if (await each.answer()).status != 200:
                raise Wrong("those that were there are served no more")
    await asyncio.sleep(0.05)
    await play.ask(post())


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
