"""What the lab is asked to do, by `ullage-tune run` and by those that search."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import Final, NamedTuple, Protocol, cast

from ullage_tune.grid import Cell, Measured
from ullage_tune.measure import Slo
from ullage_tune.policy import MakePolicy
from ullage_tune.workload import Workload

LAB: Final = "ullage_tune.experiment"
"""Imported when something is to be run, not before: vLLM comes with it."""


SCENARIO_NAMES: Final = ("plain", "slow", "lost")
"""What may befall a cluster; see `scenarios`, which comes with vLLM."""


class PlanError(Exception):
    """The user's fault. The message names the flag or the file, and what was wanted."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that the command line says, checked as far as it can be without running."""

    workloads: tuple[str, ...]
    """Names of generated ones, or paths of traces; at least one."""
    policies: tuple[str, ...]
    """Empty: all there are."""
    engine: str
    """A name of `gpu.ENGINES`, or the path of an engine file."""
    replicas: int
    routers: int
    scenarios: tuple[str, ...]
    """Names; at least one."""
    loads: tuple[float, ...]
    """Offered ÷ capacity, > 0; at least one."""
    seeds: int
    """How many: each is another draw, or another slice of a trace."""
    requests: int
    """Of each run."""
    slo: Slo
    jobs: int
    """Processes at a time."""

    def settings(self) -> Mapping[str, str]:
        """In words, for whoever reads the results. Not the jobs: they change nothing."""
        return {
            "workloads": ", ".join(self.workloads),
            "policies": ", ".join(self.policies) or "all",
            "engine": self.engine,
            "scenarios": ", ".join(self.scenarios),
            "replicas": str(self.replicas),
            "routers": str(self.routers),
            "loads": ", ".join(f"{load:.0%}" for load in self.loads),
            "seeds": str(self.seeds),
            "requests per run": str(self.requests),
        }


class Task(NamedTuple):
    """One run to be made."""

    cell: Cell
    policy: str
    seed: int


class Lab(Protocol):
    """What carries a plan out."""

    def tasks(self, plan: Plan) -> Sequence[Task]:
        """All runs of it. Raises `PlanError`: no such workload or policy, a trace that is none."""

    def run(self, plan: Plan, tasks: Sequence[Task]) -> Iterator[Measured]:
        """Make them, `plan.jobs` at a time, and give each when it is done, in any order."""

    # For who chooses the next run by the last one.

    def cells(self, plan: Plan) -> Sequence[Cell]:
        """Where policies meet. Raises `PlanError`, as `tasks` does."""

    def drawn(self, plan: Plan, cell: Cell, seed: int) -> Workload:
        """What is asked there at this seed, at its own pace."""

    def workers(self, jobs: int) -> AbstractContextManager[Executor]:
        """So many processes, ended with what they still have to do."""

    def measure(self, plan: Plan, task: Task, make: MakePolicy) -> Measured:
        """One run, in one of them: of this policy, whatever `task` calls it."""


def lab() -> Lab:
    """The lab. Raises `ModuleNotFoundError`: there is no vLLM here."""
    return cast(Lab, import_module(LAB))
