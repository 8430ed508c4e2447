"""What the sidecar costs its node: CPU, memory, answers, and what it misses.

    make bench-sidecar                       (three minutes)
    python tests/bench/bench_sidecar.py [--windows 3] [--seconds 3]

A real sidecar process; the engines are fakes (`fake_engines.py`, a process of its own), so are the
routers that poll or watch (`pollers.py`, `watchers.py`). The fakes are restless: every step moves
the KV usage, and two in three the running or the waiting, so that a document is pushed nearly as
often as it may be.

CPU is what the kernel counts of the sidecar's process tree, in nanoseconds. It is there whoever
else is running, but a neighbour who shares the core or its caches makes it twice as much, and a
process that wakes up for a moment finds nothing in them. Each figure is the median of `windows`
windows of `seconds` each, taken once the score's own window (5 s) is full. Latency is what a poller
sees, so the machine is in it: the floor is the same pollers at a server that has only a constant to
say.

Exits with 1 if a must is missed.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from proxy.processes import Child

HERE = Path(__file__).parent
WARM_UP_S = 5.5
POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Bar:
    """What must be, and what is aimed at: at most."""

    unit: str
    must: float | None
    aim: float | None


CPU = Bar("% of a core", 2.0, 0.5)
CPU_AMONG_POLLERS = Bar("% of a core", None, None)
MEMORY = Bar("MB", 60.0, 40.0)
LATENCY = Bar("ms", 2.0, 1.0)
FLOOR = Bar("ms", None, None)
DROPPED = Bar("steps", 0.0, 0.0)

STEPS_PER_S = 100
CROWD = 100


@dataclass(frozen=True, slots=True)
class Askers:
    """Who wants to know."""

    pollers: int = 0
    watchers: int = 0

    def __str__(self) -> str:
        if self.watchers:
            return f"{self.watchers} watch"
        return f"{self.pollers} poll 2/s" if self.pollers else "nobody asks"


NOBODY, TWO_POLL, TWO_WATCH = Askers(), Askers(pollers=2), Askers(watchers=2)
MANY_POLL = Askers(pollers=CROWD)
SITUATIONS = (
    # engines, steps per second of each, then who asks, one after the other
    (0, 0, (NOBODY,)),
    (8, 0, (NOBODY,)),
    (1, STEPS_PER_S, (NOBODY, TWO_WATCH)),
    (2, STEPS_PER_S, (NOBODY, TWO_POLL, TWO_WATCH)),
    (8, STEPS_PER_S, (NOBODY, TWO_POLL, TWO_WATCH, MANY_POLL)),
)


def cpu_s(child: Child) -> float:
    """Seconds on a CPU of the process and its children, all threads, to the nanosecond."""
    tasks = [task for pid in child.pids() for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def memory_mb(child: Child) -> tuple[float, float]:
    """Resident and proportional megabytes of the process and its children."""
    rss = pss = 0
    for pid in child.pids():
        fields = Path(f"/proc/{pid}/smaps_rollup").read_text().split()
        rss += int(fields[fields.index("Rss:") + 1])
        pss += int(fields[fields.index("Pss:") + 1])
    return rss / 1e3, pss / 1e3


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def fake_engines(
    path: Path, engines: int, steps_per_s: float
) -> Iterator[tuple[list[str], subprocess.Popen]]:
    """Run the fakes: the ports of their /health, and the process, which waits for a line."""
    argv = [sys.executable, HERE / "fake_engines.py", path, str(engines), str(steps_per_s)]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process.stdout.readline().split(), process
        finally:
            process.stdin.close()
            process.wait(timeout=10.0)


@contextmanager
def sidecar(path: Path, health_ports: list[str]) -> Iterator[tuple[Child, int]]:
    """Run a sidecar for the engines with these ports, until it listens."""
    port = free_port()
    argv = [sys.executable, "-m", "ullage_sidecar", "--socket", path, "--node", "bench"]
    argv += ["--listen", f"127.0.0.1:{port}"]
    for number, health_port in enumerate(health_ports):
        argv += ["--engine", f"fake-{number}=http://127.0.0.1:{health_port}"]
    with Child(argv, path.with_suffix(".log")) as child:
        while "listening" not in child.log.read_text():
            child.check_alive()
            time.sleep(0.05)
        yield child, port


@contextmanager
def constant_server(path: Path) -> Iterator[int]:
    """Run what answers every question with the same few kilobytes: the port."""
    port = free_port()
    with Child([sys.executable, HERE / "constant_server.py", str(port)], path) as child:
        while "listening" not in child.log.read_text():
            child.check_alive()
            time.sleep(0.05)
        yield port


def asked_by(askers: Askers, port: int, seconds: float) -> subprocess.Popen | None:
    """Start who asks, for so long."""
    if askers.watchers:
        argv = ["watchers.py", port, askers.watchers, seconds]
    elif askers.pollers:
        argv = ["pollers.py", port, askers.pollers, POLL_S, seconds]
    else:
        return None
    script, *arguments = map(str, argv)
    command = [sys.executable, HERE / script, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def answers(client: subprocess.Popen) -> dict:
    """What they saw, when they are done."""
    said, _ = client.communicate(timeout=60.0)
    if client.returncode:
        raise SystemExit("who asked has failed")
    return json.loads(said)


@dataclass(frozen=True, slots=True)
class Window:
    """One stretch of measuring."""

    cpu: float
    """% of a core."""
    seen: dict
    """What those who asked saw."""


def window(child: Child, port: int, askers: Askers, seconds: float) -> Window:
    """Measure once. The start of those who ask, and their last answers, are outside."""
    client = asked_by(askers, port, seconds + 2.0)
    if client:
        time.sleep(1.5)
    began_s, used_s = time.monotonic(), cpu_s(child)
    time.sleep(seconds)
    used_s, took_s = cpu_s(child) - used_s, time.monotonic() - began_s
    return Window(100.0 * used_s / took_s, answers(client) if client else {})


class Report:
    """The table, and whether every must is met."""

    def __init__(self) -> None:
        self.missed: list[str] = []
        print(f"{'':<58}{'median':>9}   {'of':<24} must   aim", flush=True)

    def line(self, what: str, figures: list[float], bar: Bar) -> None:
        """Print one figure beside its bar."""
        middle = statistics.median(figures)
        spread = " ".join(f"{figure:.2f}" for figure in figures)
        must, aim = ("    –" if limit is None else f"{limit:5g}" for limit in (bar.must, bar.aim))
        verdict = ""
        if bar.must is not None and middle > bar.must:
            verdict = "  MISSED"
            self.missed.append(what)
        print(f"{what:<58}{middle:9.2f}   {spread:<24}{must} {aim} {bar.unit}{verdict}", flush=True)


def measure(report: Report, asked: argparse.Namespace, directory: Path) -> None:
    """Go through the situations."""
    for engines, steps_per_s, everybody in SITUATIONS:
        path = directory / f"{engines}-{steps_per_s}.sock"
        with ExitStack() as stack:
            health_ports, fakes = stack.enter_context(fake_engines(path, engines, steps_per_s))
            child, port = stack.enter_context(sidecar(path, health_ports))
            fakes.stdin.write("go\n")
            fakes.stdin.flush()
            time.sleep(WARM_UP_S)
            name = f"{engines} engines x {steps_per_s} steps/s"
            for askers in everybody:
                runs = [window(child, port, askers, asked.seconds) for _ in range(asked.windows)]
                what, is_crowd = f"{name}, {askers}", askers is MANY_POLL
                cpu = CPU_AMONG_POLLERS if is_crowd else CPU
                report.line(f"CPU: {what}", [run.cpu for run in runs], cpu)
                for share, bar in (("p50_ms", FLOOR), ("p99_ms", LATENCY)) if is_crowd else ():
                    seen = [run.seen[share] for run in runs]
                    report.line(f"GET /v1/snapshots {share[:3]}: {what}", seen, bar)
            if engines == max(engines for engines, _, _ in SITUATIONS) and steps_per_s:
                rss, pss = memory_mb(child)
                report.line(f"resident memory: {name}", [rss], MEMORY)
                report.line(f"proportional memory: {name}", [pss], MEMORY)
            fakes.stdin.close()
            said = json.loads(fakes.stdout.readline())
            if steps_per_s:
                counted = received(port)
                report.line(
                    f"dropped by the senders, of {said['steps']}", [said["dropped"]], DROPPED
                )
                report.line("sent and not received", [said["steps"] - counted], DROPPED)


def received(port: int) -> int:
    """The steps that the sidecar counts."""
    time.sleep(0.1)
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    name = "ullage_sidecar_readings_received_total{"
    return int(sum(float(line.split()[1]) for line in lines if line.startswith(name)))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f}; Python {sys.version.split()[0]}")
    report = Report()
    with tempfile.TemporaryDirectory(prefix="ullage") as name:
        directory = Path(name)
        measure(report, asked, directory)
        with constant_server(directory / "constant.log") as port:
            floor = [
                answers(asked_by(MANY_POLL, port, asked.seconds))["p99_ms"]
                for _ in range(asked.windows)
            ]
        report.line(f"floor of p99: a constant, {CROWD} pollers x 2/s", floor, FLOOR)
    return int(bool(report.missed))


if __name__ == "__main__":
    sys.exit(main())
