"""What the subcommands' flags have in common: values, and words for those that are none."""

import argparse
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

from ullage_shared.address import AddressError, parse_base_url
from ullage_tune.gpu import ENGINES
from ullage_tune.measure import Slo
from ullage_tune.plan import Plan, PlanError

_DEFAULT: Final = Slo()
NEEDED: Final = "vLLM's environment, with ullage[tune] in it, is needed"

Kind = TypeVar("Kind", bound=StrEnum)


def add_workloads(flags: argparse.ArgumentParser) -> None:
    """What is asked."""
    flags.add_argument(
        "--workload",
        dest="workloads",
        action="append",
        required=True,
        metavar="NAME|FILE",
        help="a generated workload, or a trace (Mooncake JSONL, Azure CSV); may be repeated",
    )


def add_lab(flags: argparse.ArgumentParser, requests: int) -> None:
    """Of whom, how fast and how much is asked: by default so many requests of each run."""
    flags.add_argument(
        "--engine",
        default="4xh100-70b",
        metavar="NAME|FILE",
        help=f"GPU and model: {', '.join(ENGINES)}, or a file as fit writes it [%(default)s]",
    )
    flags.add_argument(
        "--scenario",
        dest="scenarios",
        action="append",
        default=[],
        metavar="NAME",
        help="what befalls the cluster: slow, lost; may be repeated [plain: nothing]",
    )
    flags.add_argument("--replicas", type=counted, default=6, metavar="N", help="[%(default)s]")
    flags.add_argument(
        "--routers",
        type=counted,
        default=1,
        metavar="N",
        help="that share the requests, and see only their own [%(default)s]",
    )
    flags.add_argument(
        "--load",
        dest="loads",
        type=_loads,
        default=(0.85,),
        metavar="X,X,…",
        help="offered ÷ what the replicas can do, each a run [0.85]",
    )
    flags.add_argument(
        "--requests", type=counted, default=requests, metavar="N", help="of each run [%(default)s]"
    )
    add_slo(flags)
    flags.add_argument(
        "--jobs",
        type=counted,
        default=os.cpu_count() or 1,
        metavar="N",
        help="runs at a time; more of them cost memory [one for each core]",
    )


def plan_of(arguments: argparse.Namespace, policies: tuple[str, ...] = ()) -> Plan:
    """What these flags say."""
    return Plan(
        workloads=tuple(dict.fromkeys(arguments.workloads)),
        policies=policies,
        engine=arguments.engine,
        scenarios=tuple(dict.fromkeys(arguments.scenarios)) or ("plain",),
        replicas=arguments.replicas,
        routers=arguments.routers,
        loads=arguments.loads,
        seeds=arguments.seeds,
        requests=arguments.requests,
        slo=slo_of(arguments),
        jobs=arguments.jobs,
    )


def check_writable(json: Path | None) -> None:
    """Find out before the run, not behind it. Raises `PlanError`."""
    if json is not None and not json.parent.is_dir():
        raise PlanError(f"--json {json}: no such folder: {json.parent}")
    if json is not None and json.is_dir():
        raise PlanError(f"--json {json}: a folder; wanted a file")


def add_slo(flags: argparse.ArgumentParser) -> None:
    """What goodput means."""
    flags.add_argument(
        "--slo-ttft",
        type=positive,
        default=_DEFAULT.ttft_s,
        metavar="S",
        help="a good request's first token comes within so many seconds [%(default)s]",
    )
    flags.add_argument(
        "--slo-tpot",
        type=positive,
        default=_DEFAULT.tpot_s,
        metavar="S",
        help="and each further one within so many, on average [%(default)s]",
    )


def slo_of(arguments: argparse.Namespace) -> Slo:
    """What these flags say."""
    return Slo(arguments.slo_ttft, arguments.slo_tpot)


def positive(text: str) -> float:
    """A number > 0. Raises `ArgumentTypeError`."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: wanted a number > 0")
    return value


def counted(text: str) -> int:
    """A whole number > 0. Raises `ArgumentTypeError`."""
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: wanted a whole number > 0")
    return int(text)


def base_url(text: str) -> str:
    """`http://host:port` or `https://host:port`. Raises `ArgumentTypeError`."""
    try:
        return parse_base_url(text)[0]
    except AddressError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def among(kind: type[Kind]) -> Callable[[str], Kind]:
    """What makes a member of an enumeration of its value, or raises `ArgumentTypeError`."""

    def member(text: str) -> Kind:
        try:
            return kind(text)
        except ValueError:
            wanted = ", ".join(kind)
            raise argparse.ArgumentTypeError(f"{text!r}: wanted one of {wanted}") from None

    return member


def _loads(text: str) -> tuple[float, ...]:
    try:
        return tuple(sorted({positive(part) for part in text.split(",")}))
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or several like 0.7,0.85") from None


def failed(message: str, status: int) -> int:
    """Say why there is no result; the exit status."""
    print(f"ullage-tune: {message}", file=sys.stderr)
    return status
