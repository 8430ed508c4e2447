"""How long a GPU takes for one engine step, and how much of a prompt it can hold.

    step = base + per_token · tokens + per_sequence · sequences + per_context_token · context

`base` is reading the weights once, `per_token` the arithmetic of each scheduled token (prompt or
answer), `per_sequence` sampling and bookkeeping, `per_context_token` reading the KV cache of what
the step's sequences hold already. The arithmetic hides behind the reading of weights only while a
step has few tokens; the sum is pessimistic there by less than `base`.

Parameters come from data sheets (`roofline`), or from what an engine did (`ullage-tune fit`).
"""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple


class StepModel(NamedTuple):
    """Seconds of a step."""

    base_s: float
    per_token_s: float
    per_sequence_s: float
    per_context_token_s: float

    def step_s(self, tokens: int, sequences: int, context_tokens: int) -> float:
        """Seconds of a step: `tokens` scheduled for `sequences` that hold `context_tokens`."""
        return (
            self.base_s
            + self.per_token_s * tokens
            + self.per_sequence_s * sequences
            + self.per_context_token_s * context_tokens
        )

    def slower(self, factor: float) -> "StepModel":
        """A GPU that takes `factor` times as long for everything."""
        return StepModel(*(factor * each for each in self))


@dataclass(frozen=True, slots=True)
class Engine:
    """One vLLM engine: its GPU, and how it was started."""

    steps: StepModel
    blocks: int
    """KV blocks."""
    block_size: int = 16
    """Tokens per block."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 131_072

    @property
    def longest(self) -> int:
        """Tokens of the longest request that it takes, prompt and answer."""
        return min(self.max_model_len, (self.blocks - 1) * self.block_size)

    @property
    def prefill_tokens_per_s(self) -> float:
        """Uncached prompt tokens a second, in full steps of nothing else."""
        most = self.max_num_batched_tokens
        return most / self.steps.step_s(most, 1, 0)


def slowed(engine: Engine, factor: float) -> Engine:
    """The same engine on a GPU that takes `factor` times as long for everything."""
    return replace(engine, steps=engine.steps.slower(factor))


_PER_SEQUENCE_S: Final = 5e-5
"""Of vLLM's own work for each sequence of a step: an assumption."""


def roofline(
    parameters: float,
    kv_bytes_per_token: float,
    *,
    gpus: int,
    memory_bytes: float,
    bandwidth_bytes_per_s: float,
    flops: float,
    efficiency: float = 0.5,
    block_size: int = 16,
) -> Engine:
    """What the data sheet promises: weights of two bytes, two operations per parameter and token.

    `memory_bytes`, `bandwidth_bytes_per_s`, `flops` of each of the `gpus`. `efficiency`: the share
    of `flops` that is reached, 0..1. A tenth of the memory is left alone, as vLLM does by default.
    """
    bandwidth = gpus * bandwidth_bytes_per_s
    weights = 2.0 * parameters
    room = 0.9 * gpus * memory_bytes - weights
    return Engine(
        StepModel(
            weights / bandwidth,
            2.0 * parameters / (gpus * flops * efficiency),
            _PER_SEQUENCE_S,
            kv_bytes_per_token / bandwidth,
        ),
        blocks=int(room / kv_bytes_per_token / block_size),
        block_size=block_size,
    )


def _llama(parameters: float, layers: int, gpus: int) -> Engine:
    # KV heads · head size · (key and value) · two bytes; both models have 8 heads of 128.
    kv_bytes = layers * 8 * 128 * 2 * 2
    return roofline(
        parameters, kv_bytes, gpus=gpus, memory_bytes=80e9, bandwidth_bytes_per_s=3.35e12,
        flops=989e12,
    )  # fmt: skip


SPIKE: Final = Engine(StepModel(0.018, 1.1e-4, 5e-5, 5e-8), blocks=30_000)
"""Round figures for a 70B model on few GPUs, of no data sheet: 18 ms a step, 0.11 ms a token. The
first results of this project were had with them."""

ENGINES: Final = {
    "h100-8b": _llama(8.0e9, 32, 1),
    "4xh100-70b": _llama(70.6e9, 80, 4),
    "spike": SPIKE,
}
"""By name. NVIDIA's H100 SXM data sheet: 80 GB, 3.35 TB/s, 989 TFLOPS (BF16, dense); Llama 3.1's
model card: 8.0 and 70.6 billion parameters, 32 and 80 layers."""
