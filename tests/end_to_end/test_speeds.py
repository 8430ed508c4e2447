"""Speeds, learned from a real vLLM server and held against what a client of it measures.

Two servers, one after the other. The slower one is slow in earnest, not put to sleep: its model has
twice the layers, so each of its steps computes twice as much. What vLLM itself needs for a step
stays, so it is told at less than twice; by how much, the client says.

Both look at the same seconds, so a busy machine slows what either sees. But one whose own speed
changes between the servers hides the difference of the models: then the last test says so.
"""

import asyncio
import json
import random
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp
import pytest

from demo.processes import running
from ullage_sidecar.core.learned import SAMPLES
from ullage_sidecar.core.speeds import DECODE_S
from vllm_cpu.serve import CpuServer, Replica

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

MAKE_MODEL = Path(__file__).parents[2] / "deploy/vllm_cpu/make_tiny_model.py"
LAYERS = 6
PIECE_TOKENS = 512
"""vLLM's budget of a step: long prompts are computed in pieces."""
LONG_TOKENS = 1200
STREAMS = 4
WINDOW_S = SAMPLES * DECODE_S
SPEEDS = ("step_s", "decode_tokens_per_s", "prefill_tokens_per_s")


@dataclass(frozen=True, slots=True)
class Streamed:
    """One streamed answer as the client saw it."""

    ttft_s: float
    tokens: int
    rest_s: float
    """From the first token to the last."""
    ended_s: float


@dataclass(frozen=True, slots=True)
class Client:
    http: aiohttp.ClientSession
    server: str
    sidecar: str
    rng: random.Random

    async def stream(self, prompt_tokens: int, answer_tokens: int) -> Streamed:
        """Ask with a prompt that no cache knows."""
        body = {
            "model": "tiny",
            "prompt": [self.rng.randrange(300, 2000) for _ in range(prompt_tokens)],
            "max_tokens": answer_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        began_s, first_s, last_s, made = perf_counter(), 0.0, 0.0, 0
        async with self.http.post(f"{self.server}/v1/completions", json=body) as answer:
            assert answer.status == 200
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line.removeprefix(b"data: "))
                if event["choices"]:
                    last_s = perf_counter()
                    first_s = first_s or last_s
                else:
                    made = event["usage"]["completion_tokens"]
        return Streamed(first_s - began_s, made, last_s - first_s, last_s)

    async def speeds(self) -> dict[str, float | None]:
        async with self.http.get(f"{self.sidecar}/v1/snapshots") as answer:
            replica: dict[str, Any] = (await answer.json())["replicas"][0]
        return {name: replica[name] for name in SPEEDS}

    async def mixed_load(self, *counts: int) -> list[dict[str, float | None]]:
        """Streams all the time, and long prompts beside them; what is told after so many."""
        busy = True

        async def stream() -> None:
            while busy:
                await self.stream(self.rng.randint(5, 60), self.rng.randint(30, 120))

        streams = [asyncio.create_task(stream()) for _ in range(STREAMS)]
        told = []
        for count in counts:
            for _ in range(count):
                await self.stream(self.rng.randint(LONG_TOKENS // 2, LONG_TOKENS), 4)
                await asyncio.sleep(0.3)
            told.append(await self.speeds())
        busy = False
        await asyncio.gather(*streams)
        return told


@dataclass(frozen=True, slots=True)
class Measured:
    """What the sidecar told of one server, and what a client saw of it."""

    unused: dict[str, float | None]
    mixed: tuple[dict[str, float], dict[str, float]]
    """Told under a mixed load, at two times."""
    decoding: dict[str, float]
    """Told after some seconds of `STREAMS` streams."""
    streams: tuple[Streamed, ...]
    prompts: tuple[Streamed, ...]
    """Long prompts, each alone."""

    @property
    def token_s(self) -> float:
        """Seconds of each further token, by the client."""
        return statistics.median(each.rest_s / (each.tokens - 1) for each in self.streams)

    @property
    def ttft_s(self) -> float:
        return statistics.median(each.ttft_s for each in self.prompts)

    @property
    def priced_s(self) -> float:
        """What the told speeds say of a long prompt alone."""
        told = self.mixed[1]
        return LONG_TOKENS / told["prefill_tokens_per_s"] + told["step_s"]


async def measured(server: str, sidecar: str) -> Measured:
    timeout = aiohttp.ClientTimeout(total=120.0)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        client = Client(http, server, sidecar, random.Random(3))
        unused = await client.speeds()
        mixed = await client.mixed_load(20, 5)
        prompts = [await client.stream(LONG_TOKENS, 1) for _ in range(5)]
        streams: list[Streamed] = []
        from_s = perf_counter()
        while perf_counter() < from_s + 2 * WINDOW_S:
            streams += await asyncio.gather(*(client.stream(8, 100) for _ in range(STREAMS)))
        streams = [each for each in streams if each.ended_s > perf_counter() - WINDOW_S]
        return Measured(unused, tuple(mixed), await client.speeds(), tuple(streams), tuple(prompts))  # type: ignore[arg-type]  # unknown ones fail the tests


@pytest.fixture(scope="module")
def measure(
    vllm_venv: Path, free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Measured]:
    """Start a server with a model of so many layers, measure it, stop it."""

    def measure(layers: int) -> Measured:
        folder = tmp_path_factory.mktemp(f"layers-{layers}")
        model, readings, port = folder / "model", folder / "readings.sock", free_port()
        subprocess.run(
            [vllm_venv / "bin/python", MAKE_MODEL, model, "--layers", str(layers)], check=True
        )
        replica = Replica(
            vllm_venv,
            model,
            port=free_port(),
            flags=("--max-num-batched-tokens", str(PIECE_TOKENS)),
            environment={"ULLAGE_SOCKET": str(readings)},
        )
        sidecar = f"127.0.0.1:{port}"
        flags = ["--socket", str(readings), "--listen", sidecar, "--engine", f"vllm={replica.url}"]
        ready, log = f"http://{sidecar}/healthz", folder / "sidecar.log"
        with (
            CpuServer(replica, folder / "vllm.log"),
            running("ullage_sidecar", flags, ready, log),
        ):
            return asyncio.run(measured(replica.url, f"http://{sidecar}"))

    return measure


@pytest.fixture(scope="module")
def fast(measure: Callable[[int], Measured]) -> Measured:
    return measure(LAYERS)


@pytest.fixture(scope="module")
def slow(measure: Callable[[int], Measured]) -> Measured:
    return measure(2 * LAYERS)


def test_speeds_are_unknown_before_the_first_request(fast: Measured) -> None:
    assert fast.unused == dict.fromkeys(SPEEDS)


@pytest.mark.parametrize("speed", SPEEDS)
def test_under_a_mixed_load_they_converge(fast: Measured, speed: str) -> None:
    first, second = (told[speed] for told in fast.mixed)
    print(f"{speed}: {first}, then {second}")
    assert 1 / 1.5 < second / first < 1.5


def test_a_token_takes_what_the_client_measures(fast: Measured) -> None:
    together = STREAMS / fast.token_s
    told = fast.decoding
    print(f"step_s {told['step_s']}, client {fast.token_s:.3g}")
    print(f"decode_tokens_per_s {told['decode_tokens_per_s']}, client {together:.4g}")
    assert 1 / 1.25 < told["step_s"] / fast.token_s < 1.25
    assert 1 / 1.25 < told["decode_tokens_per_s"] / together < 1.25


def test_a_long_prompt_alone_takes_what_the_speeds_say(fast: Measured) -> None:
    print(f"{LONG_TOKENS} tokens: priced at {fast.priced_s:.3g} s, client {fast.ttft_s:.3g} s")
    assert 1 / 1.6 < fast.priced_s / fast.ttft_s < 1.6


@pytest.mark.long
def test_a_model_of_twice_the_layers_is_told_as_slow_as_the_client_finds_it(
    fast: Measured, slow: Measured
) -> None:
    steps = slow.decoding["step_s"] / fast.decoding["step_s"]
    tokens = slow.token_s / fast.token_s
    prices, waits = slow.priced_s / fast.priced_s, slow.ttft_s / fast.ttft_s
    print(f"step_s {steps:.2f} times as long, client {tokens:.2f}")
    print(f"long prompt {prices:.2f} times as long, client {waits:.2f}")
    assert tokens > 1.3, "the machine's own speed changed meanwhile: measure again"
    assert waits > 1.3, "the machine's own speed changed meanwhile: measure again"
    assert 1 / 1.3 < steps / tokens < 1.3
    assert 1 / 1.5 < prices / waits < 1.5
