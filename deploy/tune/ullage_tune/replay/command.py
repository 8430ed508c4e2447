"""`ullage-tune replay`: real load on a running router or server, from a trace or a generator.

The table goes to standard output, how far it has come to standard error. Ctrl-C ends it early: what
has been answered by then is shown and written.

Exit status: 0 all was answered in full, 1 some was not or nobody could be asked, 2 wrong arguments
or file, 130 Ctrl-C.
"""

import argparse
import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from msgspec import json
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ullage_tune.flags import (
    add_slo,
    among,
    base_url,
    check_writable,
    counted,
    failed,
    positive,
    slo_of,
)
from ullage_tune.generated import WORKLOADS, workload
from ullage_tune.plan import PlanError
from ullage_tune.replay import figures
from ullage_tune.replay.player import Fate, Played, Target, play
from ullage_tune.replay.prompts import Form, apart
from ullage_tune.table import print_sheet
from ullage_tune.traces import TraceError, read_trace
from ullage_tune.workload import Workload

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

KEY: Final = "OPENAI_API_KEY"
_ASK_WITHIN_S: Final = 10.0


class ReplayError(Exception):
    """What was asked for cannot be played: one line that says why."""


def add_replay(commands: "Commands") -> None:
    """The subcommand `replay`."""
    flags = commands.add_parser(
        "replay",
        allow_abbrev=False,
        help="send real load to a running router or server",
        description="Plays a workload against an OpenAI-compatible server, each request at its "
        "time, whatever became of those before, and says how long the answers took.",
        epilog=f"Generated workloads: {', '.join(WORKLOADS)}. {KEY}, if set, is sent along. "
        "Ctrl-C shows what has been answered so far.",
    )
    flags.add_argument("--url", type=base_url, required=True, help="as http://router:8080")
    flags.add_argument(
        "--workload",
        required=True,
        metavar="NAME|FILE",
        help="a generated workload, or a trace (Mooncake JSONL, Azure CSV)",
    )
    add_slice(flags)
    flags.add_argument("--model", help="[the first that the server names]")
    flags.add_argument(
        "--form",
        type=among(Form),
        metavar="FORM",
        default=Form.TEXT,
        help="prompts as token ids (tokens), as text, or as chats with a message for each segment "
        "(chat) [%(default)s]",
    )
    flags.add_argument(
        "--plain",
        action="store_true",
        help="send nothing that is vLLM's own (ignore_eos): answers may end early",
    )
    flags.add_argument(
        "--at-once",
        type=counted,
        default=2048,
        metavar="N",
        help="most connections; requests beyond wait, and are late [%(default)s]",
    )
    flags.add_argument(
        "--patience",
        type=positive,
        default=600.0,
        metavar="S",
        help="an answer that has not ended by then has failed [%(default)s]",
    )
    add_slo(flags)
    flags.add_argument("--json", type=Path, metavar="FILE", help="write every request's fate there")
    flags.set_defaults(go=run)


def add_slice(flags: argparse.ArgumentParser) -> None:
    """What of a workload is played, and how fast."""
    flags.add_argument("--limit", type=counted, default=300, metavar="N", help="requests [300]")
    flags.add_argument(
        "--skip", type=int, default=0, metavar="N", help="a trace's first requests [0]"
    )
    flags.add_argument("--seed", type=int, default=1, metavar="N", help="of a generator [1]")
    flags.add_argument(
        "--rate", type=positive, metavar="R", help="requests a second, in the mean [its own]"
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry it out; the exit status."""
    try:
        work = chosen(arguments)
    except (ValueError, TraceError, OSError) as error:
        return failed(str(error), 2)
    try:
        check_writable(arguments.json)
    except PlanError as error:
        return failed(str(error), 2)
    try:
        played, stopped = asyncio.run(_play(arguments, work))
    except ReplayError as error:
        return failed(str(error), 1)
    if arguments.json is not None:
        arguments.json.write_bytes(json.format(json.encode(document(played))))
    note = "; ".join([work.source, *figures.lines(played)])
    row = figures.row(arguments.url, played, slo_of(arguments))
    rate_per_s = len(work.requests) / work.duration_s if work.duration_s else 0.0
    title = f"{work.name}, {len(work.requests)} requests, {rate_per_s:.3g} a second"
    print_sheet(Console(), figures.sheet(title, [row], note))
    if stopped:
        return 130
    return 1 if played.failures else 0


def chosen(arguments: argparse.Namespace) -> Workload:
    """The workload that the arguments name. Raises `ValueError`, `TraceError`, `OSError`."""
    name = arguments.workload
    if Path(name).is_file():
        work = read_trace(Path(name), skip=arguments.skip, limit=arguments.limit)
    elif name in WORKLOADS:
        work = apart(workload(name, arguments.limit, arguments.seed), f"{name} {arguments.seed}")
    else:
        raise ValueError(f"--workload {name}: no such file, nor one of {', '.join(WORKLOADS)}")
    if arguments.rate is not None and work.duration_s:
        work = work.at_rate(arguments.rate * work.duration_s / len(work.requests))
    return work


def document(played: Played) -> list[dict[str, Any]]:
    """Every request's fate, ready for JSON. Seconds; `null`: never, or unknown."""
    return [
        {
            "at_s": outcome.arrived_s,
            "ttft_s": outcome.ttft_s,
            "e2e_s": outcome.e2e_s,
            "prompt_tokens": outcome.prompt_tokens,
            "cached_tokens": outcome.cached_tokens if played.tells_hits else None,
            "output_tokens": outcome.output_tokens,
            "status": fate.status,
            "failure": fate.failure or None,
            "replica": None if outcome.replica is None else played.replicas[outcome.replica],
            "why": outcome.why or None,
            "late_s": fate.late_s,
        }
        for fate in played.fates
        for outcome in (fate.outcome,)
    ]


async def _play(arguments: argparse.Namespace, work: Workload) -> tuple[Played, bool]:
    """What came of it, and whether it was stopped before its end."""
    key = os.environ.get(KEY)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    url = arguments.url.rstrip("/")
    target = Target(
        url,
        arguments.model or await _first_model(url, headers),
        arguments.form,
        arguments.plain,
        headers,
        arguments.at_once,
        arguments.patience,
    )
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    with _progress() as bar:
        task = bar.add_task("answered", total=len(work.requests))

        def on_end(_: Fate) -> None:
            bar.advance(task)

        return await play(work, target, stop=stop, on_end=on_end), stop.is_set()


async def _first_model(url: str, headers: dict[str, str]) -> str:
    timeout = aiohttp.ClientTimeout(total=_ASK_WITHIN_S)
    why = "it names none"
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{url}/v1/models", headers=headers) as answer,
        ):
            answer.raise_for_status()
            with suppress(LookupError, TypeError):
                return str((await answer.json())["data"][0]["id"])
    except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
        why = str(error) or type(error).__name__
    raise ReplayError(f"{url}/v1/models: {why}; wanted a model there, or --model")


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
