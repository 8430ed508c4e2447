"""`ullage-tune search`: find settings for given workloads, check them, print what to paste.

Tables and advice go to standard output, how far it has come to standard error. Ctrl-C ends the
search early: the best so far is checked and told, as if no more had been asked for; a second one
ends the check, too.

Exit status: 0 done, whether or not anything better was found; 1 the twin cannot run here, or its
processes died; 2 wrong arguments or file; 130 Ctrl-C.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ullage_router.core.policy import Policy, Way
from ullage_tune.flags import (
    NEEDED,
    add_lab,
    add_workloads,
    among,
    check_writable,
    counted,
    failed,
    plan_of,
)
from ullage_tune.known import looked_up
from ullage_tune.plan import PlanError, lab
from ullage_tune.search.objective import AIMS
from ullage_tune.search.verdict import LEAST_SEEDS

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_search(commands: "Commands") -> None:
    """The subcommand `search`."""
    flags = commands.add_parser(
        "search",
        allow_abbrev=False,
        help="find the settings that serve your workloads best",
        description="Tries settings of Ullage on simulated replicas, checks the best of them on "
        "requests that the search has not seen, and prints what to paste, if that is better.",
        epilog="Ctrl-C ends the search: the best so far is checked.",
    )
    add_workloads(flags)
    flags.add_argument(
        "--way",
        type=among(Way),
        metavar="WAY",
        default=Policy().way,
        help=f"`choose.way`, whose settings are searched: {', '.join(Way)} [%(default)s]",
    )
    flags.add_argument(
        "--for",
        dest="aim",
        choices=list(AIMS),
        default="ttft_p99",
        help="what is to be better [%(default)s]",
    )
    flags.add_argument(
        "--trials",
        type=counted,
        default=60,
        metavar="N",
        help="settings to try beside the default [%(default)s]",
    )
    add_lab(flags, requests=600)
    flags.add_argument(
        "--seeds",
        type=counted,
        default=3,
        metavar="N",
        help="draws of each workload, or slices of the trace, to try them on [%(default)s]",
    )
    flags.add_argument(
        "--check-seeds",
        type=_enough,
        default=LEAST_SEEDS,
        metavar="N",
        help="others, to check the best on [%(default)s]",
    )
    flags.add_argument(
        "--dice",
        type=counted,
        default=1,
        metavar="N",
        help="the search's own: the same dice, the same trials [%(default)s]",
    )
    flags.add_argument("--json", type=Path, metavar="FILE", help="write all trials and runs there")
    flags.set_defaults(go=_run)


def _enough(text: str) -> int:
    seeds = counted(text)
    if seeds < LEAST_SEEDS:
        raise argparse.ArgumentTypeError(
            f"{text!r}: wanted {LEAST_SEEDS} or more: fewer prove nothing"
        )
    return seeds


def _run(arguments: argparse.Namespace) -> int:
    try:
        check_writable(arguments.json)
        plan = plan_of(arguments)
        looked_up(plan)
        tried, plan = range(plan.seeds), replace(plan, seeds=plan.seeds + arguments.check_seeds)
        twins = lab()
        cells = tuple(twins.cells(plan))
        from ullage_tune.search.session import Asked, Session  # Optuna takes a second.
    except PlanError as error:
        return failed(str(error), status=2)
    except ModuleNotFoundError as error:
        return failed(f"{error}: {NEEDED}", status=1)
    asked = Asked(arguments.way, arguments.aim, arguments.trials, arguments.dice)
    return Session(asked, twins, plan, cells, tried).go(arguments.json)
