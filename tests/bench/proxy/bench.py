"""Our router beside other proxies, in one run: CPU, latency, long prompts, memory.

    bench.py [--quick] [--only ours,nginx] [--loads unary,streams] [--rounds 3] [--before FOLDER]
             [--json FILE]

Stub backends, a stub sidecar and every proxy run on loopback (PORT_BASE and up, default 29000);
each proxy stands before 8 replicas. In each round every proxy is measured under each load, in an
order that rotates, so that noise hits all alike; medians and ratios are what counts. What a load
is and how it is measured, its own file says. Some ten minutes by default; `--quick` is one short
round of ours alone, to see that all of it works.

What is missing is installed: Debian packages (where apt-get may run), peers from PyPI.
Exit status 1: a proxy could not be measured, or ours made errors. Missed targets are only shown.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import install_peers
import targets
from loads import every_load
from neighbours import Neighbours
from processes import NotStartedError
from proxies import BEFORE, DEFAULT, SYSTEM_PACKAGES
from report import aligned, document, figures, machine, table
from sample import Load, Sample
from testbed import HERE, Bed, Proxy

QUICK_SECONDS: Final = 2

Samples = dict[str, dict[str, list[Sample]]]
"""Load → proxy → one sample per round."""


class Run:
    """The rounds of one run."""

    def __init__(self, bed: Bed, loads: Sequence[Load], seconds: int) -> None:
        self._bed = bed
        self._loads = loads
        self._seconds = seconds
        self.failed: dict[str, str] = {}
        self.samples: Samples = {load.name: {} for load in loads}

    def start_proxies(self, names: Sequence[str]) -> None:
        """Start each; one that fails is named, and left out."""
        for name in names:
            _progress(f"start: {name}")
            try:
                self._bed.start_proxy(name)
            except NotStartedError as error:
                self._give_up(name, error)

    def round(self, number: int) -> None:
        """Measure every proxy under every load, once."""
        for load in self._loads:
            if (number and load.once) or not self._bed.proxies:
                continue
            _progress(f"round {number + 1}: {load.name}")
            for name, sample in load.prepare(self._bed, self._seconds).items():
                self._keep(load, name, sample)
            order = list(self._bed.proxies)
            turn = number % len(order)
            for proxy in order[turn:] + order[:turn]:
                _progress(f"round {number + 1}: {load.name}, {proxy.name}")
                self._measure(load, proxy)
        _progress("")

    def _measure(self, load: Load, proxy: Proxy) -> None:
        try:
            sample = load.measure(self._bed, proxy, self._seconds)
        except NotStartedError as error:
            self._give_up(f"{proxy.name}, {load.name}", error)
            if not proxy.child.alive:
                self._bed.proxies.remove(proxy)
        else:
            self._keep(load, proxy.name, sample)

    def _keep(self, load: Load, name: str, sample: Sample) -> None:
        self.samples[load.name].setdefault(name, []).append(sample)

    def _give_up(self, what: str, error: NotStartedError) -> None:
        self.failed[what] = str(error)
        print(f"{what}: not measured: {error}", file=sys.stderr)


def _progress(line: str) -> None:
    """Show what is being done, to those who watch."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


def _install(names: Sequence[str]) -> None:
    """Have wrk and the chosen proxies; ends the program with one line where that fails."""
    packages = ["wrk", *(name for name in names if name in SYSTEM_PACKAGES)]
    installer = HERE.parents[1] / "system_packages.py"
    if subprocess.run([sys.executable, installer, *packages]).returncode != 0:
        sys.exit(1)
    try:
        install_peers.ensure([name for name in names if name in install_peers.PINS])
    except install_peers.InstallError as error:
        sys.exit(str(error))


def _some_of(known: Collection[str]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        chosen = text.split(",")
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return chosen

    return names


def _arguments(loads: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=_some_of(DEFAULT), metavar="NAME,NAME", help="proxies")
    parser.add_argument("--loads", type=_some_of(loads), default=loads, metavar="NAME,NAME")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--seconds", type=int, default=3, help="per measurement; default 3")
    parser.add_argument("--quick", action="store_true", help="1 round of 2 s each, ours only")
    parser.add_argument(
        "--before", type=Path, metavar="FOLDER", help="another checkout of ours to compare with"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds = 1, QUICK_SECONDS
    arguments.only = arguments.only or (["ours"] if arguments.quick else list(DEFAULT))
    if arguments.before:
        os.environ[BEFORE] = str(arguments.before.resolve())
        arguments.only.append("before")
    if arguments.rounds < 1 or arguments.seconds < QUICK_SECONDS:
        parser.error(f"--rounds must be >= 1, --seconds >= {QUICK_SECONDS}")
    return arguments


def main() -> int:
    loads = every_load()
    arguments = _arguments([load.name for load in loads])
    loads = [load for load in loads if load.name in arguments.loads]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    _install(arguments.only)
    where = machine()
    with ExitStack() as stack:
        bed = Bed(stack, int(os.environ.get("PORT_BASE", "29000")))
        run = Run(bed, loads, arguments.seconds)
        try:
            bed.start_backends()
        except NotStartedError as error:
            sys.exit(f"stub: {error}")
        run.start_proxies(arguments.only)
        neighbours = Neighbours(bed.cpu_s)
        for number in range(arguments.rounds):
            run.round(number)
        where += f"; others used {neighbours.share():.0%} of the machine meanwhile"
    measured = [(load, figures(load, run.samples[load.name])) for load in loads]
    print("\n\n".join([where, *(table(load.columns, f) for load, f in measured if f["proxies"])]))
    by_load: list[dict[str, Any]] = [found for _, found in measured]
    if judged := targets.judge(by_load):
        print("", *aligned(targets.rows(judged)), sep="\n")
    if arguments.json:
        whole = document(where, by_load, arguments.seconds, run.failed) | {"targets": judged}
        arguments.json.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n")
    erred = any(load["proxies"].get("ours", {}).get("errors") for load in by_load)
    return 1 if run.failed or erred else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
