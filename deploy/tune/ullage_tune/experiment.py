"""Carries out what `ullage-tune run` is asked for: every policy on the same requests.

A load of 1 is what the cluster can do: the rate at which the omniscient finishes requests of this
very draw when all of them come at `FLOOD` times their pace, from the first tenth that is finished
to the last. It is measured for each draw and each number of replicas: what can be done depends on
the prompts and on what they share.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from itertools import product
from logging import INFO, disable
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from ullage_tune import generated
from ullage_tune.engine_file import EngineError, engine_of
from ullage_tune.gpu import Engine
from ullage_tune.grid import OMNISCIENT, Cell, Measured
from ullage_tune.measure import summarise
from ullage_tune.plan import Plan, PlanError, Task
from ullage_tune.policies import POLICIES
from ullage_tune.scenarios import SCENARIOS, plain
from ullage_tune.traces import TraceError, read_trace
from ullage_tune.workload import Workload
from ullage_tune.world import World

FLOOD: Final = 20.0
_SETTLED: Final = 0.1
"""Share of the requests at either end of a flood that tell nothing of what can be kept up."""


def tasks(plan: Plan) -> Sequence[Task]:
    """All runs. Raises `PlanError`: no such workload, policy, engine or scenario."""
    for kind, wanted, there in (
        ("policy", plan.policies, POLICIES),
        ("scenario", plan.scenarios, SCENARIOS),
    ):
        for name in wanted:
            if name not in there:
                raise PlanError(f"--{kind} {name!r}: wanted one of {', '.join(there)}")
    try:
        engine = engine_of(plan.engine)
    except EngineError as error:
        raise PlanError(f"--engine {error}") from None
    for name in plan.workloads:
        drawn = [_draw(name, plan.requests, seed) for seed in range(plan.seeds)]
        if not drawn[0].requests:
            raise PlanError(f"--workload {name}: wanted at least one request")
        longest = max(r.prompt_tokens + r.output_tokens for d in drawn for r in d.requests)
        if longest > engine.longest:
            raise PlanError(
                f"--workload {name}: a request of {longest} tokens; --engine {plan.engine} takes "
                f"{engine.longest} at most"
            )
    cells = product(plan.workloads, plan.scenarios, plan.loads, range(plan.seeds))
    return [
        Task(Cell(_called(name), plan.routers, _befalls(scenario), load), policy, seed)
        for name, scenario, load, seed in cells
        for policy in plan.policies or POLICIES
    ]


def run(plan: Plan, tasks: Sequence[Task]) -> Iterator[Measured]:
    """Make them, and give each as it is done."""
    context = get_context("forkserver")  # One import of vLLM for all.
    context.set_forkserver_preload(["ullage_tune.twin"])
    named = {_called(name): name for name in plan.workloads}
    engine = engine_of(plan.engine)
    pool = ProcessPoolExecutor(plan.jobs, context)
    try:
        waiting = [pool.submit(_run, plan, engine, named[t.cell.workload], t) for t in tasks]
        for done in as_completed(waiting):
            yield done.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _run(plan: Plan, engine: Engine, name: str, task: Task) -> Measured:
    disable(INFO)
    drawn = _draw(name, plan.requests, task.seed)
    cell = task.cell
    able_per_s = _able_per_s(name, plan.requests, task.seed, engine, plan.replicas)
    offered = drawn.at_rate(cell.load * able_per_s * drawn.duration_s / len(drawn.requests))
    made = SCENARIOS[cell.scenario or "plain"].make(engine, plan.replicas, offered.duration_s)
    scenario = made.shared_by(plan.routers)
    world = World(offered, scenario, POLICIES[task.policy], task.policy, task.seed)
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
    except FileNotFoundError:
        known = ", ".join(generated.WORKLOADS)
        raise PlanError(f"--workload {name!r}: wanted a file, or one of {known}") from None
    except (OSError, TraceError) as error:
        raise PlanError(f"--workload {name}: {error}") from error


def _called(name: str) -> str:
    return name if name in generated.WORKLOADS else Path(name).stem


def _befalls(scenario: str) -> str:
    return "" if scenario == "plain" else scenario
