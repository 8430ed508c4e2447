"""An engine whose `StepModel` is known: vLLM's scheduling in small, told as a plugin tells it.

A step gives each sequence that has its prompt done one token, and spends what is left of the budget
on prompts, in pieces. Prompts are looked up when they are begun, and counted when they are done.
With `ahead` the next step is planned before one is told of, as asynchronous scheduling does.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from ullage_sidecar.channel import encode_hello, encode_step
from ullage_sidecar.core.reading import Hello, Reading
from ullage_tune.gpu import StepModel

BLOCK = 16
TRUTH = StepModel(0.018, 1.1e-4, 5e-5, 5e-8)


@dataclass(slots=True, eq=False)
class Asked:
    at_s: float
    prompt: int
    answer: int
    cached: int = 0
    computed: int = 0
    """Tokens in the KV cache."""
    planned: int = 0
    """Tokens of the answer that were planned."""
    made: int = 0


Plan = list[tuple[Asked, int, bool]]
"""Who takes part, with how many tokens, and whether there is one more then."""


@dataclass(slots=True)
class RecordedEngine:
    model: StepModel = TRUTH
    blocks: int = 30_001
    budget: int = 2048
    most: int = 64
    ahead: bool = False
    caches: bool = True
    sender: int = 1
    now_s: float = 1000.0
    seq: int = 0
    looked_up: int = 0
    found: int = 0
    prompts: int = 0
    generated: int = 0
    running: list[Asked] = field(default_factory=list)
    waiting: deque[Asked] = field(default_factory=deque)
    true: list[tuple[int, int]] = field(default_factory=list)
    """Tokens and sequences of each step."""

    def hello(self, **changes: Any) -> Hello:
        told = Hello(
            self.sender,
            "vllm",
            "boot-1",
            1,
            1.0,
            models=("llama",),
            total_blocks=self.blocks,
            block_size=BLOCK,
            max_num_seqs=self.most,
            max_num_batched_tokens=self.budget,
            max_model_len=32_768,
            vllm_version="0.32.0",
        )
        return replace(told, **changes)

    def run(self, requests: Iterable[Asked]) -> Iterator[Reading]:
        """Serve them all."""
        coming = deque(sorted(requests, key=lambda asked: asked.at_s))
        while coming or self.waiting or self.running:
            if not (self.waiting or self.running):
                self.now_s = max(self.now_s, coming[0].at_s)
            self._arrive(coming)
            plan = self._plan()
            while plan:
                self.now_s += self._seconds(plan)
                self._arrive(coming)
                following = self._plan() if self.ahead else None
                self._done(plan)
                yield self._told()
                plan = self._plan() if following is None else following

    def _arrive(self, coming: deque[Asked]) -> None:
        while coming and coming[0].at_s <= self.now_s:
            self.waiting.append(coming.popleft())

    def _plan(self) -> Plan:
        plan: Plan = []
        budget = self.budget
        for asked in self.running:
            left = max(asked.prompt - asked.computed, asked.planned < asked.answer)
            if budget and left:
                budget -= self._add(plan, asked, min(budget, left))
        while self.waiting and budget and len(self.running) < self.most:
            asked = self.waiting.popleft()
            self.running.append(asked)
            asked.computed = asked.cached if self.caches else 0
            self.looked_up += asked.prompt if self.caches else 0
            self.found += asked.computed
            budget -= self._add(plan, asked, min(budget, asked.prompt - asked.computed))
        return plan

    @staticmethod
    def _add(plan: Plan, asked: Asked, tokens: int) -> int:
        asked.computed += tokens
        samples = asked.computed >= asked.prompt
        asked.planned += samples
        plan.append((asked, tokens, samples))
        return tokens

    def _seconds(self, plan: Plan) -> float:
        tokens = sum(tokens for _, tokens, _ in plan)
        self.true.append((tokens, len(plan)))
        return self.model.step_s(tokens, len(plan), sum(asked.computed for asked, *_ in plan))

    def _done(self, plan: Plan) -> None:
        for asked, _, samples in plan:
            if samples:
                self.prompts += asked.prompt * (asked.made == 0)
                asked.made += 1
                self.generated += 1
        self.running = [asked for asked in self.running if asked.made < asked.answer]

    def _told(self) -> Reading:
        self.seq += 1
        held = sum(-(-asked.computed // BLOCK) for asked in self.running)
        return Reading(
            self.sender, self.seq, self.now_s, len(self.running), len(self.waiting),
            held / (self.blocks - 1), self.prompts, self.generated, 0, self.looked_up, self.found,
        )  # fmt: skip


def traffic(rng: Random, count: int, rate: float, cached: float = 0.0) -> list[Asked]:
    """Requests of many lengths; a prompt finds up to the share `cached` of itself."""
    at_s, asked = 1000.0, []
    for _ in range(count):
        at_s += rng.expovariate(rate)
        prompt = int(rng.lognormvariate(6.0, 1.0)) + 10
        found = int(rng.random() * cached * prompt) // BLOCK * BLOCK
        asked.append(Asked(at_s, prompt, int(rng.lognormvariate(4.0, 0.8)) + 2, found))
    return asked


def stream(hello: Hello, readings: Iterable[Reading]) -> bytes:
    """As a sidecar would hand it on."""
    return encode_hello(hello) + b"".join(
        encode_step(r.sender, r.seq, r.at_s, [float("nan") if v is None else v for v in r[3:]])
        for r in readings
    )
