"""CPU per plain request and per streamed chunk: our router beside other proxies, in one run.

    python tests/bench/proxy/bench.py [--quick] [--only ours,nginx] [--rounds 5] [--json FILE]

Stub backends, a stub sidecar and every proxy run on loopback (PORT_BASE and up, default 29000),
wrk is the client. In each round every proxy is measured under each load, in an order that rotates,
so that noise hits all alike; medians and ratios are what counts. Two to three minutes by default;
`--quick` is one short round, to see that all of it works.

What is missing is installed: Debian packages (where apt-get may run), peers from PyPI.
Exit status 1: a proxy could not be measured, or ours made errors.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final

import install_peers
from loads import CHUNKS, LOADS, TICK_MS, Load, Sample, measure
from processes import Child, NotStartedError, check_free
from proxies import DEFAULT, PROXIES, SYSTEM_PACKAGES, Argv, Site, url
from report import document, figures, machine, table

from ullage_shared.snapshot import PATH as SNAPSHOTS

HERE: Final = Path(__file__).resolve().parent
FOLDER: Final = install_peers.ROOT / ".build" / "bench-proxy"
START_LIMIT_S: Final = 20.0
QUICK_SECONDS: Final = 2
QUESTION: Final = '{"model":"tiny","messages":[{"role":"user","content":"hello"}]}'


class Bench:
    """What runs: backends, sidecar, proxies. Everything stops with `stack`."""

    def __init__(self, stack: ExitStack, port_base: int) -> None:
        self._stack = stack
        self._port_base = port_base
        self._folder = FOLDER / str(port_base)  # two runs at once keep out of each other's way
        self._folder.mkdir(parents=True, exist_ok=True)
        self._backend_ports = (port_base + 1, port_base + 2)
        self._sidecar_port = port_base + 3
        self._proxies: dict[str, tuple[Child, int]] = {}
        self.failed: dict[str, str] = {}

    def start_backends(self) -> None:
        """Build and start them, and the sidecar; without them there is nothing to measure."""
        program = build_backend()
        backends = [url(port) for port in self._backend_ports]
        for port in self._backend_ports:
            argv: Argv = [program, str(port), str(CHUNKS), str(TICK_MS)]
            _await_ok(self._start(f"backend-{port}", argv, port), port, "GET", "/health")
        argv = [sys.executable, HERE / "stub_sidecar.py", str(self._sidecar_port), *backends]
        child = self._start("sidecar", argv, self._sidecar_port)
        _await_ok(child, self._sidecar_port, "GET", SNAPSHOTS)

    def start_proxy(self, name: str) -> None:
        """Start one and wait for its first good answer; on failure, say so and go on."""
        port = self._port_base + 10 * (1 + list(PROXIES).index(name))
        site = Site(self._folder, port, port + 1, self._backend_ports, self._sidecar_port)
        try:
            child = self._start(name, PROXIES[name](site), port)
            _await_ok(child, port, "POST", "/v1/chat/completions", QUESTION)
            if name == "ours":  # else its shorter way would be measured: no score, own counts
                _await_ok(child, site.admin_port, "GET", "/replicas", good=_routes_by_score)
        except NotStartedError as error:
            self._give_up(name, error)
        else:
            self._proxies[name] = (child, port)

    def run(self, rounds: int, seconds: int) -> dict[Load, dict[str, list[Sample]]]:
        """Measure every proxy under every load, `rounds` times."""
        samples: dict[Load, dict[str, list[Sample]]] = {
            load: {name: [] for name in self._proxies} for load in LOADS
        }
        for number in range(rounds):
            for load in LOADS:
                order = list(self._proxies)
                turn = number % max(len(order), 1)
                for name in order[turn:] + order[:turn]:
                    _progress(f"round {number + 1}/{rounds}: {load.name}, {name}")
                    child, port = self._proxies[name]
                    try:
                        sample = measure(load, child, port, self._backend_ports, seconds)
                    except NotStartedError as error:
                        self._give_up(name, error)
                        del self._proxies[name]
                        continue
                    samples[load][name].append(sample)
        _progress("")
        return samples

    def _start(self, name: str, argv: Argv, port: int) -> Child:
        check_free(port)
        return self._stack.enter_context(Child(argv, self._folder / f"{name}.log"))

    def _give_up(self, name: str, error: NotStartedError) -> None:
        self.failed[name] = str(error)
        print(f"{name}: not measured: {error}", file=sys.stderr)


def build_backend() -> Path:
    """Compile backend.c unless that was done."""
    source, program = HERE / "backend.c", FOLDER / "backend"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        fresh = program.with_suffix(f".{os.getpid()}")
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-o", fresh, source], check=True)
        fresh.replace(program)
    return program


def _await_ok(
    child: Child,
    port: int,
    method: str,
    path: str,
    body: str | None = None,
    good: Callable[[bytes], bool] = lambda _: True,
) -> None:
    """Return after its first good 200, or raise `NotStartedError` with what was seen instead."""
    until_s = time.monotonic() + START_LIMIT_S
    seen = "nothing"
    while time.monotonic() < until_s:
        child.check_alive()
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said = answer.read()
            if answer.status == HTTPStatus.OK and good(said):
                return
            seen = f"status {answer.status}, {said[:80]!r}"
        except (OSError, HTTPException) as error:
            seen = str(error)
        finally:
            connection.close()
        time.sleep(0.1)
    raise NotStartedError(f"{method} {path}: not good within {START_LIMIT_S:.0f} s, last: {seen}")


def _routes_by_score(replicas_page: bytes) -> bool:
    return bool(json.loads(replicas_page)["routing_by"] == "score")


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


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in PROXIES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(PROXIES)}")
    return names


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=_names, default=list(DEFAULT), metavar="NAME,NAME")
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--seconds", type=int, default=3, help="per measurement; default 3")
    parser.add_argument("--quick", action="store_true", help="1 round of 2 s each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds = 1, QUICK_SECONDS
    if arguments.rounds < 1 or arguments.seconds < QUICK_SECONDS:
        parser.error(f"--rounds must be >= 1, --seconds >= {QUICK_SECONDS}")
    return arguments


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    _install(arguments.only)
    where = machine()
    with ExitStack() as stack:
        bench = Bench(stack, int(os.environ.get("PORT_BASE", "29000")))
        try:
            bench.start_backends()
        except NotStartedError as error:
            sys.exit(f"stub: {error}")
        for name in arguments.only:
            bench.start_proxy(name)
        samples = bench.run(arguments.rounds, arguments.seconds)
    loads: list[dict[str, Any]] = [
        figures(load, {name: s for name, s in by_proxy.items() if s})
        for load, by_proxy in samples.items()
    ]
    print("\n\n".join([where, *(table(load) for load in loads if load["proxies"])]))
    if arguments.json:
        whole = document(where, loads, arguments.seconds, bench.failed)
        arguments.json.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n")
    erred = any(load["proxies"].get("ours", {}).get("errors") for load in loads)
    return 1 if bench.failed or erred else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
