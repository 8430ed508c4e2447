"""Clients that leave: vLLM must know at once, or it goes on generating for nobody."""

import asyncio
from collections.abc import Callable
from time import perf_counter

from conformance.play import Play
from conformance.promise import (
    ASK_STREAM,
    NONE,
    Row,
    Script,
    Then,
    Wrong,
    chunk,
    event,
    post,
    reply,
    says,
    stream,
)
from conformance.wire import Wire

OURS_WITHIN_S = 0.1
PEERS_WITHIN_S = 1.0
TRIES = 3


def leaves(how: Callable[[Wire], None], asking: bytes) -> Callable[[Play], object]:
    """Ask, leave once the replica has said its part; how long until it knew, best of a few."""

    async def scene(play: Play) -> None:
        best_s = 9.0
        within_s = OURS_WITHIN_S if play.is_ours else PEERS_WITHIN_S
        for _ in range(TRIES):
            async with await Wire.connect(play.port) as wire:
                await wire.send(asking)
                await play.until(play.stage.notes.get(), 2.0, "the replica was not asked")
                await asyncio.sleep(0.02)
                left_s = perf_counter()
                how(wire)
                seen_s = await play.until(play.stage.notes.get(), 3.0, "the replica is never told")
            best_s = min(best_s, seen_s - left_s)
            if best_s < within_s:
                return
        raise Wrong(f"the replica is told after {best_s:.2f} s")

    return scene


MOMENTS: dict[str, tuple[bytes, Script]] = {
    "before an answer that is no stream": (post(), says(Then.HOLD)),
    "before a stream's head": (post(ASK_STREAM), says(Then.HOLD)),
    "before a stream's first event": (post(ASK_STREAM), says(stream(), Then.HOLD)),
    "mid-stream": (post(ASK_STREAM), says(stream() + chunk(event(1)), Then.HOLD)),
    "within a sized answer": (post(), says(reply()[:-9], Then.HOLD)),
}
SOURCES = ("report 1 (production-stack#634, litellm#37140)", "report 2 (litellm#31499, #30244)")

ROWS = (
    *(
        Row(
            name=f"A client leaves {moment}: the replica sees it.",
            source=SOURCES["stream" in moment and "no stream" not in moment],
            sends=leaves(Wire.leave, asking),
            replica=script,
        )
        for moment, (asking, script) in MOMENTS.items()
    ),
    *(
        Row(
            name=f"A client resets its connection {moment}: the replica sees it.",
            source=SOURCES[moment == "mid-stream"],
            sends=leaves(Wire.reset, MOMENTS[moment][0]),
            replica=MOMENTS[moment][1],
        )
        for moment in ("before an answer that is no stream", "mid-stream")
    ),
    Row(
        name="A client that leaves with requests in line: none of them is sent any more.",
        source="report 1",
        sends=leaves(Wire.leave, post() * 3),
        replica=says(Then.HOLD),
        upstream=(lambda seen: None if len(seen.requests) <= TRIES else "more were sent",),
        peers=NONE,
    ),
)
