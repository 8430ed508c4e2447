"""Live twins: whole vLLM servers that only lack a GPU, several on one machine.

What each is made of says `ullage_tune.live.executor`. Here they are sized, started, asked how they
keep up, made to forget their KV cache, and stopped.

Ports are in a row from `port_base`. A sidecar may stand beside them: each twin's plugin speaks to
`readings.sock` in the folder, under the name `twin0`, `twin1`, …
"""

import json
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from ullage_tune.gpu import Engine
from ullage_tune.live.environment import REPORT, STEP, told
from vllm_cpu.serve import CpuServer, Replica, ServerError, running_members

EXECUTOR: Final = "ullage_tune.live.executor.TwinExecutor"
STREAM_TOKENS: Final = 8
"""Tokens in one event of a stream, behind the first: each event costs the server's CPU as much as
a step does, and this machine has few cores. First tokens come at once all the same."""
READY_WITHIN_S: Final = 600.0
"""Several start at once, and share few cores."""
FORGET_WITHIN_S: Final = 30.0


def flags(engine: Engine) -> tuple[str, ...]:
    """For `vllm serve`, beyond what `Replica` says. Raises `ValueError` for what does not fit."""
    room = (engine.blocks - 1) * engine.block_size
    if engine.max_model_len > room:
        raise ValueError(f"max_model_len={engine.max_model_len} must fit the KV cache: {room}")
    return (
        *("--distributed-executor-backend", EXECUTOR, "--no-async-scheduling"),
        *("--max-model-len", str(engine.max_model_len)),
        *("--hf-overrides", json.dumps({"max_position_embeddings": engine.max_model_len})),
        *("--max-num-batched-tokens", str(engine.max_num_batched_tokens)),
        *("--stream-interval", str(STREAM_TOKENS)),
        *("--enable-prompt-tokens-details", "--disable-uvicorn-access-log"),
    )


class Pace(NamedTuple):
    """How a twin keeps up; the fields of `GpuClock`."""

    steps: int
    busy_s: float
    overruns: int
    lost_s: float

    def since(self, before: "Pace") -> "Pace":
        """What was added."""
        return Pace(
            self.steps - before.steps,
            self.busy_s - before.busy_s,
            self.overruns - before.overruns,
            self.lost_s - before.lost_s,
        )


class Twin:
    """One of them."""

    def __init__(self, name: str, replica: Replica, folder: Path) -> None:
        self.name = name
        self.url = replica.url
        self.server = CpuServer(replica, folder / f"{name}.log", ready_within_s=READY_WITHIN_S)
        self._report = folder / f"{name}.json"

    def pace(self) -> Pace:
        """How it keeps up, as of a second ago at most. Raises `ServerError` before it is ready."""
        try:
            return Pace(**json.loads(self._report.read_text()))
        except (OSError, ValueError) as error:
            raise ServerError(f"{self.name} does not say how it keeps up: {error}") from error

    def memory_mb(self) -> float:
        """What its processes hold, shared pages by halves, thirds, …"""
        kb = 0
        for pid in running_members(self.server.pid):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    kb += int(line.split()[1])
        return kb / 1024

    def pids(self) -> list[int]:
        """Of all its processes."""
        return running_members(self.server.pid)

    def forget(self) -> None:
        """Empty its KV cache. Raises `ServerError` while requests run, for half a minute."""
        until_s = time.monotonic() + FORGET_WITHIN_S
        request = urllib.request.Request(f"{self.url}/reset_prefix_cache", method="POST")
        while True:
            with urllib.request.urlopen(request, timeout=FORGET_WITHIN_S) as answer:
                if json.loads(answer.read())["success"]:
                    return
            if time.monotonic() > until_s:
                raise ServerError(f"{self.name} has requests still, and keeps its KV cache")
            time.sleep(0.2)


class Fleet:
    """All of them, as a context: started together, ready when it is entered, stopped behind it."""

    def __init__(
        self,
        count: int,
        engine: Engine,
        *,
        venv: Path,
        model: Path,
        port_base: int,
        folder: Path,
        on_ready: Callable[[Twin, float], None] = lambda _twin, _took_s: None,
    ) -> None:
        self.socket = folder / "readings.sock"
        self._on_ready = on_ready
        self._stack = ExitStack()
        self.twins = [
            Twin(
                f"twin{number}",
                Replica(
                    venv,
                    model,
                    port_base + number,
                    kv_blocks=engine.blocks,
                    block_size=engine.block_size,
                    max_seqs=engine.max_num_seqs,
                    flags=flags(engine),
                    environment={
                        STEP: told(engine.steps),
                        REPORT: str(folder / f"twin{number}.json"),
                        "ULLAGE_SOCKET": str(self.socket),
                        "ULLAGE_ENGINE": f"twin{number}",
                        "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
                        "VLLM_LOGGING_LEVEL": "WARNING",
                    },
                ),
                folder,
            )
            for number in range(count)
        ]

    def __enter__(self) -> Self:
        try:
            for twin in self.twins:
                self._stack.callback(twin.server.stop)
                twin.server.start()
            for twin in self.twins:
                self._on_ready(twin, twin.server.wait_ready())
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
