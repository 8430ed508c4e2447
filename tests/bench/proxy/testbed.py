"""What runs while a benchmark does: stub backends, a stub sidecar, proxies; and their tools.

One backend process listens on eight ports, eight replicas to the proxies: on two cores, eight
processes would take turns with what is measured. Ports are PORT_BASE + 1 and up.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final

import install_peers
from processes import Child, NotStartedError, check_free
from proxies import PROXIES, Argv, Site, url

from ullage_shared.snapshot import PATH as SNAPSHOTS

HERE: Final = Path(__file__).resolve().parent
FOLDER: Final = install_peers.ROOT / ".build" / "bench-proxy"
REPLICAS: Final = 8
TOKENS: Final = 64
"""Chunks of content in a stream."""
TICK_MS: Final = 10
"""Unless a load sets another."""
START_LIMIT_S: Final = 20.0
QUESTION: Final = '{"model":"tiny","messages":[{"role":"user","content":"hello"}]}'


@dataclass(frozen=True, slots=True)
class Proxy:
    """One that runs."""

    name: str
    child: Child
    port: int
    admin_port: int


class Bed:
    """Starts processes; everything stops with `stack`."""

    def __init__(self, stack: ExitStack, port_base: int) -> None:
        self._stack = stack
        self._port_base = port_base
        self.folder = FOLDER / str(port_base)  # two runs at once keep out of each other's way
        self.folder.mkdir(parents=True, exist_ok=True)
        self.backend_ports = tuple(range(port_base + 1, port_base + 1 + REPLICAS))
        self._sidecar_port = port_base + 9
        self._children: list[Child] = []
        self.proxies: list[Proxy] = []
        """Those that run and answer."""
        _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # children inherit it

    def start_backends(self, processes: int = 1) -> list[Child]:
        """Start them, and the sidecar; without them there is nothing to measure."""
        share = REPLICAS // processes
        children = [self.start_backend(n * share, share) for n in range(processes)]
        argv: Argv = [sys.executable, HERE / "stub_sidecar.py", str(self._sidecar_port)]
        child = self._start("sidecar", [*argv, *map(url, self.backend_ports)], self._sidecar_port)
        await_ok(child, self._sidecar_port, "GET", SNAPSHOTS)
        return children

    def start_backend(self, first: int, count: int) -> Child:
        """Start the process that is replicas `first` … `first + count - 1`."""
        port = self.backend_ports[first]
        argv: Argv = [build("backend"), f"{port}-{port + count - 1}", str(TOKENS), str(TICK_MS)]
        child = self._start(f"backend-{port}", argv, port)
        await_ok(child, port, "GET", "/health")
        return child

    def start_proxy(self, name: str) -> Proxy:
        """Start one and wait for its first good answer; raises `NotStartedError`."""
        port = self._port_base + 10 * (1 + list(PROXIES).index(name))
        site = Site(self.folder, port, port + 1, self.backend_ports, self._sidecar_port)
        child = self._start(name, PROXIES[name](site), port)
        await_ok(child, port, "POST", "/v1/chat/completions", QUESTION)
        if name in (
            "ours",
            "before",
        ):  # else its shorter way would be measured: no score, own counts
            await_ok(child, site.admin_port, "GET", "/replicas", good=_all_have_scores)
        proxy = Proxy(name, child, port, site.admin_port)
        self.proxies.append(proxy)
        return proxy

    def set_tick(self, tick_ms: int) -> None:
        """Have every stream emit a chunk each `tick_ms`."""
        fetch(self.backend_ports[0], f"/stub/tick/{tick_ms}")

    def counters(self) -> dict[str, int]:
        """What the stub backends (of one process) sent so far."""
        counted: dict[str, int] = json.loads(fetch(self.backend_ports[0], "/stub/counters"))
        return counted

    def cpu_s(self) -> float:
        """CPU seconds of the benchmark itself and of what it started."""
        return sum(os.times()[:4]) + sum(child.cpu_s() for child in self._children if child.alive)

    def settle(self, limit_s: float = 3.0) -> None:
        """Wait until the streams that their clients left have ended, `limit_s` at most."""
        until_s = time.monotonic() + limit_s
        while time.monotonic() < until_s and self.counters()["open_streams"]:
            time.sleep(0.02)

    def _start(self, name: str, argv: Argv, port: int) -> Child:
        check_free(port)
        child = self._stack.enter_context(Child(argv, self.folder / f"{name}.log"))
        self._children.append(child)
        return child


def build(name: str) -> Path:
    """Compile NAME.c unless that was done."""
    source, program = HERE / f"{name}.c", FOLDER / name
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        program.parent.mkdir(parents=True, exist_ok=True)
        fresh = program.with_suffix(f".{os.getpid()}")
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-o", fresh, source], check=True)
        fresh.replace(program)
    return program


def fetch(port: int, path: str) -> bytes:
    """GET; raises `NotStartedError` unless it is a 200."""
    status, said = _ask(port, "GET", path, None)
    if status != HTTPStatus.OK:
        raise NotStartedError(f"port {port}: GET {path}: status {status}")
    return said


def await_ok(
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
        try:
            status, said = _ask(port, method, path, body)
            if status == HTTPStatus.OK and good(said):
                return
            seen = f"status {status}, {said[:80]!r}"
        except (OSError, HTTPException) as error:
            seen = str(error)
        time.sleep(0.1)
    raise NotStartedError(f"{method} {path}: not good within {START_LIMIT_S:.0f} s, last: {seen}")


def _ask(port: int, method: str, path: str, body: str | None) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _all_have_scores(replicas_page: bytes) -> bool:
    page: dict[str, Any] = json.loads(replicas_page)
    scored = [row for row in page["replicas"] if row["capacity_score"] is not None]
    return bool(page["routing_by"] == "score") and len(scored) == REPLICAS
