"""Plays a row: once, against one proxy, over fresh client connections.

Behind every row goes a plain request of another client, the sentinel: it must get the answer to its
own question. So what a row leaves behind in the proxy, in anybody's connection, comes to light.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from conformance import checks
from conformance.promise import PAUSE_S, Check, Do, Row, Seen, Wrong, post
from conformance.replica import Stage
from conformance.wire import Wire

T = TypeVar("T")
_numbers: Final = itertools.count(1)
_ROW_WITHIN_S: Final = 20.0


@dataclass
class Play:
    """A row under way; what a scene is given."""

    port: int
    stage: Stage
    wire: Wire
    is_ours: bool
    seen: Seen = field(default_factory=Seen)

    async def ask(self, data: bytes) -> None:
        """Ask by a connection of its own; the answer joins those seen."""
        async with await Wire.connect(self.port) as wire:
            await wire.send(data)
            self.seen.answers.append(await wire.answer())

    async def until(self, coming: Awaitable[T], within_s: float, otherwise: str) -> T:
        """Wait for it; `Wrong`, in these words, if it does not come."""
        try:
            return await asyncio.wait_for(coming, within_s)
        except TimeoutError:
            raise Wrong(otherwise) from None


async def verdict(row: Row, port: int, stage: Stage, *, is_ours: bool) -> str | None:
    """What is wrong, in a few words; None: the promise is kept."""
    stage.set(row.replica)
    if row.fresh:
        await stage.hang_up()
    try:
        async with asyncio.timeout(_ROW_WITHIN_S):
            return await _play(row, port, stage, is_ours=is_ours)
    except Wrong as wrong:
        return str(wrong)
    except TimeoutError:
        return "it took too long"
    except OSError as error:
        return f"it takes no connection: {error.strerror}"


async def _play(row: Row, port: int, stage: Stage, *, is_ours: bool) -> str | None:
    asked: Sequence[Check] = row.client + row.upstream + (row.ours if is_ours else ())
    async with await Wire.connect(port) as wire:
        play = Play(port, stage, wire, is_ours)
        seen = play.seen
        if callable(row.sends):
            await row.sends(play)
        else:
            for step in row.sends:
                await _do(step, play, row)
            for _ in range(row.answers):
                seen.answers.append(await wire.answer(bodiless=row.bodiless))
        if checks.closed in asked and not seen.end:
            seen.end = await wire.ended()
        if checks.stays_open in asked:
            seen.reusable = await sentinel(wire)
        if not callable(row.sends):
            await _others_are_well(port)
        seen.requests = list(stage.seen)
    return next((wrong for check in asked if (wrong := check(seen))), None)


async def _do(step: bytes | Do, play: Play, row: Row) -> None:
    if isinstance(step, bytes):
        await play.wire.send(step)
    elif step is Do.ANSWER:
        play.seen.answers.append(await play.wire.answer(bodiless=row.bodiless))
    elif step is Do.PAUSE:
        await asyncio.sleep(PAUSE_S)
    elif step is Do.FINISH:
        play.wire.finish()
    else:
        wanted = b"HTTP/1.1 100 Continue\r\n\r\n"
        got = await play.wire.raw(len(wanted), 1.0)
        if got != wanted:
            raise Wrong(f"no 100 Continue: {got[:20]!r}" if got else "no 100 Continue")


async def _others_are_well(port: int) -> None:
    async with await Wire.connect(port) as other:
        if wrong := await sentinel(other):
            raise Wrong(f"another client then: {wrong}")


async def sentinel(wire: Wire) -> str:
    """Ask for a word of its own; what is wrong with the answer, or nothing."""
    word = b"sentinel-%d" % next(_numbers)
    body = b'{"model":"tiny","user":"%s","messages":[{"role":"user","content":"hi"}]}' % word
    await wire.send(post(body))
    answer = await wire.answer()
    if answer.flaw:
        return answer.flaw
    return "" if word in answer.body else f"status {answer.status}, {answer.body[:40]!r}"
