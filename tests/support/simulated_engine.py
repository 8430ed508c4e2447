"""An engine whose speed is known: vLLM's scheduling in small, in virtual time, told as `Reading`s.

    a step takes  base_s + prompt_token_s · prompt tokens + sequence_s · sequences

Each step spends a budget of tokens: first one for every sequence that has its prompt done, then
what is left on prompts, oldest first, in pieces. With several API processes ("senders") requests
belong to them in turn; a step is told by the owner of the first request that got a token, and what
others' requests got is known to their senders, who tell with their next step or heartbeat.
"""

from collections import deque
from dataclasses import dataclass, field

from ullage_sidecar.core.reading import Hello, Reading

BLOCK = 16
HEARTBEAT_S = 1.0


@dataclass(slots=True, eq=False)
class Request:
    at_s: float
    prompt: int
    answer: int
    cached: int = 0
    """Of `prompt`, tokens found in the prefix cache."""
    owner: int = 0
    left: int = 0
    made: int = 0


@dataclass(slots=True)
class SimulatedEngine:
    base_s: float = 0.020
    prompt_token_s: float = 0.0001
    sequence_s: float = 0.0
    budget: int = 2048
    max_seqs: int = 32
    blocks: int = 20_000
    """KV blocks, of `BLOCK` tokens."""
    senders: int = 1
    jitter: float = 0.0
    """Steps take between 1 - jitter and 1 + jitter of their time."""
    now_s: float = 1000.0
    steps: int = 0
    _totals: list[list[int]] = field(default_factory=list)
    """Of each sender: prompt tokens, generated, hits."""
    _last: dict[int, Reading] = field(default_factory=dict)
    _beat_s: float = 0.0

    def __post_init__(self):
        self._totals = [[0, 0, 0] for _ in range(self.senders)]

    def hellos(self):
        return [
            Hello(sender, "vllm", "boot-1", 1, started_s=1.0, total_blocks=self.blocks)
            for sender in range(self.senders)
        ]

    def run(self, requests, rng, until_s=float("inf")):
        """Serve requests (by `at_s`, absolute) and yield every reading, heartbeats included."""
        coming, running = deque(sorted(requests, key=lambda r: r.at_s)), []
        waiting = deque()
        for turn, request in enumerate(coming):
            request.owner, request.left = turn % self.senders, request.prompt - request.cached
        while (coming or waiting or running) and self.now_s < until_s:
            if not (waiting or running):
                self.now_s = max(self.now_s, coming[0].at_s)
            while coming and coming[0].at_s <= self.now_s:
                waiting.append(coming.popleft())
            if waiting or running:
                yield self._step(running, waiting, rng)
            yield from self._heartbeats()

    def _step(self, running, waiting, rng):
        budget, computed, hits, given = self.budget, 0, 0, []
        for request in running:
            if request.left == 0:
                given.append(request)
                budget -= 1
        for request in running:
            if request.left and budget > 0:
                budget, computed = self._prefill(request, budget, computed, given)
        while waiting and len(running) < self.max_seqs and budget > 0:
            request = waiting.popleft()
            running.append(request)
            hits += request.cached
            budget, computed = self._prefill(request, budget, computed, given)
        took_s = self.base_s + self.prompt_token_s * computed + self.sequence_s * len(given)
        self.now_s += took_s * rng.uniform(1.0 - self.jitter, 1.0 + self.jitter)
        given.sort(key=running.index)
        teller = given[0].owner if given else 0
        for request in given:
            self._totals[request.owner][0] += request.prompt * (request.made == 0)
            self._totals[request.owner][1] += 1
            request.made += 1
        self._totals[teller][2] += hits
        running[:] = [r for r in running if r.made < r.answer]
        before = self._last.get(teller)
        self.steps += 1
        seq = before.seq + 1 if before else 1
        held = sum(-(-(r.prompt - r.left + r.made) // BLOCK) for r in running)
        kv_usage = held / (self.blocks - 1)
        return self._told(teller, seq, self.now_s, len(running), len(waiting), kv_usage)

    def _prefill(self, request, budget, computed, given):
        piece = min(budget, request.left)
        request.left -= piece
        if request.left == 0:
            given.append(request)
        return budget - max(1, piece), computed + piece

    def _told(self, teller, seq, at_s, *gauges):
        prompt, generated, hits = self._totals[teller]
        reading = Reading(teller, seq, at_s, *gauges, prompt, generated, 0, 2 * hits, hits)
        self._last[teller] = reading
        return reading

    def _heartbeats(self):
        if self.now_s - self._beat_s >= HEARTBEAT_S:
            self._beat_s = self.now_s
            for teller, last in list(self._last.items()):
                gauges = (last.running, last.waiting, last.kv_usage)
                yield self._told(teller, last.seq, last.at_s, *gauges)
