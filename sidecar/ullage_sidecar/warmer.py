"""Warms up fresh engines: sends rounds of dummy requests, and tells the node how that goes.

Each incarnation that the node calls cold is warmed up by a task of its own, which ends when the
rounds have settled, when the server refuses, when the time is up, or when the incarnation is gone
or drained.

* A round of which any request failed counts for nothing; it is sent again `PAUSE_S` later.
* Adapters (LoRA) get one short dummy each before the rounds, `MOST_ADAPTERS` at most: a server
  loads them when they are first asked for. A warm-up does not fail of one that fails.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, TypeVar

import aiohttp

from ullage_shared.log import line
from ullage_sidecar.core.dummies import Dummy, round_of
from ullage_sidecar.core.engine import Engine
from ullage_sidecar.core.reading import Hello
from ullage_sidecar.core.render import asked_for_as, label
from ullage_sidecar.core.warmup import MOST_ADAPTERS, Phase, Progress, settled
from ullage_sidecar.dummy_client import DummyClient, FailedError, RefusedError
from ullage_sidecar.node import Key, Node

LOOK_S: Final = 0.25
PAUSE_S: Final = 1.0
MOST_AT_ONCE: Final = 64
"""Dummies under way, of all engines of the node: each is a connection."""

_log: Final = logging.getLogger("ullage.sidecar")
_Answer = TypeVar("_Answer")


class UnwantedError(Exception):
    """The incarnation is gone, or drained: what its warm-up says concerns nobody."""


class Warmer:
    """The warm-ups of one node's engines."""

    def __init__(
        self,
        node: Node,
        session: aiohttp.ClientSession,
        clock: Callable[[], float],
        version: str,
    ) -> None:
        self._node = node
        self._session = session
        self._clock = clock
        self._version = version
        self._room = asyncio.Semaphore(MOST_AT_ONCE)

    async def run(self) -> None:
        """Look for cold engines, and for warm-ups that nobody wants any more; for ever."""
        running: dict[_WarmUp, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                for warm_up, task in tuple(running.items()):
                    if task.done():
                        del running[warm_up]
                    elif not warm_up.is_wanted():
                        task.cancel()
                for key, engine in self._node.cold(self._clock()).items():
                    warm_up = self._of(key, engine)
                    with contextlib.suppress(UnwantedError):
                        warm_up.tell(Phase.RUNNING)
                        running[warm_up] = group.create_task(warm_up.run())
                await asyncio.sleep(LOOK_S)

    def _of(self, key: Key, engine: Engine) -> "_WarmUp":
        assert engine.hello is not None  # A cold engine has spoken.
        entry = next(entry for entry in self._node.config.engine if entry.name == engine.name)
        client = DummyClient(
            self._session,
            entry.url,
            rank=asked_for_as(engine),
            version=self._version,
            name=label(engine),
            rng=Random(engine.hello.boot_id),
            tally=self._node.dummies[engine.name],
        )
        return _WarmUp(
            self._node, key, engine.hello, label(engine), entry.api_key_file, client, self._clock,
            self._room,
        )  # fmt: skip


@dataclass(slots=True, eq=False)
class _WarmUp:
    """That of one incarnation."""

    node: Node
    key: Key
    hello: Hello
    engine: str
    key_file: str
    client: DummyClient
    clock: Callable[[], float]
    room: asyncio.Semaphore
    rounds_s: list[float] = field(default_factory=list)
    """What each good round took."""

    def is_wanted(self) -> bool:
        """Is its engine still there, and in service?"""
        return self.node.is_wanted(self.key, self.hello.boot_id)

    def tell(self, phase: Phase, fault: str = "") -> None:
        """Raises `UnwantedError`."""
        progress = Progress(self.hello.boot_id, phase, fault)
        if not self.node.warming(self.key, progress, self.clock()):
            raise UnwantedError

    async def run(self) -> None:
        """From the first dummy to the last. Raises nothing but `CancelledError`."""
        begun_s, limit_s = self.clock(), self.node.config.warm_up.limit_s
        end, why = "broken_off", ""
        try:
            async with asyncio.timeout(limit_s):
                await self._all_rounds()
            self.tell(Phase.WARM)
            end = "warm"
        except RefusedError as error:
            with contextlib.suppress(UnwantedError):
                self.tell(Phase.GIVEN_UP, str(error))
                end, why = "given_up", str(error)
        except TimeoutError:
            end, why = "given_up", f"not done within {limit_s:g} s"  # The core knows that too.
        except UnwantedError:
            pass
        finally:
            rounds = ",".join(f"{took_s:.2f}" for took_s in self.rounds_s)
            took = f"{self.clock() - begun_s:.1f}"
            told = line(
                "warm_up", engine=self.engine, end=end, took_s=took, rounds_s=rounds, why=why
            )
            _log.log(logging.WARNING if why else logging.INFO, told)

    async def _all_rounds(self) -> None:
        if self.key_file:
            # Elsewhere: a file system may hang.
            self.client.use_key(await asyncio.to_thread(key_in, Path(self.key_file)))
        hello, settings = self.hello, self.node.config.warm_up
        models, _ = await self._patiently(self.client.models)
        each = round_of(
            models.base.id,
            models.base.max_model_len or hello.max_model_len,
            hello.max_num_batched_tokens,
            settings,
        )
        short = min(each, key=lambda dummy: dummy.prompt_tokens)
        await self._patiently(lambda: self._ask(short))  # Alone: which API there is.
        for adapter in models.adapters[:MOST_ADAPTERS]:
            with contextlib.suppress(RefusedError, FailedError):
                await self._ask(short._replace(model=adapter))
        while not settled(self.rounds_s, settings):
            _, took_s = await self._patiently(lambda: self._at_once(each))
            self.rounds_s.append(took_s)

    async def _patiently(self, what: Callable[[], Awaitable[_Answer]]) -> tuple[_Answer, float]:
        """Its answer and the seconds that took, once it does not fail. Raises `RefusedError`."""
        while True:
            begun_s = self.clock()
            try:
                answer = await what()
            except FailedError as error:
                self.tell(Phase.RUNNING, str(error))
                await asyncio.sleep(PAUSE_S)
            else:
                took_s = self.clock() - begun_s
                self.tell(Phase.RUNNING)
                return answer, took_s

    async def _ask(self, dummy: Dummy) -> None:
        async with self.room:
            await self.client.ask(dummy)

    async def _at_once(self, dummies: Sequence[Dummy]) -> None:
        asked = (self._ask(dummy) for dummy in dummies)
        ends = await asyncio.gather(*asked, return_exceptions=True)
        faults = [end for end in ends if end is not None]
        for fault in sorted(faults, key=lambda fault: not isinstance(fault, RefusedError)):
            raise fault


def key_in(file: Path) -> str:
    """The API key. Raises `RefusedError`: the operator's fault."""
    where = f"engine[].api_key_file = {str(file)!r}"
    try:
        if not file.is_file():  # One that is no file may have no end.
            raise RefusedError(f"{where}: no such file")
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise RefusedError(f"{where}: cannot be read") from error
    if not key or not key.isprintable() or not key.isascii():
        raise RefusedError(f"{where}: wanted one line of printable ASCII")
    return key
