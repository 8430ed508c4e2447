"""One vLLM engine in virtual time: its own scheduler and KV manager; only the GPU is a formula.

`begin` lets vLLM schedule a step and says how long the GPU would take; `end` gives vLLM the tokens
that the GPU would have sampled, and says what has come of it. In between nothing is known.
"""

import json
import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

# Before vLLM is imported: it looks for hardware, and for models elsewhere.
os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from ullage_tune.blocks import Prepared
from ullage_tune.gpu import Engine

_SAMPLED: Final = [7]
_NOTHING: Final[list[int]] = []
_MODEL: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 1024,
    "dtype": "bfloat16",
}
"""vLLM wants to know of some model; of this one nothing is ever computed."""


class Iteration(NamedTuple):
    """What vLLM's frontend counts of a step."""

    num_prompt_tokens: int
    num_generation_tokens: int
    num_preempted_reqs: int


class Step(NamedTuple):
    """What has come of a step."""

    first: list[int]
    """Requests, by number, whose first token is there."""
    finished: list[int]
    stats: Any
    """vLLM's own `SchedulerStats`."""
    iteration: Iteration


class Twin:
    """One engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._scheduler = _scheduler(engine)
        self._prepared: dict[str, Prepared] = {}
        self._begun: Any = None
        self._waits_for_first: set[str] = set()
        self.cached: dict[int, int] = {}
        """Of each request that was scheduled: prompt tokens found in the cache."""

    def add(self, asked: Prepared, at_s: float) -> None:
        """A request arrives."""
        name = str(asked.number)
        self._prepared[name] = asked
        self._waits_for_first.add(name)
        params = SamplingParams(max_tokens=asked.request.output_tokens, ignore_eos=True)
        size = self.engine.block_size
        self._scheduler.add_request(
            Request(
                name,
                [0] * asked.prompt_tokens,
                params,
                None,
                arrival_time=at_s,
                block_hasher=lambda r: asked.names[len(r.block_hashes) : r.num_tokens // size],
            )
        )

    def drop(self) -> list[int]:
        """The engine is gone: all its requests, unfinished."""
        lost = [asked.number for asked in self._prepared.values()]
        self._scheduler.finish_requests(list(self._prepared), RequestStatus.FINISHED_ABORTED)
        self._prepared.clear()
        self._begun = None
        return lost

    @property
    def has_work(self) -> bool:
        """Does any request run or wait?"""
        return bool(self._prepared)

    def begin(self) -> float:
        """Schedule a step; the seconds that the GPU takes for it."""
        plan = self._begun = self._scheduler.schedule()
        for new in plan.scheduled_new_reqs:
            self.cached[int(new.req_id)] = new.num_computed_tokens
        requests = self._scheduler.requests
        scheduled = plan.num_scheduled_tokens
        context = sum([requests[name].num_computed_tokens for name in scheduled])
        tokens = plan.total_num_scheduled_tokens
        return self.engine.steps.step_s(tokens, len(scheduled), context)

    def end(self) -> Step:
        """The step is done."""
        plan, self._begun = self._begun, None
        requests = self._scheduler.requests
        ids = list(plan.num_scheduled_tokens)
        sampled = [
            _SAMPLED if (r := requests[name]).num_computed_tokens >= r.num_tokens else _NOTHING
            for name in ids
        ]
        places = {name: place for place, name in enumerate(ids)}
        output = ModelRunnerOutput(ids, places, sampled)
        first, finished, stats, prompt_tokens, tokens = [], [], None, 0, 0
        for told in self._scheduler.update_from_output(plan, output).values():
            stats = told.scheduler_stats or stats
            for each in told.outputs:
                name = each.request_id
                tokens += len(each.new_token_ids)
                if name in self._waits_for_first and each.new_token_ids:
                    self._waits_for_first.remove(name)
                    first.append(int(name))
                    prompt_tokens += self._prepared[name].prompt_tokens
                if each.finish_reason is not None:
                    finished.append(int(name))
                    del self._prepared[name]
        preempted = len(plan.preempted_req_ids or ())
        return Step(first, finished, stats, Iteration(prompt_tokens, tokens, preempted))

    @property
    def counts(self) -> tuple[int, int]:
        """Running and waiting."""
        running, waiting = self._scheduler.get_request_counts()
        return running, waiting

    @property
    def kv_usage(self) -> float:
        """0..1."""
        return float(self._scheduler.kv_cache_manager.usage)

    def cached_tokens(self, asked: Prepared) -> int:
        """Tokens of the prompt's beginning that the cache holds."""
        find = self._scheduler.kv_cache_manager.block_pool.get_cached_block
        size = self.engine.block_size
        most = (asked.prompt_tokens - 1) // size
        for number, name in enumerate(asked.names[:most]):
            if find(name, [0]) is None:
                return number * size
        return most * size

    def pending_tokens(self) -> int:
        """Prompt tokens that are yet to be computed."""
        scheduler = self._scheduler
        return sum(
            max(0, r.num_prompt_tokens - r.num_computed_tokens)
            for r in (*scheduler.running, *scheduler.waiting)
        )

    def held_tokens(self) -> int:
        """Tokens that all its requests will hold when they end."""
        scheduler = self._scheduler
        return sum(
            r.num_prompt_tokens + r.max_tokens for r in (*scheduler.running, *scheduler.waiting)
        )


@cache
def _config(max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int) -> Any:
    with TemporaryDirectory() as folder:
        model = _MODEL | {"max_position_embeddings": max_model_len}
        Path(folder, "config.json").write_text(json.dumps(model))
        args = EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            enforce_eager=True,
            async_scheduling=False,
            enable_prefix_caching=True,
        )
        return args.create_engine_config()


def _scheduler(engine: Engine) -> Scheduler:
    config = _config(engine.max_num_seqs, engine.max_num_batched_tokens, engine.max_model_len)
    config.cache_config.num_gpu_blocks = engine.blocks
    config.cache_config.block_size = engine.block_size
    attention = FullAttentionSpec(
        block_size=engine.block_size, num_kv_heads=1, head_size=32, dtype=torch.bfloat16
    )
    return Scheduler(
        config,
        KVCacheConfig(
            num_blocks=engine.blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)],
        ),
        StructuredOutputManager(config),
        block_size=engine.block_size,
        log_stats=True,
    )
