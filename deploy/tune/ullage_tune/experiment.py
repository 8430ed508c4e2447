"""Carries out what the lab is asked for: every policy on the same requests.

A load of 1 is what the cluster can do: the rate at which the omniscient finishes requests of this
very draw when all of them come at `FLOOD` times their pace, from the first tenth that is finished
to the last. It is measured for each draw and each number of replicas: what can be done depends on
the prompts and on what they share.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import cache
from itertools import product
from logging import INFO, disable
from multiprocessing import get_context
from pathlib import Path
from signal import SIG_DFL, SIGINT, signal
from typing import Final

from ullage_tune import generated
from ullage_tune.engine_file import engine_of
from ullage_tune.gpu import Engine
from ullage_tune.grid import OMNISCIENT, Cell, Measured
from ullage_tune.known import looked_up
from ullage_tune.measure import summarise
from ullage_tune.plan import Plan, PlanError, Task
from ullage_tune.policies import POLICIES
from ullage_tune.policy import MakePolicy
from ullage_tune.scenarios import SCENARIOS, plain
from ullage_tune.traces import TraceError, read_trace
from ullage_tune.workload import Workload
from ullage_tune.world import World

FLOOD: Final = 20.0
_SETTLED: Final = 0.1
"""Share of the requests at either end of a flood that tell nothing of what can be kept up."""


def tasks(plan: Plan) -> Sequence[Task]:
    """All runs. Raises `PlanError`: no such workload, policy, engine or scenario."""
    return [
        Task(cell, policy, seed)
        for cell in cells(plan)
        for seed in range(plan.seeds)
        for policy in plan.policies or POLICIES
    ]


def cells(plan: Plan) -> Sequence[Cell]:
    """Where policies meet. Raises `PlanError`, as above, or where a trace has no such seeds."""
    engine = looked_up(plan)
    for name in plan.workloads:
        draws = [_draw(name, plan.requests, seed) for seed in range(plan.seeds)]
        if not draws[0].requests:
            raise PlanError(f"--workload {name}: wanted at least one request")
        if not draws[-1].requests:
            slices = f"{plan.seeds} slices of {plan.requests} requests"
            raise PlanError(f"--workload {name}: wanted {slices}: it is shorter than that")
        longest = max(r.prompt_tokens + r.output_tokens for d in draws for r in d.requests)
        if longest > engine.longest:
            raise PlanError(
                f"--workload {name}: a request of {longest} tokens; --engine {plan.engine} takes "
                f"{engine.longest} at most"
            )
    places = product(plan.workloads, plan.scenarios, plan.loads)
    return [
        Cell(_called(name), plan.routers, _befalls(scenario), load)
        for name, scenario, load in places
    ]


def drawn(plan: Plan, cell: Cell, seed: int) -> Workload:
    """What is asked in a cell of this plan at this seed, at its own pace."""
    return _draw(_named(plan, cell), plan.requests, seed)


def run(plan: Plan, tasks: Sequence[Task]) -> Iterator[Measured]:
    """Make them, and give each as it is done."""
    with workers(plan.jobs) as pool:
        waiting = [pool.submit(measure, plan, task, POLICIES[task.policy]) for task in tasks]
        for done in as_completed(waiting):
            yield done.result()


@contextmanager
def workers(jobs: int) -> Iterator[Executor]:
    """Processes for `measure`. What has not begun when this ends never does; Ctrl-C ends all."""
    context = get_context("forkserver")  # One import of vLLM for all.
    context.set_forkserver_preload(["ullage_tune.twin"])
    pool = ProcessPoolExecutor(jobs, context, initializer=signal, initargs=(SIGINT, SIG_DFL))
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def measure(plan: Plan, task: Task, make: MakePolicy) -> Measured:
    """One run, of a policy that need not have a name in `POLICIES`."""
    disable(INFO)
    engine, cell, asked = engine_of(plan.engine), task.cell, drawn(plan, task.cell, task.seed)
    name = _named(plan, cell)
    able_per_s = _able_per_s(name, plan.requests, task.seed, engine, plan.replicas)
    offered = asked.at_rate(cell.load * able_per_s * asked.duration_s / len(asked.requests))
    made = SCENARIOS[cell.scenario or "plain"].make(engine, plan.replicas, offered.duration_s)
    scenario = made.shared_by(plan.routers)
    world = World(offered, scenario, make, task.policy, task.seed)
    return Measured(cell, task.policy, task.seed, summarise(world.run(), plan.slo))


@cache
def _able_per_s(name: str, requests: int, seed: int, engine: Engine, replicas: int) -> float:
    flood = _draw(name, requests, seed).at_rate(FLOOD)
    scenario = plain(engine, replicas, flood.duration_s)
    fates = World(flood, scenario, POLICIES[OMNISCIENT], OMNISCIENT, seed).run().outcomes
    ends = sorted(fate.finished_s for fate in fates if fate.finished_s is not None)
    first, last = int(_SETTLED * len(ends)), int((1.0 - _SETTLED) * (len(ends) - 1))
    if last <= first:
        return len(ends) / ends[-1]
    return (last - first) / (ends[last] - ends[first])


@cache
def _draw(name: str, requests: int, seed: int) -> Workload:
    """A generated workload, or the slice of a trace."""
    if name in generated.WORKLOADS:
        return generated.workload(name, requests, seed)
    try:
        return read_trace(Path(name), skip=seed * requests, limit=requests)
    except (OSError, TraceError) as error:
        raise PlanError(f"--workload {name}: {error}") from error


def _named(plan: Plan, cell: Cell) -> str:
    """The name or path behind a cell; of two files of one name, the last."""
    return {_called(name): name for name in plan.workloads}[cell.workload]


def _called(name: str) -> str:
    return name if name in generated.WORKLOADS else Path(name).stem


def _befalls(scenario: str) -> str:
    return "" if scenario == "plain" else scenario
