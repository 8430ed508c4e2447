"""A vLLM server in small and in real time: it streams tokens, and its plugin tells of each step.

    a step takes  BASE_S + PROMPT_TOKEN_S · prompt tokens

Prompts are computed in the step after they came; what a prompt begins with is cached from then on.
"""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

from aiohttp import web

from ullage_sidecar.channel import Sender, encode_hello, encode_step
from ullage_sidecar.core.reading import Hello

BASE_S = 0.01
PROMPT_TOKEN_S = 0.00005
BYTES_PER_TOKEN = 4
HEAD_BYTES = 2048
"""So much of a prompt is cached as a whole, or not at all."""
MOST_SEQS = 8
BLOCKS = 1001
BEAT_S = 0.2
TOKENS = 6
"""Of an answer, unless the request says how many."""


@dataclass(slots=True, eq=False)
class Request:
    tokens: int
    cached: int
    made: asyncio.Queue[None] = field(default_factory=asyncio.Queue)
    """One for each token of its answer."""
    left: int = TOKENS


class LiveEngine:
    """One server with one engine."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.pretends: tuple[int, int, float] | None = None
        """Running, waiting, KV use as it says; None: as it is."""
        self.url = ""
        self.boot_id = f"boot-{name}"
        self.started_s = time.monotonic() - 3600.0
        self._number = number
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._known: set[str] = set()
        self._seq = 0
        self._at_s = 0.0
        self._totals = [0, 0, 0, 0, 0]
        """Prompt tokens, generated, preemptions, tokens looked up in the cache, and found."""
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._complete)
        self._runner = web.AppRunner(app, shutdown_timeout=0.0, access_log=None)

    @property
    def in_flight(self) -> int:
        """Requests that run or wait there."""
        return len(self._running) + len(self._waiting)

    async def serve(self, port: int = 0) -> None:
        """Listen on this port, or on any free one."""
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Nobody listens any more. (Its plugin may go on speaking.)"""
        await self._runner.cleanup()

    async def live(self, socket: str) -> None:
        """Make steps and tell of them, for ever."""
        sender = Sender(socket)
        hello = Hello(
            self._number, self.name, self.boot_id, 1, self.started_s,
            total_blocks=BLOCKS, block_size=16, max_num_seqs=MOST_SEQS, models=("tiny",),
        )  # fmt: skip
        said_s = 0.0
        try:
            while True:
                sender.connect()
                if self._waiting or self._running:
                    await self._step()
                else:
                    await asyncio.sleep(BASE_S)
                    if self.pretends is not None:
                        self._stepped()
                if time.monotonic() - said_s >= BEAT_S:
                    said_s = time.monotonic()
                    sender.send(encode_hello(hello))
                sender.send(self._told())
        finally:
            sender.close()

    async def _step(self) -> None:
        fresh = []
        while self._waiting and len(self._running) < MOST_SEQS:
            fresh.append(self._waiting.popleft())
            self._running.append(fresh[-1])
        computed = sum(request.tokens - request.cached for request in fresh)
        await asyncio.sleep(BASE_S + PROMPT_TOKEN_S * computed)
        self._totals[0] += sum(request.tokens for request in fresh)
        self._totals[3] += sum(request.tokens for request in fresh)
        self._totals[4] += sum(request.cached for request in fresh)
        for request in self._running:
            request.made.put_nowait(None)
            request.left -= 1
            self._totals[1] += 1
        self._running = [request for request in self._running if request.left]
        self._stepped()

    def _stepped(self) -> None:
        self._seq += 1
        self._at_s = time.monotonic()

    def _told(self) -> bytes:
        if self.pretends is None:
            tokens = sum(request.tokens for request in self._running)
            kv_usage = min(1.0, tokens / (16 * (BLOCKS - 1)))
            gauges = (len(self._running), len(self._waiting), kv_usage)
        else:
            gauges = self.pretends
        return encode_step(self._number, self._seq, self._at_s, (*gauges, *self._totals))

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny"}]})

    async def _complete(self, asked: web.Request) -> web.StreamResponse:
        wanted = await asked.json()
        prompt, tokens = wanted["prompt"], wanted.get("max_tokens", TOKENS)
        head = str(prompt[:HEAD_BYTES])  # Of a dummy it is a list of tokens.
        cached = HEAD_BYTES // BYTES_PER_TOKEN if head in self._known else 0
        self._known.add(head)
        request = Request(len(prompt) // BYTES_PER_TOKEN, cached, left=tokens)
        self._waiting.append(request)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(asked)
        for _ in range(tokens):
            await request.made.get()
            await answer.write(b'data: {"choices": [{"text": "x"}]}\n\n')
        await answer.write(b"data: [DONE]\n\n")
        return answer
