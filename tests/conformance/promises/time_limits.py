"""How long the proxy waits for a client, and for a replica."""

import asyncio
from time import perf_counter

from conformance.checks import (
    body,
    closed,
    nothing,
    on_two_replicas,
    openai_error,
    refused,
    status,
    stays_open,
    times,
)
from conformance.play import Play
from conformance.promise import (
    ASK,
    CHAT,
    LAST,
    NONE,
    REPLY,
    WELL,
    Do,
    Row,
    Then,
    Wrong,
    chunk,
    event,
    get,
    head,
    post,
    reply,
    says,
    stream,
    tries,
)
from conformance.replica import Call
from conformance.wire import Wire

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
        name="A head that does not end in time is 408.",
        source="RFC 9110 §15.5.9",
        sends=(get()[:-2],),
        replica=WELL,
        client=(refused(408), closed),
        upstream=(nothing,),
        site="limits",
        peers=NONE,
    ),
    Row(
        name="A head that drips is 408, however long it drips.",
        source="Slowloris",
        sends=drips_its_head,
        replica=WELL,
        client=(refused(408),),
        upstream=(nothing,),
        site="limits",
        peers=NONE,
    ),
    Row(
        name="The head of a second request has its time limit, too.",
        source="RFC 9110 §15.5.9",
        sends=(post(), Do.ANSWER, get()[:-2]),
        replica=WELL,
        client=(refused(408), closed),
        site="limits",
        peers=NONE,
    ),
    Row(
        name="A body that stops coming is 408.",
        source="RFC 9110 §15.5.9",
        sends=(BEGUN + b"{",),
        replica=WELL,
        client=(refused(408), closed),
        upstream=(nothing,),
        site="limits",
        peers=NONE,
    ),
    Row(
        name="A body that comes slowly, but comes, is served.",
        source="README",
        sends=sends_its_body_slowly,
        replica=WELL,
        client=(status(200),),
        site="limits",
        peers=NONE,
    ),
    Row(
        name="An idle connection is closed without a word.",
        source="RFC 9112 §9.5",
        sends=idle_after_an_answer,
        replica=WELL,
        client=(status(200),),
        site="limits",
        peers=NONE,
    ),
    Row(
        name="A connection that never asks is closed without a word.",
        source="RFC 9112 §9.5",
        sends=idle_from_the_start,
        replica=WELL,
        site="limits",
        peers=NONE,
    ),
    Row(
        name="A slow answer is not an idle connection.",
        source="README",
        sends=(post(),),
        replica=says(stream() + chunk(event(1)), *[Then.PAUSE] * 60, chunk(event(2)) + LAST),
        client=(status(200), body(event(1) + event(2)), stays_open),
        site="limits",
        peers=NONE,
    ),
    Row(
        name="A client that takes nothing of its answer is cut off.",
        source="README",
        sends=takes_nothing,
        replica=sends_for_ever,
        site="limits",
        peers=NONE,
    ),
    Row(
        name="One connection too many is 503 at once; those that are there go on.",
        source="README",
        sends=a_fourth_of_three,
        replica=WELL,
        client=(
            lambda seen: (
                None
                if [a.status for a in seen.answers] == [503, 200]
                else f"status {[a.status for a in seen.answers]}"
            ),
            lambda seen: None if seen.answers[0].error else "not OpenAI's form",
            closed,
        ),
        site="crowd",
        peers=NONE,
    ),
    Row(
        name="A replica that does not begin its answer in time: another one is tried.",
        source="report 19 (production-stack#749): one hung backend stalls the others",
        sends=(post(),),
        replica=tries(says(Then.HOLD), WELL),
        client=(status(200), body(REPLY)),
        upstream=(on_two_replicas,),
        site="limits",
        peers=NONE,
    ),
    Row(
        name="No replica begins its answer in time: 504 after the second.",
        source="report 15",
        sends=(post(),),
        replica=says(Then.HOLD),
        client=(status(504), openai_error(), stays_open),
        upstream=(times(2),),
        site="limits",
        peers=NONE,
    ),
    Row(
        name="A stream that has its head and no event in time: another one is tried.",
        source="report 19",
        sends=(post(ASK),),
        replica=tries(says(stream(), Then.HOLD), says(reply())),
        client=(status(200), body(REPLY)),
        upstream=(on_two_replicas,),
        site="limits",
        peers=NONE,
    ),
)
