"""Whole processes compete: our router and other people's, by turns before the same live twins.

    PYTHONPATH=tests:deploy python -m bench.live.contest --venv VENV --model DIR
        --workload NAME|FILE [--limit 300] [--rate R] [--twins 4] [--only ours,smg cache_aware]

Each twin is vLLM's own server with a modelled GPU. In each turn one router is started, the twins
forget their KV caches, and the same requests come at the same times over HTTP.

What may spoil it is said in the table: `late`, our client's own lateness; `twins lost`, by how much
twins fell behind their model because this machine was busy, as a share of their steps' time;
`CPU`, how busy the whole machine was, others included. Trust no row in which these are not small.

Ports from PORT_BASE (default 29200) on. Exit status 1: a router could not be started.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console

from bench.live.routers import DEFAULT, ROUTERS, Stand, needs
from bench.proxy import install_peers
from bench.proxy.processes import TICK_S, Child, NotStartedError, check_free
from twins.fleet import Fleet, Pace
from ullage_tune.flags import add_slo
from ullage_tune.gpu import ENGINES
from ullage_tune.measure import Slo
from ullage_tune.replay import figures
from ullage_tune.replay.command import add_slice, chosen, document
from ullage_tune.replay.player import Played, Target, play
from ullage_tune.replay.prompts import Form
from ullage_tune.sheets import Field, Sheet, shown
from ullage_tune.table import print_sheet
from ullage_tune.workload import Workload
from vllm_cpu.serve import ServerError

ROOT: Final = Path(__file__).parents[3]
MODEL: Final = "tiny"
READY_WITHIN_S: Final = 60.0
NOT_BUSY: Final = slice(3, 5)
"""The fields of `/proc/stat` that are idle time."""
COLUMNS: Final = (*figures.COLUMNS, "imbalance", "twins lost", "CPU")


class Turn(NamedTuple):
    """What one router's turn gave."""

    played: Played
    paces: tuple[Pace, ...]
    """Of each twin, in this turn."""
    cpu: float
    """Share of the machine's CPU that was in use, by anybody, 0..1."""

    @property
    def lost(self) -> float:
        """Seconds that the twins lost ÷ seconds that their steps were to take."""
        return sum(p.lost_s for p in self.paces) / max(1e-9, sum(p.busy_s for p in self.paces))

    @property
    def imbalance(self) -> float:
        """The busiest twin's seconds ÷ their mean."""
        busy_s = [pace.busy_s for pace in self.paces]
        return max(busy_s) * len(busy_s) / max(1e-9, sum(busy_s))


def take_turn(name: str, fleet: Fleet, port: int, work: Workload, form: Form, folder: Path) -> Turn:
    """One router, from its start to its end. Raises `NotStartedError`, `ServerError`."""
    twins = fleet.twins
    stand = Stand(
        folder, port, tuple(t.url for t in twins), tuple(t.name for t in twins), fleet.socket
    )
    with running(name, stand):
        for twin in twins:
            twin.forget()
        before = [twin.pace() for twin in twins]
        with cpu_share() as cpu:
            played = asyncio.run(play(work, Target(f"http://127.0.0.1:{port}", MODEL, form)))
        paces = tuple(t.pace().since(b) for t, b in zip(twins, before, strict=True))
    return Turn(played, paces, cpu())


@contextmanager
def running(name: str, stand: Stand) -> Iterator[None]:
    """The router and what belongs to it, ready to forward to every replica."""
    for port in range(stand.port, stand.port + 3):
        check_free(port)
    with ExitStack() as stack:
        children = [
            stack.enter_context(Child(argv, stand.folder / f"{name.replace(' ', '-')}-{n}.log"))
            for n, argv in enumerate(ROUTERS[name](stand))
        ]
        until_s = time.monotonic() + READY_WITHIN_S
        while not (answers(stand) and (not name.startswith("ours") or all_serving(stand))):
            for child in children:
                child.check_alive()
            if time.monotonic() > until_s:
                raise NotStartedError(f"not ready within {READY_WITHIN_S:.0f} s")
            time.sleep(0.2)
        yield


def answers(stand: Stand) -> bool:
    """Is a request answered, as often in a row as there are replicas?"""
    body = {"model": MODEL, "prompt": "a", "max_tokens": 1}
    request = urllib.request.Request(
        f"http://127.0.0.1:{stand.port}/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    try:
        for _ in stand.replicas:
            with urllib.request.urlopen(request, timeout=10.0):
                pass
    except OSError:
        return False
    return True


def all_serving(stand: Stand) -> bool:
    """Would our router choose any of them?"""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{stand.port + 1}/replicas") as answer:
            rows = json.loads(answer.read())["replicas"]
    except OSError:
        return False
    return len(rows) == len(stand.replicas) and all(row["state"] == "serving" for row in rows)


@contextmanager
def cpu_share() -> Iterator[Callable[[], float]]:
    """Within it, how much of the machine is in use; asked for behind it."""
    busy_s, began_s = machine_busy_s(), time.monotonic()
    share = 0.0
    yield lambda: share
    share = (machine_busy_s() - busy_s) / (time.monotonic() - began_s) / (os.cpu_count() or 1)


def machine_busy_s() -> float:
    """Seconds of CPU that anybody has used since the machine was started."""
    fields = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    del fields[NOT_BUSY]
    return sum(fields) * TICK_S


def row(name: str, turn: Turn, slo: Slo) -> Sequence[Field]:
    """The fields of `COLUMNS`."""
    added = (f"{turn.imbalance:.2f}", shown(turn.lost, "%"), shown(turn.cpu, "%"))
    return [*figures.row(name, turn.played, slo), *map(Field, added)]


def install(names: Sequence[str]) -> None:
    """Have the chosen routers; ends the program with one line where that fails."""
    packages, peers = needs(names)
    if packages:
        installer = ROOT / "tests/system_packages.py"
        if subprocess.run([sys.executable, installer, *packages]).returncode != 0:
            sys.exit(1)
    try:
        install_peers.ensure(peers)
    except install_peers.InstallError as error:
        sys.exit(str(error))


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("--venv", type=Path, required=True, help="of vLLM, with ullage in it")
    flags.add_argument("--model", type=Path, required=True)
    flags.add_argument("--workload", required=True, metavar="NAME|FILE")
    add_slice(flags)
    add_slo(flags)
    flags.add_argument("--twins", type=int, default=4, metavar="N", help="[%(default)s]")
    flags.add_argument("--engine", choices=list(ENGINES), default="spike", help="[%(default)s]")
    flags.add_argument("--form", type=Form, choices=list(Form), default=Form.TEXT)
    flags.add_argument(
        "--only", type=some_routers, default=DEFAULT, metavar="NAME,NAME", help=", ".join(ROUTERS)
    )
    flags.add_argument("--json", type=Path, metavar="FILE", help="write every request's fate there")
    return flags


def some_routers(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in ROUTERS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(ROUTERS)}")
    return names


def main() -> int:
    arguments = parser().parse_args()
    work = chosen(arguments)
    engine = ENGINES[arguments.engine]
    install(arguments.only)
    port = int(os.environ.get("PORT_BASE", "29200"))
    folder = Path(tempfile.mkdtemp(prefix="ullage-contest-"))
    say(f"logs are in {folder}")
    offered = sum(r.prompt_tokens for r in work.requests) / max(1e-9, work.duration_s)
    turns: dict[str, Turn] = {}
    failed = False
    with Fleet(
        arguments.twins,
        engine,
        venv=arguments.venv,
        model=arguments.model,
        port_base=port + 3,
        folder=folder,
        on_ready=lambda twin, took_s: say(
            f"{twin.name} ready after {took_s:.0f} s, {twin.memory_mb():.0f} MB"
        ),
    ) as fleet:
        for name in arguments.only:
            try:
                turns[name] = take_turn(name, fleet, port, work, arguments.form, folder)
            except (NotStartedError, ServerError) as error:
                say(f"{name}: not measured: {error}")
                failed = True
            else:
                said = "; ".join(figures.lines(turns[name].played))
                say(f"{name}: {turns[name].played.run.wall_s:.0f} s; {said}")
    slo = Slo(arguments.slo_ttft, arguments.slo_tpot)
    capacity = arguments.twins * engine.prefill_tokens_per_s
    note = (
        f"{work.source}; {len(work.requests)} requests in {work.duration_s:.0f} s, as "
        f"{arguments.form}; {offered:,.0f} prompt tokens a second, {offered / capacity:.0%} of "
        f"what {arguments.twins} twins of engine {arguments.engine!r} can compute"
    )
    rows = [row(name, turn, slo) for name, turn in turns.items()]
    print_sheet(Console(), Sheet(f"Live: {work.name}", note, COLUMNS, rows))
    if arguments.json is not None:
        fates = {name: document(turn.played) for name, turn in turns.items()}
        arguments.json.write_text(json.dumps(fates, indent=1) + "\n")
    return int(failed)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
