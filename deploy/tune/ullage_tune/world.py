"""A cluster in virtual time: engines, routers, requests, and what happens to them.

    arrival ► a router's policy ► an engine ► steps ► first token, last token
                                   ▲ what servers say, every scrape_s, or at every step

Rules
* Everything happens at an instant of virtual time; of two things at one instant the one that was
  planned first comes first. The same workload, scenario and seed give the same run.
* Requests are dealt to the routers at random, as by a balancer of connections before them.
* A request whose replica is lost before its first token goes to another one, once, as a router
  would send it; behind its first token it has failed.
* A lost replica is out of `present` as soon as any request has failed on it, or after `noticed_s`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from time import perf_counter
from typing import Any, Final

from ullage_tune.blocks import Prepared, prepared
from ullage_tune.gpu import SPIKE, Engine
from ullage_tune.outcome import Outcome, Run
from ullage_tune.policy import Gauges, Hardware, MakePolicy, OnStep, Policy
from ullage_tune.twin import Twin
from ullage_tune.workload import Request, Workload

LEAD_S: Final = 10.0
"""The cluster starts so long before the workload, and is idle until then."""
LONG_AGO_S: Final = -3600.0
ASK_AGAIN_S: Final = 0.02
_GIVE_UP_S: Final = 3600.0
"""So long after the last arrival the run ends, whatever has not."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A replica's server dies."""

    at_s: float
    replica: int


@dataclass(frozen=True, slots=True)
class Joining:
    """One more replica begins to serve, with an empty cache."""

    at_s: float
    engine: Engine
    cold_s: float = 0.0
    """Seconds that its first steps take together beyond what they should: compiling, capturing,
    allocating. They are spread over its first `COLD_STEPS` steps."""


COLD_STEPS: Final = 20


@dataclass(frozen=True, slots=True)
class Scenario:
    """The cluster, and what happens to it."""

    engines: tuple[Engine, ...] = (SPIKE,) * 6
    routers: int = 1
    scrape_s: float = 0.05
    """Who goes by `/metrics` sees them every so many seconds: as often as llm-d's picker does."""
    noticed_s: float = 2.0
    events: tuple[Loss | Joining, ...] = ()

    def shared_by(self, routers: int) -> "Scenario":
        """The same, with so many routers."""
        return replace(self, routers=routers)


@dataclass(slots=True)
class _Replica:
    twin: Twin
    began_s: float
    cold_s: float = 0.0
    steps: int = 0
    busy_s: float = 0.0
    stepping: bool = False
    lost: bool = False
    hidden: bool = False
    tellers: list[OnStep] = field(default_factory=list)


@dataclass(slots=True)
class _Fate:
    """A request on its way."""

    asked: Prepared
    router: int
    replica: int | None = None
    tries: int = 0
    cached_tokens: int = 0
    first_s: float | None = None
    finished_s: float | None = None


class World:
    """One run."""

    def __init__(
        self, workload: Workload, scenario: Scenario, make: MakePolicy, name: str, seed: int
    ) -> None:
        self._workload = workload
        self._scenario = scenario
        self._name = name
        self._seed = seed
        self._rng = Random(f"world {seed}")
        self._now_s = -LEAD_S
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._replicas = [_Replica(Twin(e), LONG_AGO_S) for e in scenario.engines]
        self._joiners: list[Callable[[int], None]] = []
        self.common: dict[str, Any] = {}
        self._fates: list[_Fate] = []
        self._unfinished = len(workload.requests)
        self._requests = prepared(workload, scenario.engines[0].block_size)
        self._deciding: Prepared | None = None
        self._policies: list[Policy] = [
            make(self, Random(f"router {number} {seed}")) for number in range(scenario.routers)
        ]

    def run(self) -> Run:
        """From the first moment to the last answer."""
        began_s = perf_counter()
        for asked in self._requests:
            self._at(asked.request.at_s, partial(self._arrive, asked))
        for event in self._scenario.events:
            self._at(event.at_s, partial(self._happen, event))
        self._at(-LEAD_S, self._scrape)
        end_s = self._workload.duration_s + _GIVE_UP_S
        while self._agenda and self._unfinished and self._now_s < end_s:
            self._now_s, _, call = heappop(self._agenda)
            call()
        return Run(
            self._workload.name,
            self._name,
            self._seed,
            tuple(self._outcome(fate) for fate in self._fates),
            tuple(replica.busy_s for replica in self._replicas),
            self._now_s,
            perf_counter() - began_s,
        )

    def _at(self, at_s: float, call: Callable[[], None]) -> None:
        heappush(self._agenda, (at_s, next(self._order), call))

    # What policies may ask

    def present(self) -> Sequence[int]:
        """Those that may be chosen."""
        return [number for number, replica in enumerate(self._replicas) if not replica.hidden]

    def hardware(self, replica: int) -> Hardware:
        """What it was started with."""
        engine = self._replicas[replica].twin.engine
        return Hardware(engine.max_num_seqs, engine.blocks, engine.block_size)

    def now_s(self) -> float:
        """Now."""
        return self._now_s

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Have something called."""
        self._at(self._now_s + delay_s, call)

    def on_join(self, call: Callable[[int], None]) -> None:
        """Have those that join told."""
        self._joiners.append(call)

    def answers(self, replica: int) -> bool:
        """Is it alive?"""
        return not self._replicas[replica].lost

    def began_s(self, replica: int) -> float:
        """When it began to serve."""
        return self._replicas[replica].began_s

    def hear(self, replica: int, call: OnStep) -> None:
        """Have its steps told."""
        self._replicas[replica].tellers.append(call)

    def cached_tokens(self, replica: int, request: Request) -> int:
        """What its cache holds of the prompt."""
        if self._deciding is None or self._deciding.request is not request:
            raise ValueError("cached_tokens: wanted the request that is being decided")
        return self._replicas[replica].twin.cached_tokens(self._deciding)

    def pending_tokens(self, replica: int) -> int:
        """Its true backlog."""
        return self._replicas[replica].twin.pending_tokens()

    def held_tokens(self, replica: int) -> int:
        """What its requests will hold."""
        return self._replicas[replica].twin.held_tokens()

    # What happens

    def _arrive(self, asked: Prepared) -> None:
        fate = _Fate(asked, self._rng.randrange(len(self._policies)))
        self._fates.append(fate)
        self._send(fate)

    def _send(self, fate: _Fate) -> None:
        policy, request = self._policies[fate.router], fate.asked.request
        self._deciding = fate.asked
        number = policy.choose(request, self._now_s, fate.replica)
        if number is None:
            if self._now_s - request.at_s < policy.patience_s:
                self.later(ASK_AGAIN_S, lambda: self._send(fate))
            else:
                self._unfinished -= 1
            return
        fate.replica = number
        fate.tries += 1
        policy.sent(request, number, self._now_s)
        replica = self._replicas[number]
        if replica.lost:
            self._fail(fate)
            return
        replica.twin.add(fate.asked, self._now_s)
        if not replica.stepping:
            self._begin(number)

    def _fail(self, fate: _Fate) -> None:
        assert fate.replica is not None
        self._replicas[fate.replica].hidden = True
        self._policies[fate.router].failed(fate.asked.request, fate.replica, self._now_s)
        if fate.tries < 2 and fate.first_s is None:
            self._send(fate)
        else:
            self._unfinished -= 1

    def _begin(self, number: int) -> None:
        replica = self._replicas[number]
        replica.stepping = True
        step_s = replica.twin.begin()
        if replica.steps < COLD_STEPS:
            step_s += replica.cold_s / COLD_STEPS
        replica.steps += 1
        replica.busy_s += step_s
        self.later(step_s, lambda: self._end(number))

    def _end(self, number: int) -> None:
        replica = self._replicas[number]
        if replica.lost:
            return
        now_s, step = self._now_s, replica.twin.end()
        for tell in replica.tellers:
            tell(step.stats, step.iteration)
        for each in step.first:
            fate = self._fates[each]
            fate.first_s = now_s
            fate.cached_tokens = replica.twin.cached.pop(each, 0)
            self._policies[fate.router].first_token(fate.asked.request, number, now_s)
        for each in step.finished:
            fate = self._fates[each]
            fate.finished_s = now_s
            self._unfinished -= 1
            self._policies[fate.router].finished(fate.asked.request, number, now_s)
        if replica.twin.has_work:
            self._begin(number)
        else:
            replica.stepping = False

    def _scrape(self) -> None:
        for number, replica in enumerate(self._replicas):
            if not replica.lost:
                gauges = Gauges(*replica.twin.counts, replica.twin.kv_usage)
                for policy in self._policies:
                    policy.scraped(number, gauges, self._now_s)
        self.later(self._scenario.scrape_s, self._scrape)

    def _happen(self, event: Loss | Joining) -> None:
        if isinstance(event, Joining):
            self._replicas.append(_Replica(Twin(event.engine), self._now_s, event.cold_s))
            for call in self._joiners:
                call(len(self._replicas) - 1)
            return
        replica = self._replicas[event.replica]
        replica.lost = True
        self.later(self._scenario.noticed_s, lambda: self._hide(replica))
        for number in replica.twin.drop():
            self._fail(self._fates[number])

    @staticmethod
    def _hide(replica: _Replica) -> None:
        replica.hidden = True

    def _outcome(self, fate: _Fate) -> Outcome:
        asked = fate.asked
        return Outcome(
            asked.request.at_s,
            fate.router,
            fate.replica,
            asked.prompt_tokens,
            fate.cached_tokens,
            asked.request.output_tokens,
            fate.first_s,
            fate.finished_s,
            tries=fate.tries,
        )
