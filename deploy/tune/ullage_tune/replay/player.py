"""An open loop: each request leaves when the workload says so, whatever became of those before.

Latencies count from the instant at which a request was due, not from that at which it was sent: so
a client that falls behind shows in the figures, rather than hiding what it should have measured.
How late it was is in them, and told by itself (`late_s`): a late client measures itself.

Edges. `most_at_once` bounds the connections: a request beyond it waits for one, and is late by
that. One without an answer after `patience_s` has failed. When `stop` is set nothing more is sent,
what runs is given up, and the run is what had ended by then.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final, NamedTuple

import aiohttp

from ullage_tune.outcome import Outcome, Run
from ullage_tune.replay.answer import Answer, refusal
from ullage_tune.replay.prompts import Form, body
from ullage_tune.workload import Request, Workload

REPLICA: Final = "x-ullage-replica"
WHY: Final = "x-ullage-why"
REFUSED: Final = (429, 503)
IDLE_S: Final = 1.0
"""For which a connection is kept. vLLM closes its own after 5 s: that would look like a failure."""
MOST_REFUSAL_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to ask, and how."""

    url: str
    """The base, as `http://host:port`."""
    model: str
    form: Form = Form.TEXT
    plain: bool = False
    """Send nothing that OpenAI's API does not know."""
    headers: Mapping[str, str] = field(default_factory=dict)
    most_at_once: int = 2048
    patience_s: float = 600.0


class Fate(NamedTuple):
    """What became of a request, and what only a client can say of it."""

    outcome: Outcome
    status: int
    """HTTP's; 0: no answer."""
    failure: str
    """Empty: the answer is whole."""
    late_s: float
    """How long after its time it was sent."""


@dataclass(frozen=True, slots=True)
class Played:
    """A run, and what a client knows of it beside."""

    run: Run
    fates: tuple[Fate, ...]
    replicas: tuple[str, ...]
    """The names of the run's replica numbers; a server that names none is ''."""
    tells_hits: bool
    """Did any answer say how much of its prompt was cached?"""
    left: int
    """Requests that had not ended, or not begun, when it was stopped."""

    @property
    def failures(self) -> Counter[str]:
        """How many failed, by how."""
        return Counter(fate.failure for fate in self.fates if fate.failure)


async def play(
    workload: Workload,
    target: Target,
    *,
    stop: asyncio.Event | None = None,
    on_end: Callable[[Fate], None] = lambda _: None,
) -> Played:
    """Send all of it, wait for all answers, or for `stop`."""
    began_s = perf_counter()
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S)
    timeout = aiohttp.ClientTimeout(total=target.patience_s)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        player = _Player(session, target, began_s, on_end)
        sending = asyncio.create_task(player.send_all(workload))
        stopping = asyncio.create_task((stop or asyncio.Event()).wait())
        try:
            await asyncio.wait((sending, stopping), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                await sending
        finally:
            for task in (sending, stopping):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
    took_s = perf_counter() - began_s
    fates = tuple(sorted(player.fates, key=lambda fate: fate.outcome.arrived_s))
    run = Run(
        workload=workload.name,
        policy=target.url,
        seed=0,
        outcomes=tuple(fate.outcome for fate in fates),
        busy_s=(),
        simulated_s=took_s,
        wall_s=took_s,
    )
    left = len(workload.requests) - len(fates)
    return Played(run, fates, tuple(player.replicas), player.tells_hits, left)


class _Player:
    """What one run holds."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        target: Target,
        began_s: float,
        on_end: Callable[[Fate], None],
    ) -> None:
        self._session = session
        self._target = target
        self._began_s = began_s
        self._on_end = on_end
        self._room = asyncio.Semaphore(target.most_at_once)
        self.replicas: dict[str, int] = {}
        self.fates: list[Fate] = []
        self.tells_hits = False

    def _now_s(self) -> float:
        return perf_counter() - self._began_s

    async def send_all(self, workload: Workload) -> None:
        """Each at its time. A body is made before it is due, so that making it is not late."""
        target = self._target
        async with asyncio.TaskGroup() as group:
            for request in workload.requests:
                content = body(request, target.form, target.model, plain=target.plain)
                await asyncio.sleep(max(0.0, request.at_s - self._now_s()))
                group.create_task(self._one(request, content))

    async def _one(self, request: Request, content: bytes) -> None:
        async with self._room:
            late_s = max(0.0, self._now_s() - request.at_s)
            fate = await self._ask(request, content, late_s)
        self.fates.append(fate)
        self._on_end(fate)

    async def _ask(self, request: Request, content: bytes, late_s: float) -> Fate:
        status, replica, why, answer = 0, "", "", Answer()
        headers = {"content-type": "application/json", **self._target.headers}
        url = self._target.url + self._target.form.path
        try:
            async with self._session.post(url, data=content, headers=headers) as response:
                status = response.status
                replica = response.headers.get(REPLICA, "")
                why = response.headers.get(WHY, "")
                if status == 200:
                    async for piece in response.content.iter_any():
                        answer.feed(piece, self._now_s())
                else:
                    said = await response.content.read(MOST_REFUSAL_BYTES)
                    answer.failure = refusal(status, said)
        except TimeoutError:
            answer.failure = "no end within the time limit"
        except (aiohttp.ClientError, OSError) as error:
            answer.failure = answer.failure or type(error).__name__
        if not answer.whole and not answer.failure:
            answer.failure = "the stream has no end"
        return self._fate(request, answer, status, replica, why, late_s)

    def _fate(
        self, request: Request, answer: Answer, status: int, replica: str, why: str, late_s: float
    ) -> Fate:
        refused = status in REFUSED
        self.tells_hits |= answer.cached_tokens is not None
        outcome = Outcome(
            arrived_s=request.at_s,
            router=0,
            replica=None if refused else self.replicas.setdefault(replica, len(self.replicas)),
            prompt_tokens=_first(answer.prompt_tokens, request.prompt_tokens),
            cached_tokens=_first(answer.cached_tokens, 0),
            output_tokens=_first(answer.output_tokens, answer.pieces),
            first_token_s=answer.first_s,
            finished_s=answer.last_s if answer.whole else None,
            why=why,
            tries=0 if refused else 1,
        )
        return Fate(outcome, status, answer.failure, late_s)


def _first(counted: int | None, otherwise: int) -> int:
    return otherwise if counted is None else counted
