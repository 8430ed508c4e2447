"""What it costs the sidecar to learn an engine's speeds, per step.

    PYTHONPATH=tests/support .venv/bin/python tests/bench/bench_speeds.py [--turns 60]

Loads of a simulated engine, by its steps per second. Beside it, as a yardstick: the counters that
are kept of the same steps, and the whole fold of a reading. CPU time in µs, the best of the turns.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random

from simulated_engine import Request, SimulatedEngine
from ullage_sidecar.core.counts import Counts
from ullage_sidecar.core.engine import Engine
from ullage_sidecar.core.fold import fold
from ullage_sidecar.core.reading import Reading
from ullage_sidecar.core.settings import Settings
from ullage_sidecar.core.signals import Signals
from ullage_sidecar.core.speeds import Speeds

START_S = 1000.0
LOADS = {
    "chat, 100 steps/s": (SimulatedEngine(0.008, 2e-5, 1e-4), 6.0, (50, 1500), (100, 400)),
    "long prompts, 50 steps/s": (SimulatedEngine(0.02, 1e-4), 4.0, (20, 4000), (50, 300)),
    "answers, 500 steps/s": (SimulatedEngine(0.002, 2e-5), 2.0, (50, 500), (100, 400)),
}


def readings(
    simulated: SimulatedEngine, per_s: float, prompt: tuple[int, int], answer: tuple[int, int]
) -> list[Reading]:
    """What the engine tells while it serves 200 requests."""
    rng, at_s, asked = Random(5), START_S, []
    for _ in range(200):
        at_s += rng.expovariate(per_s)
        asked.append(Request(at_s, rng.randint(*prompt), rng.randint(*answer)))
    return list(simulated.run(asked, Random(1)))


def best_us(turns: int, steps: int, run: Callable[[], None]) -> float:
    """CPU time of one step in the best turn."""
    took_s = []
    for _ in range(turns):
        began_s = time.process_time()
        run()
        took_s.append(time.process_time() - began_s)
    return min(took_s) / steps * 1e6


def report(name: str, simulated: SimulatedEngine, told: Sequence[Reading], turns: int) -> None:
    """Measure one load and print a line."""
    counts, pairs = Counts(), []
    for before, step in pairwise(told):
        if step.seq > before.seq:
            counts = counts.with_step(before, step)
            pairs.append((before, step, counts))

    def learn() -> None:
        speeds = Speeds()
        for before, step, so_far in pairs:
            speeds = speeds.with_step(before, step, so_far)

    def count() -> None:
        counts = Counts()
        for before, step, _ in pairs:
            counts = counts.with_step(before, step)

    def fold_all() -> None:
        engine = Engine("vllm", 0, START_S - 100.0, Signals.of(Settings()))
        engine = fold(engine, simulated.hellos()[0], START_S)
        for reading in told:
            engine = fold(engine, reading, reading.at_s)

    prompts = sum(before.prompt_tokens != step.prompt_tokens for before, step, _ in pairs)
    print(
        f"{name:25} {len(pairs):6} steps, {prompts:4} with prompts:"
        f"  speeds {best_us(turns, len(pairs), learn):5.2f}"
        f"  counters {best_us(turns, len(pairs), count):5.2f}"
        f"  whole fold {best_us(turns, len(told), fold_all):5.2f}"
    )


def main() -> None:
    """Measure the loads one after the other."""
    parser = argparse.ArgumentParser(description="what learning speeds costs, in µs per step")
    parser.add_argument("--turns", type=int, default=60)
    turns = parser.parse_args().turns
    for name, (simulated, *load) in LOADS.items():
        report(name, simulated, readings(simulated, *load), turns)


if __name__ == "__main__":
    main()
