"""`ullage-tune run`: policies against each other on vLLM's own scheduler; `show`: results again.

Tables go to standard output, how far it has come to standard error. Ctrl-C ends a run early: what
all policies have done is shown and written, as if no more had been asked for.

Exit status: 0 done, 1 the twin cannot run here (or, with --strict, a bar is missed), 2 wrong
arguments or file, 130 Ctrl-C.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from ullage_tune.flags import (
    NEEDED,
    add_lab,
    add_workloads,
    check_writable,
    counted,
    failed,
    plan_of,
)
from ullage_tune.grid import OURS, Grid, Measured, PairError, in_full
from ullage_tune.known import looked_up
from ullage_tune.plan import Lab, Plan, PlanError, Task, lab
from ullage_tune.progress import Progress
from ullage_tune.results import Experiment, ResultsError, read_json, versions, write_json
from ullage_tune.sheets import matrix_sheet, met
from ullage_tune.table import print_tables

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_run(commands: "Commands") -> None:
    """The subcommand `run`."""
    flags = commands.add_parser(
        "run",
        allow_abbrev=False,
        help="let routing policies compete on simulated replicas",
        description="Lets routing policies compete: the same requests, vLLM's own scheduler and KV "
        "cache, in virtual time. Prints a table for each workload and load, and how ullage stands.",
        epilog="Ctrl-C shows what has been measured so far.",
    )
    add_workloads(flags)
    flags.add_argument(
        "--policy",
        dest="policies",
        action="append",
        default=[],
        metavar="NAME",
        help=f"{OURS}, omniscient, or a rival; may be repeated [all]",
    )
    add_lab(flags, requests=1200)
    flags.add_argument(
        "--seeds",
        type=counted,
        default=5,
        metavar="N",
        help="draws of the workload, or slices of the trace; fewer than 5 prove little [5]",
    )
    flags.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    _add_outputs(flags)
    flags.set_defaults(go=_run)


def add_show(commands: "Commands") -> None:
    """The subcommand `show`."""
    flags = commands.add_parser(
        "show",
        allow_abbrev=False,
        help="print results that were written by run --json, or make their report",
        description="Prints the tables of results that `run --json` wrote.",
    )
    flags.add_argument("results", type=Path, metavar="FILE", help="as written by run --json")
    _add_outputs(flags)
    flags.set_defaults(go=_show)


def _add_outputs(flags: argparse.ArgumentParser) -> None:
    flags.add_argument(
        "--report", type=Path, metavar="FOLDER", help="write a page there, with figures"
    )
    flags.add_argument(
        "--strict", action="store_true", help=f"exit with 1 where {OURS} misses a bar"
    )


def _run(arguments: argparse.Namespace) -> int:
    try:
        _writable(arguments)
        plan = plan_of(arguments, policies=tuple(dict.fromkeys(arguments.policies)))
        looked_up(plan)
        twins = lab()
        tasks = twins.tasks(plan)
    except PlanError as error:
        return failed(str(error), status=2)
    except ModuleNotFoundError as error:
        return failed(f"{error}: {NEEDED}", status=1)
    rows, whole = _measure(twins, plan, tasks)
    experiment = Experiment(plan.slo, plan.settings(), versions(), rows)
    if arguments.json is not None:
        write_json(arguments.json, experiment)
    status = _tell(experiment, arguments)
    return status if whole else 130


def _show(arguments: argparse.Namespace) -> int:
    try:
        return _tell(read_json(arguments.results), arguments)
    except (ResultsError, PairError) as error:
        return failed(str(error), status=2)


def _measure(lab: Lab, plan: Plan, tasks: Sequence[Task]) -> tuple[tuple[Measured, ...], bool]:
    """The rows in order, and whether they are all that was asked for."""
    rows: list[Measured] = []
    whole = True
    with Progress(Console(stderr=True), len(tasks)) as progress:
        try:
            for row in lab.run(plan, tasks):
                rows.append(row)
                progress.done(row)
        except KeyboardInterrupt:
            whole = False
    if not whole:
        rows = list(in_full(rows, sorted({task.policy for task in tasks})))
        failed(f"interrupted: {len(rows)} of {len(tasks)} runs can be compared", status=130)
    return tuple(sorted(rows, key=lambda row: (row.cell, row.policy, row.seed))), whole


def _tell(experiment: Experiment, arguments: argparse.Namespace) -> int:
    grid = Grid(experiment.rows)
    print_tables(Console(), grid)
    if arguments.report is not None:
        from ullage_tune.report import write_report  # matplotlib takes a second

        print(f"report: {write_report(arguments.report, experiment)}")
    return int(arguments.strict and not all(map(met, matrix_sheet(grid).rows)))


def _writable(arguments: argparse.Namespace) -> None:
    """Find out before the run, not behind it."""
    check_writable(arguments.json)
    if arguments.report is not None:
        try:
            arguments.report.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PlanError(f"--report {arguments.report}: {error.strerror}") from error
