"""What the plugin costs a whole vLLM server: tokens per second with it ÷ without it.

    make bench-vllm

Two servers on the CPU, one reporting to a listener, one with `ULLAGE_SOCKET=`. Each pair loads one
and then the other for the same number of tokens, in turns of order, so that a slow minute of the
machine falls on both. Printed: each pair's ratio, their median, the quartiles. Only a quiet
machine tells one percent: a neighbour on the same cores moves a pair by twenty.

Target: ≥ 0.998, must be ≥ 0.99 (of the median).
"""

import argparse
import http.client
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from vllm_cpu.serve import CpuServer, Replica

TOKENS = 128
AT_ONCE = 8

LISTENER = Path(__file__).with_name("listener.py")


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


def tokens_per_s(port: int, requests: int) -> float:
    """Load one server with `AT_ONCE` requests at a time."""
    started_s = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(complete, [port] * requests))
    return requests * TOKENS / (time.monotonic() - started_s)


def main() -> int:
    """Start both servers, print a line per pair and the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--requests", type=int, default=16)
    asked = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ullage")))
        path = directory / "readings.sock"
        listener = stack.enter_context(
            subprocess.Popen(
                [sys.executable, LISTENER, path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
        stack.callback(listener.communicate)
        assert listener.stdout is not None
        listener.stdout.readline()
        servers = {}
        for name, where in (("with", str(path)), ("without", "")):
            replica = Replica(
                asked.venv, asked.model, port=free_port(), environment={"ULLAGE_SOCKET": where}
            )
            servers[name] = CpuServer(replica, directory / f"{name}.log")
            stack.callback(servers[name].stop)
            servers[name].start()
        for server in servers.values():
            server.wait_ready()
            tokens_per_s(server.replica.port, AT_ONCE)  # the first requests are slow
        ratios = []
        for pair in range(asked.pairs):
            order = ("with", "without") if pair % 2 else ("without", "with")
            speed = {
                name: tokens_per_s(servers[name].replica.port, asked.requests) for name in order
            }
            ratios.append(speed["with"] / speed["without"])
            print(
                f"pair {pair + 1}: {speed['with']:.0f} tokens/s with, "
                f"{speed['without']:.0f} without, ratio {ratios[-1]:.4f}",
                flush=True,
            )
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"median ratio {middle:.4f}, quartiles {low:.4f} to {high:.4f}, of {len(ratios)} pairs")
    return int(middle < 0.99)


if __name__ == "__main__":
    sys.exit(main())
