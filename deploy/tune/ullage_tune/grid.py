"""What was measured, laid out by cell, policy and seed.

Rule: policies are compared on the same seeds, or not at all. A seed names what is asked (the
generator's dice, or a trace's slice), so a policy's figures at one seed are paired with another's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from ullage_tune.measure import Summary

OURS: Final = "ullage"
"""The default of the router, as it ships. Its kin, which are no rivals, begin with `ullage_`."""
OMNISCIENT: Final = "omniscient"
"""Knows what no router can: a bound, not a rival."""


class PairError(Exception):
    """Results that cannot be compared. The message names the cell, the policy and the seeds."""


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """What is asked of the policies: rivals meet within one."""

    workload: str
    routers: int = 1
    """That share the requests among them."""
    scenario: str = ""
    """What befalls the cluster, in a word or two; empty: nothing."""
    load: float = 1.0
    """Offered ÷ what the replicas can do, > 0."""

    def __str__(self) -> str:
        return f"{self.kind}, {self.load:.0%} load"

    @property
    def kind(self) -> str:
        """The cell without its load."""
        routers = f"{self.routers} routers" if self.routers > 1 else ""
        return ", ".join(filter(None, (self.workload, self.scenario, routers)))


@dataclass(frozen=True, slots=True)
class Measured:
    """One run's place and figures."""

    cell: Cell
    policy: str
    seed: int
    summary: Summary


class Statistic(NamedTuple):
    """A figure of `Summary` by which policies are compared."""

    name: str
    """The field."""
    title: str
    unit: str
    """s, ms (shown so; the field is in seconds), % (the field is a share), n (a count), none."""
    lower_is_better: bool

    def of(self, summary: Summary) -> float | None:
        """The figure; `None`: there was nothing to measure."""
        value: float | None = getattr(summary, self.name)
        return value


TTFT_P50: Final = Statistic("ttft_p50_s", "TTFT p50", "s", lower_is_better=True)
TTFT_P99: Final = Statistic("ttft_p99_s", "TTFT p99", "s", lower_is_better=True)
GOODPUT: Final = Statistic("goodput", "goodput", "%", lower_is_better=False)
STATISTICS: Final = (
    TTFT_P50,
    Statistic("ttft_p90_s", "TTFT p90", "s", lower_is_better=True),
    TTFT_P99,
    Statistic("tpot_p50_s", "TPOT p50", "ms", lower_is_better=True),
    Statistic("tpot_p99_s", "TPOT p99", "ms", lower_is_better=True),
    Statistic("e2e_p50_s", "E2E p50", "s", lower_is_better=True),
    Statistic("e2e_p99_s", "E2E p99", "s", lower_is_better=True),
    GOODPUT,
    Statistic("hit_rate", "prefix hits", "%", lower_is_better=False),
    Statistic("imbalance", "imbalance", "", lower_is_better=True),
    Statistic("refused", "refused", "n", lower_is_better=True),
    Statistic("failed", "failed", "n", lower_is_better=True),
    Statistic("finished_per_s", "finished/s", "", lower_is_better=False),
)


class Grid:
    """All results of an experiment. Raises `PairError` where two claim one place."""

    def __init__(self, rows: Iterable[Measured]) -> None:
        self._at: dict[Cell, dict[str, dict[int, Summary]]] = {}
        for row in rows:
            seeds = self._at.setdefault(row.cell, {}).setdefault(row.policy, {})
            if row.seed in seeds:
                raise PairError(f"{row.cell}: {row.policy}, seed {row.seed}: there twice")
            seeds[row.seed] = row.summary

    @property
    def cells(self) -> Sequence[Cell]:
        """In the order of their names, routers, scenarios, loads."""
        return sorted(self._at)

    @property
    def policies(self) -> Sequence[str]:
        """Ours first, the bound last, all others by name."""
        names = {policy for policies in self._at.values() for policy in policies}
        return sorted(names, key=lambda name: (name == OMNISCIENT, name != OURS, name))

    def in_cell(self, cell: Cell) -> Sequence[str]:
        """The policies that were measured there, in the order of `policies`."""
        return [policy for policy in self.policies if policy in self._at[cell]]

    def rivals(self, cell: Cell) -> Sequence[str]:
        """Those of them that are neither ours nor the bound."""
        return [
            policy
            for policy in self.in_cell(cell)
            if policy not in (OURS, OMNISCIENT) and not policy.startswith(f"{OURS}_")
        ]

    def seeds(self, cell: Cell, policy: str) -> Mapping[int, Summary]:
        """A policy's figures by seed. Raises `PairError` where there are none."""
        try:
            return dict(sorted(self._at[cell][policy].items()))
        except KeyError:
            raise PairError(f"{cell}: {policy}: not measured") from None

    def median(self, cell: Cell, policy: str, statistic: Statistic) -> float | None:
        """Over the seeds; `None`: there was nothing to measure in one of them."""
        values = [statistic.of(summary) for summary in self.seeds(cell, policy).values()]
        known = [value for value in values if value is not None]
        return median(known) if len(known) == len(values) else None


def in_full(rows: Iterable[Measured], policies: Sequence[str]) -> tuple[Measured, ...]:
    """The rows whose cell and seed all of `policies` have run: what an interrupted run can show."""
    rows = tuple(rows)
    done: dict[tuple[Cell, int], set[str]] = {}
    for row in rows:
        done.setdefault((row.cell, row.seed), set()).add(row.policy)
    return tuple(row for row in rows if done[row.cell, row.seed] >= set(policies))
