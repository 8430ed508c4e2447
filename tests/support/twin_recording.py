"""Writes what the plugin of one lab twin would say: `python twin_recording.py …`, beside vLLM.

Arguments: workload, number of requests, engine file, file to write.
"""

import sys
from pathlib import Path
from random import Random
from typing import Any

from ullage_sidecar.channel import encode_hello
from ullage_sidecar.core.reading import Hello
from ullage_sidecar.stats import StepEncoder
from ullage_tune import generated
from ullage_tune.engine_file import engine_of
from ullage_tune.gpu import Engine
from ullage_tune.policy import Cluster, Policy
from ullage_tune.rivals import RIVALS
from ullage_tune.world import Scenario, World

UP_S = 1e6


def said(workload: str, requests: int, engine: Engine) -> bytes:
    hello = Hello(
        1,
        "vllm",
        "boot",
        1,
        1.0,
        total_blocks=engine.blocks,
        block_size=engine.block_size,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_model_len=engine.max_model_len,
    )
    encoder, steps = StepEncoder(1), [encode_hello(hello)]

    def make(cluster: Cluster, rng: Random) -> Policy:
        def hear(stats: Any, iteration: Any) -> None:
            steps.append(encoder.step(stats, iteration, UP_S + cluster.now_s()))

        cluster.hear(0, hear)
        return RIVALS["round_robin"](cluster, rng)

    drawn = generated.workload(workload, requests, 1)
    World(drawn, Scenario(engines=(engine,)), make, "round_robin", 1).run()
    return b"".join(steps)


if __name__ == "__main__":
    name, count, engine_file, out = sys.argv[1:]
    Path(out).write_bytes(said(name, int(count), engine_of(engine_file)))
