"""A vLLM executor with no GPU behind it: everything above it is vLLM's own.

    ULLAGE_TWIN_STEP='{"base_s": 0.018, …}' vllm serve MODEL --no-async-scheduling \
        --distributed-executor-backend ullage_tune.live.executor.TwinExecutor

API servers, engine core, scheduler, KV-block manager and stat loggers run as they are; a step only
takes the time that `StepModel` gives it (`gpu_clock.py`). Whoever has all its tokens computed gets
one more (`sequences.py`). `ULLAGE_TWIN_REPORT` names a file that says how the twin keeps up, one
JSON object, written at most once a second and whenever the engine goes idle.

Edges. Structured output, log probabilities, embeddings and speculative decoding are not played;
nor are several ranks. Asynchronous scheduling is refused at the start: it would schedule tokens
before they are there.

The only file of the lab's live part that imports vllm.
"""

import json
import os
import time
from concurrent.futures import Future
from typing import Any, Final

import torch
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput

from ullage_tune.live.environment import REPORT, STEP, read
from ullage_tune.live.gpu_clock import GpuClock
from ullage_tune.live.sequences import Sequences

REPORT_EVERY_S: Final = 1.0
REPORT_BYTES: Final = 256
"""A report is padded to this, so that one write replaces the one before."""

MEMORY_BYTES: Final = 1 << 30
"""Of a worker, as told to vLLM; the number of blocks is set by flag."""


class TwinExecutor(Executor):  # type: ignore[misc]  # vllm is untyped
    """One worker that only sleeps."""

    def _init_executor(self) -> None:
        if self.scheduler_config.async_scheduling:
            raise ValueError("a twin needs --no-async-scheduling")
        self._model = read(os.environ.get(STEP, ""))
        self._clock = GpuClock()
        self._sequences = Sequences()
        self._report = _Report(os.environ.get(REPORT, ""))

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        size = self.cache_config.block_size
        layer = FullAttentionSpec(
            block_size=size, num_kv_heads=1, head_size=64, dtype=torch.bfloat16
        )
        return [{"model.layers.0.self_attn": layer}]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        return [["NHD", "HND"]]

    def set_kv_cache_layout(self, *_: Any, **__: Any) -> None: ...

    def determine_available_memory(self) -> list[int]:
        return [MEMORY_BYTES]

    def initialize_from_config(self, *_: Any, **__: Any) -> None: ...

    def compile_or_warm_up_model(self) -> None: ...

    def collective_rpc(self, *_: Any, non_block: bool = False, **__: Any) -> Any:
        return _At([None], 0.0) if non_block else [None]

    def execute_model(self, scheduled: Any, non_block: bool = False) -> Any:
        """Begin a step; its output is there when the modelled GPU is done."""
        now_s = time.monotonic()
        sampled, context_tokens = self._sequences.step(scheduled)
        tokens = scheduled.total_num_scheduled_tokens
        due_s = now_s
        if tokens:
            due_s = self._clock.due_s(
                self._model.step_s(tokens, len(sampled), context_tokens), now_s
            )
        elif not self._sequences:
            self._clock.idle()
        self._report.write(self._clock, now_s, at_once=not tokens)
        output = _At(_output(sampled), due_s)
        return output if non_block else output.result()

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def check_health(self) -> None: ...

    def shutdown(self) -> None:
        self._report.write(self._clock, 0.0, at_once=True)


class _At(Future[Any]):
    """A result that is there at a set time."""

    def __init__(self, value: Any, due_s: float) -> None:
        super().__init__()
        self._due_s = due_s
        self.set_result(value)

    def result(self, timeout: float | None = None) -> Any:
        """Sleep until then. Nobody asks for it with a time limit."""
        left_s = self._due_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        return super().result(timeout)


class _Report:
    """The file that says how the twin keeps up; no path, no file."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY) if path else None
        self._next_s = 0.0

    def write(self, clock: GpuClock, now_s: float, *, at_once: bool) -> None:
        if self._file is None or (now_s < self._next_s and not at_once):
            return
        self._next_s = now_s + REPORT_EVERY_S
        os.pwrite(self._file, json.dumps(clock.told()).ljust(REPORT_BYTES).encode(), 0)


def _output(sampled: dict[str, list[int]]) -> Any:
    return ModelRunnerOutput(
        req_ids=list(sampled),
        req_id_to_index={request: place for place, request in enumerate(sampled)},
        sampled_token_ids=list(sampled.values()),
    )
