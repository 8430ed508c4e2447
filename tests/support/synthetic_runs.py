"""Runs that nobody ran: lognormal TTFTs, for what measures and shows them."""

from random import Random

from ullage_tune.grid import Cell, Measured
from ullage_tune.measure import Slo, Summary, summarise
from ullage_tune.outcome import Outcome, Run

SLOWNESS = {
    "ullage": 1.0,
    "omniscient": 0.95,
    "least_in_flight": 1.6,
    "round_robin": 2.6,
    "dynamo": 1.1,
    "vllm_router": 1.5,
    "smg": 1.45,
    "smg_wait": 1.2,
    "llm_d": 1.9,
    "kubeai": 1.7,
    "two_choices": 1.55,
    "ullage_weighted": 1.4,
}


def outcome(
    ttft_s: float | None = 1.0,
    tpot_s: float | None = 0.05,
    *,
    arrived_s: float = 0.0,
    output_tokens: int = 11,
    replica: int | None = 0,
    prompt_tokens: int = 100,
    cached_tokens: int = 0,
) -> Outcome:
    """One request. No `ttft_s`: its answer never began; no `tpot_s`: it never ended."""
    first_s = None if ttft_s is None else arrived_s + ttft_s
    ended = first_s is not None and tpot_s is not None
    return Outcome(
        arrived_s=arrived_s,
        router=0,
        replica=replica,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        output_tokens=output_tokens,
        first_token_s=first_s,
        finished_s=first_s + tpot_s * (output_tokens - 1) if ended else None,
        tries=0 if replica is None else 1,
    )


def run_of(*outcomes: Outcome, busy_s: tuple[float, ...] = (5.0, 5.0), seed: int = 0) -> Run:
    """A run of ten seconds."""
    return Run("w", "p", seed, outcomes, busy_s, simulated_s=10.0, wall_s=0.1)


def summary(*ttfts_s: float | None) -> Summary:
    """Of requests with these TTFTs."""
    return summarise(run_of(*(outcome(t) for t in ttfts_s)), Slo(ttft_s=5.0, tpot_s=0.2))


def measured(
    cell: Cell, policy: str, seed: int, *, requests: int = 200, replicas: int = 6
) -> Measured:
    """One run: its slowness is the policy's and the load's, some of it the seed's."""
    dice = Random(f"{cell} {policy} {seed}")
    slow = SLOWNESS[policy] * (0.3 + 2.5 * cell.load**4)
    slow *= Random(f"{cell} {seed}").uniform(0.8, 1.25)
    outcomes = []
    for index in range(requests):
        tokens = dice.randrange(100, 20_000)
        lost = dice.random() < max(0.0, 0.004 * (slow - 5.0))
        outcomes.append(
            outcome(
                None if lost else slow * dice.lognormvariate(0.0, 1.1),
                slow * dice.uniform(0.02, 0.06),
                arrived_s=0.1 * index,
                output_tokens=dice.randrange(2, 300),
                replica=None if lost else dice.randrange(replicas),
                prompt_tokens=tokens,
                cached_tokens=int(tokens * dice.uniform(0.0, 0.4) / SLOWNESS[policy]),
            )
        )
    busy_s = tuple(
        min(1.0, cell.load) * 60.0 * dice.uniform(1.0 - 0.15 * SLOWNESS[policy], 1.0)
        for _ in range(replicas)
    )
    run = Run(cell.workload, policy, seed, tuple(outcomes), busy_s, simulated_s=60.0, wall_s=3.0)
    return Measured(cell, policy, seed, summarise(run, Slo(ttft_s=5.0, tpot_s=0.2)))


def experiment_rows(
    cells: tuple[Cell, ...], policies: tuple[str, ...] = tuple(SLOWNESS), seeds: int = 5
) -> tuple[Measured, ...]:
    """Every policy in every cell."""
    return tuple(measured(c, p, s) for c in cells for p in policies for s in range(seeds))
