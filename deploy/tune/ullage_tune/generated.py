"""Generated workloads by name: same name, rate, n and seed, same requests, on every machine.

    workload("chat", 1000, seed=3)               at the rate that its line in WORKLOADS names
    WORKLOADS["chat"].make(12.0, 1000, 3)        at 12 requests per second

Rates are requests per second, in the mean. Loads follow from what a request costs:
`Workload.at_rate` scales any workload to one.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ullage_tune import mixes, standins
from ullage_tune.dice import Dice
from ullage_tune.workload import Workload


def mooncake_like(rate_per_s: float, n: int, seed: int) -> Workload:
    """Drawn from what was fitted to Mooncake's conversation trace."""
    fit = standins.mooncake()
    return _like(fit, fit.per_s, Dice("mooncake-like", rate_per_s, n, seed))


def azure_like(rate_per_s: float, n: int, seed: int) -> Workload:
    """Drawn from what was fitted to Azure's conversation trace of 2023."""
    fit = standins.azure()
    return _like(fit, fit.requests.per_s, Dice("azure-like", rate_per_s, n, seed))


def _like(fit: standins.Chained | standins.Independent, per_s: float, dice: Dice) -> Workload:
    """Time is scaled from the trace's rate to the one that is wanted, gaps and all."""
    made = dice.workload(standins.stand_in(fit, dice.n, dice.what))
    return made.at_rate(dice.rate_per_s / per_s)


Make = Callable[[float, int, int], Workload]
"""A workload by requests per second (> 0), number of requests (≥ 0), and seed."""


class Kind(NamedTuple):
    """An entry of the registry."""

    make: Make
    rate_per_s: float
    """The nominal rate: a start, to be scaled to a load."""
    says: str
    """What it is, in a line."""


WORKLOADS: Final[Mapping[str, Kind]] = {
    "short": Kind(mixes.short, 40.0, "20–200 prompt tokens, 20–200 out"),
    "long": Kind(mixes.long, 4.0, "1,000–8,000 prompt tokens, 50–400 out"),
    "mixed": Kind(
        mixes.mixed, 12.0, "70 % around 300 prompt tokens, 30 % up to 30,000; 5–2,000 out"
    ),
    "bursts": Kind(mixes.bursts, 12.0, "mixed, with bursts of 5 times the calm rate"),
    "chat": Kind(mixes.chat, 12.0, "4–10 turns, the whole history each time, 20 s to think"),
    "system": Kind(mixes.system, 12.0, "50 system prompts of 1,000–3,000 tokens, Zipf"),
    "system-hot": Kind(mixes.system_hot, 12.0, "the same, one of them with 40 % of the traffic"),
    "agents": Kind(mixes.agents, 6.0, "10–50 turns, contexts that grow by 200–4,000 tokens each"),
    "mooncake-like": Kind(
        mooncake_like, 3.4, "fitted to Mooncake's trace: long prompts, histories, documents"
    ),
    "azure-like": Kind(azure_like, 5.5, "fitted to Azure's 2023 trace: nothing shared"),
}
"""By name."""


def workload(name: str, n: int, seed: int) -> Workload:
    """One of `WORKLOADS` at its nominal rate. `ValueError`: there is none of that name."""
    if name not in WORKLOADS:
        raise ValueError(f"workload={name!r}, wanted one of: {', '.join(WORKLOADS)}")
    kind = WORKLOADS[name]
    return kind.make(kind.rate_per_s, n, seed)
