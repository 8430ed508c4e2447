"""An executor for vLLM that plays a model: no weights, no kernels, a token per sequence and step.

    vllm serve DIR --distributed-executor-backend played.Played

API server, engine core, scheduler, KV-block manager and stat loggers above it are vLLM's own. So a
version whose compiled part does not load beside the torch that is there still says all it has to.
Runs inside vLLM, of any version from 0.11.1 on. For loads that fit: who was preempted would be
given tokens too early.
"""

import dataclasses
import time
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput

STEP_S = 0.005
MEMORY_BYTES = 1 << 30
TOKEN = 65
"""What every sequence gets: a letter, in a byte-level vocabulary."""
FIELDS = {field.name: field for field in dataclasses.fields(ModelRunnerOutput)}


class Played(Executor):  # type: ignore[misc]  # vllm is untyped
    """One worker that is not there."""

    def _init_executor(self) -> None:
        self._left: dict[str, int] = {}
        """By request, how much of its prompt has yet to be computed."""

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
        return _done([None]) if non_block else [None]

    def execute_model(self, scheduled: Any, non_block: bool = False) -> Any:
        """Compute a step: whoever has seen its whole prompt gets a token."""
        for gone in scheduled.finished_req_ids:
            self._left.pop(gone, None)
        for new in scheduled.scheduled_new_reqs:
            self._left[new.req_id] = len(new.prompt_token_ids or ()) - new.num_computed_tokens
        if scheduled.total_num_scheduled_tokens:
            time.sleep(STEP_S)
        sampled = []
        for request, tokens in scheduled.num_scheduled_tokens.items():
            self._left[request] -= tokens
            sampled.append([TOKEN] if self._left[request] <= 0 else [])
        output = _output(list(scheduled.num_scheduled_tokens), sampled)
        return _done(output) if non_block else output

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def check_health(self) -> None: ...

    def shutdown(self) -> None: ...


def _output(requests: list[str], sampled: list[list[int]]) -> Any:
    """vLLM's own type; what else it wants is empty."""
    places = {request: place for place, request in enumerate(requests)}
    wants_arrays = "ndarray" in str(FIELDS["sampled_token_ids"].type)
    known = {
        "req_ids": requests,
        "req_id_to_index": places,
        "sampled_token_ids": [np.array(ids) for ids in sampled] if wants_arrays else sampled,
        "prompt_logprobs_dict": {},
        "pooler_output": [],
        "logprobs": None,
    }
    return ModelRunnerOutput(**{name: value for name, value in known.items() if name in FIELDS})


def _done(value: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(value)
    return future
