"""A lab that runs nothing: how late a run is follows from its setting by a formula."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from random import Random

from synthetic_runs import summary
from ullage_tune.grid import Cell, Measured
from ullage_tune.ours import Ours
from ullage_tune.plan import Plan, PlanError, Task
from ullage_tune.workload import Request, Segment, Workload

Late = Callable[[Ours, Task], float | None]
"""TTFT of all requests of a run, in seconds; `None`: never."""


class AtOnce(Executor):
    """Does what it is given while it is given it."""

    def submit(self, call, /, *args, **kwargs):
        future: Future = Future()
        future.set_result(call(*args, **kwargs))
        return future


class MadeUpLab:
    """Requests of `tokens` prompt tokens each. After `stop_after` runs Ctrl-C is pressed."""

    def __init__(self, late: Late, tokens: Sequence[int] = (100,)) -> None:
        self.late = late
        self.tokens = tokens
        self.made: list[Task] = []
        self.stop_after: dict[int, type[BaseException]] = {}

    def cells(self, plan: Plan) -> Sequence[Cell]:
        for name in plan.workloads:
            if name == "unknown":
                raise PlanError(f"--workload {name!r}: wanted a file")
        return [
            Cell(name, plan.routers, load=load) for name in plan.workloads for load in plan.loads
        ]

    def drawn(self, plan: Plan, cell: Cell, seed: int) -> Workload:
        requests = tuple(Request(0.0, (Segment(k, n),), 1) for k, n in enumerate(self.tokens))
        return Workload(cell.workload, requests)

    @contextmanager
    def workers(self, jobs: int) -> Iterator[Executor]:
        yield AtOnce()

    def measure(self, plan: Plan, task: Task, make: Ours) -> Measured:
        if (stop := self.stop_after.get(len(self.made))) is not None:
            del self.stop_after[len(self.made)]
            raise stop
        self.made.append(task)
        return Measured(task.cell, task.policy, task.seed, summary(self.late(make, task)))


def noise(task: Task, sigma: float) -> float:
    """A factor near 1 that is the draw's and the setting's own."""
    return math.exp(Random(f"{task}").gauss(0.0, sigma))


def bowl(make: Ours, task: Task, sigma: float = 0.02) -> float:
    """Least, 0.5 s, with a window of 1 s and an exponent of 6; with 5 s and 2 it is near 1.8 s."""
    window = make.sidecar.get("window")
    span_s = window.span_s if window is not None else 5.0
    far = math.log(span_s / 1.0) ** 2 + math.log(make.rules.choose.exponent / 6.0) ** 2
    return 0.5 * math.exp(far / 3.0) * noise(task, sigma)
