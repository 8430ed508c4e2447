"""Processes that the benchmark starts: their log, their CPU time, their end.

CPU time is the kernel's account of the whole tree (`/proc/PID/stat`: all threads, living children
and those already reaped), in ticks of 10 ms: it counts what a process used, whoever else was
running. A child dies with us, even when we are killed (`setpriv --pdeathsig`).
"""

import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


class NotStartedError(Exception):
    """A process that did not come up, or did not stay up: one line with its last words."""


class Child:
    """One started process and its children; a context that ends them."""

    def __init__(self, argv: Sequence[str | Path], log: Path) -> None:
        self.log = log
        command = ["setpriv", "--pdeathsig", "TERM", *map(str, argv)]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin"},  # nginx, haproxy
                start_new_session=True,
            )

    def cpu_s(self) -> float:
        """Seconds of CPU used so far; of a process that ended, `NotStartedError`."""
        self.check_alive()
        return TICK_S * sum(_cpu_ticks(pid) for pid in self.pids())

    def pids(self) -> list[int]:
        """Of it and all its children, itself first."""
        return _tree(self._process.pid)

    @property
    def alive(self) -> bool:
        """Has it not ended?"""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it at once, as a crash would."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def check_alive(self) -> None:
        """Raise `NotStartedError` with its last words if it ended."""
        if (status := self._process.poll()) is not None:
            words = self.log.read_text(errors="replace").strip().splitlines()
            last = words[-1] if words else "it said nothing"
            raise NotStartedError(f"ended with status {status}: {last}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ask its process group to end, then make it."""
        for request in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, request)
                self._process.wait(timeout=2.0)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue


def check_free(port: int) -> None:
    """Raise `NotStartedError` when somebody listens there already: we would measure them."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise NotStartedError(f"port {port}: {error.strerror}") from error


def _tree(pid: int) -> list[int]:
    """`pid` and all that descends from it."""
    found = [pid]
    for parent in found:  # grows while it is walked
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += map(int, task.read_text().split())
            except FileNotFoundError:
                continue  # a thread that ended just now
    return found


def _cpu_ticks(pid: int) -> int:
    """User and system ticks of a process and of the children it has reaped; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(map(int, fields[11:15]))
