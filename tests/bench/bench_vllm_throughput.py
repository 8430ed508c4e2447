"""What the plugin costs a whole vLLM server: the same server with it and without, by turns.

    make bench-vllm        (six minutes)

One server on the CPU under steady load, reporting to a listener. A second plugin, of this benchmark
alone, puts a switch before the first one's `record()`: while it is off a step ends there, as with
`ULLAGE_SOCKET=` (the heartbeat, once a second, goes on). It turns after every `BLOCK` steps, on,
off, off, on, and notes the time, the tokens and the CPU used by then. So both sides share whatever
the machine does within a tenth of a second. Two servers side by side would differ by more than the
plugin: by their memory's layout alone, or by the core that a neighbour takes.

Of each two blocks that follow one another, with ÷ without:

* throughput: tokens per second;
* work: tokens per second of CPU, the API server's and the engine core's together. Where cores are
  short, this decides throughput; a neighbour moves it less;
* API server: the same of the one process that `record()` runs in.

Printed: the median of the pairs, and where the true median lies with 95 % confidence (between two
order statistics, by the sign test: nothing is assumed of the noise).

Must be ≥ 0.99, target ≥ 0.998, of throughput and of work. Exits with 1 where that is refuted: the
whole interval lies below.
"""

import argparse
import http.client
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from vllm_cpu.serve import CpuServer, Replica

MUST = 0.99
TOKENS = 512
AT_ONCE = 8
BLOCK = 32

LISTENER = Path(__file__).with_name("listener.py")
SWITCH = """
import itertools, os, time
from pathlib import Path
from ullage_sidecar.vllm_plugin import UllageStatLogger
from vllm.v1.metrics.loggers import StatLoggerBase

class Bystander(StatLoggerBase):
    def __init__(self, vllm_config, engine_index=0): pass
    def record(self, *args, **kwargs): pass
    def log_engine_initialized(self): pass

log = os.open(os.environ["ULLAGE_BENCH_LOG"], os.O_WRONLY | os.O_APPEND)
turns = itertools.cycle([1, 0, 0, 1])
is_on, steps, tokens = 1, 0, 0
record = UllageStatLogger.record

def cores():
    tasks = Path("/proc/self/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]

def cpu_s(pid):
    try:
        return time.clock_gettime((~pid << 3) | 2)  # the clock of that process
    except OSError:
        return 0.0

def switched(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0):
    global is_on, steps, tokens, children
    if is_on:
        record(self, scheduler_stats, iteration_stats, mm_cache_stats, engine_idx)
    steps += 1
    if iteration_stats is not None:
        tokens += iteration_stats.num_generation_tokens
    if steps % BLOCK == 0:
        if steps == BLOCK:
            children = cores()
        is_on = next(turns)
        spent = time.process_time(), sum(map(cpu_s, children))
        os.write(log, ("%d %r %d %r %r\\n" % (is_on, time.monotonic(), tokens, *spent)).encode())

UllageStatLogger.record = switched
""".replace("BLOCK", str(BLOCK))


def install_switch(directory: Path) -> None:
    """Make the second plugin, where PYTHONPATH is to point."""
    (directory / "switch.py").write_text(SWITCH)
    about = directory / "switch-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: switch\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[vllm.stat_logger_plugins]\nswitch = switch:Bystander\n"
    )


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def complete(port: int) -> None:
    """Ask for `TOKENS` tokens and wait for them."""
    body = {"model": "tiny", "prompt": "import os", "max_tokens": TOKENS, "ignore_eos": True}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    with connection.getresponse() as response:
        response.read()
        if response.status != 200:
            raise SystemExit(f"vLLM answered {response.status}")
    connection.close()


def load(port: int, seconds: float) -> None:
    """Keep `AT_ONCE` requests running for so long."""
    until_s = time.monotonic() + seconds

    def client() -> None:
        while time.monotonic() < until_s:
            complete(port)

    clients = [threading.Thread(target=client) for _ in range(AT_ONCE)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()


class Turn(NamedTuple):
    """What stood when the switch was turned, and to what."""

    is_on: bool
    at_s: float
    tokens: int
    api_s: float
    core_s: float


def turns_in(log: Path) -> list[Turn]:
    """Read what the second plugin noted."""
    rows = (line.split() for line in log.read_text().splitlines())
    return [Turn(row[0] == "1", float(row[1]), int(row[2]), *map(float, row[3:])) for row in rows]


def per_block(turns: list[Turn]) -> list[tuple[bool, dict[str, float]]]:
    """Return with or without, and tokens per second of each kind, of every block."""
    blocks = []
    for begun, ended in pairwise(turns):
        tokens, api_s = ended.tokens - begun.tokens, ended.api_s - begun.api_s
        seconds = {
            "throughput": ended.at_s - begun.at_s,
            "work": api_s + ended.core_s - begun.core_s,
            "API server": api_s,
        }
        blocks.append((begun.is_on, {what: tokens / spent for what, spent in seconds.items()}))
    return blocks


def interval(ratios: list[float]) -> tuple[float, float]:
    """Where the median of what they are drawn from lies, with 95 % confidence or more."""
    ordered, count = sorted(ratios), len(ratios)
    rank, below = 0, 0.5**count
    while below <= 0.025 and rank < count // 2:
        rank += 1
        below += math.exp(
            math.lgamma(count + 1)
            - math.lgamma(rank + 1)
            - math.lgamma(count - rank + 1)
            + count * math.log(0.5)
        )
    return ordered[max(0, rank - 1)], ordered[min(count - 1, count - rank)]


def summary(turns: list[Turn]) -> int:
    """Print what is known by now; 1 if the must is refuted."""
    blocks = per_block(turns)
    pairs = list(zip(blocks[::2], blocks[1::2], strict=False))
    if len(pairs) < 10:
        raise SystemExit(f"{len(pairs)} pairs: too few to say anything")
    refuted = False
    for what in blocks[0][1]:
        ratios = []
        for one, other in pairs:
            on, off = (one[1], other[1]) if one[0] else (other[1], one[1])
            ratios.append(on[what] / off[what])
        low, high = interval(ratios)
        missed = high < MUST and what != "API server"
        refuted = refuted or missed
        print(
            f"{what + ':':<12} with ÷ without {statistics.median(ratios):.4f}, 95 %: {low:.4f} to "
            f"{high:.4f}, of {len(ratios)} pairs{'  MISSED' if missed else ''}"
        )
    return int(refuted)


def main() -> int:
    """Start the server, load it, print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=300.0)
    asked = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ullage")))
        path, log = directory / "readings.sock", directory / "turns"
        log.touch()
        install_switch(directory)
        listener = stack.enter_context(
            subprocess.Popen(
                [sys.executable, LISTENER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        )
        stack.callback(listener.communicate)
        assert listener.stdout is not None
        listener.stdout.readline()
        environment = {
            "ULLAGE_SOCKET": str(path),
            "ULLAGE_BENCH_LOG": str(log),
            "PYTHONPATH": ":".join(filter(None, (str(directory), os.environ.get("PYTHONPATH")))),
        }
        replica = Replica(asked.venv, asked.model, port=free_port(), environment=environment)
        server = stack.enter_context(CpuServer(replica, directory / "vllm.log"))
        load(server.replica.port, 5.0)  # the first requests are slow
        warm = len(turns_in(log))
        load(server.replica.port, asked.seconds)
        turns = turns_in(log)[warm:]
        tokens, seconds = turns[-1].tokens - turns[0].tokens, turns[-1].at_s - turns[0].at_s
        print(f"{tokens / seconds:.0f} tokens/s, {len(turns) * BLOCK / seconds:.0f} steps/s")
        return summary(turns)


if __name__ == "__main__":
    sys.exit(main())
