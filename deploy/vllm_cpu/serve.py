#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Start and stop a real vLLM server on this machine's CPU, for the demo and the tests.

Usage: python3 serve.py --venv VENV --model DIR --port PORT [--log FILE] [-- MORE VLLM FLAGS]

Standard library only, so any interpreter can import it; the server itself runs in VENV, which
build_env.py makes. Linux only (it reads /proc). Two servers fit in two cores: start both, then
wait for both.

    with CpuServer(Replica(venv, model, port=8001), log) as server:
        urlopen(server.url + "/v1/models")

Rule: what is started here is stopped here. vLLM is several processes; they form one process group,
which gets SIGTERM, then SIGKILL. That holds for every way out of `with`, Ctrl-C included; should
this interpreter itself be killed, a small leash process stops the group in its place.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

POLL_S = 0.2

# Waits for the end of the pipe on its standard input, which comes when the parent is gone.
LEASH = 'read -r _; kill -s TERM -- "-$1"; sleep "$2"; kill -s KILL -- "-$1"'


class ServerError(Exception):
    """The server did not start; the message says why, with the end of its log if it has one."""


@dataclass(frozen=True, slots=True)
class Replica:
    """What to serve, and how big.

    The KV cache holds `kv_blocks` x `block_size` tokens, one block less in use (vLLM keeps one):
    the defaults give 8,160. `max_seqs` requests run at once; the rest wait.
    """

    venv: Path
    model: Path
    port: int
    kv_blocks: int = 256
    block_size: int = 32
    max_seqs: int = 8
    name: str = "tiny"
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Where it answers, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"


def server_command(replica: Replica) -> list[str]:
    """Return the argument vector; `replica.flags` come last and so win."""
    return [
        str(replica.venv / "bin" / "vllm"),
        "serve",
        str(replica.model),
        *("--served-model-name", replica.name),
        *("--host", "127.0.0.1"),
        *("--port", str(replica.port)),
        *("--dtype", "bfloat16"),
        *("--block-size", str(replica.block_size)),
        *("--num-gpu-blocks-override", str(replica.kv_blocks)),
        *("--max-num-seqs", str(replica.max_seqs)),
        *("--distributed-executor-backend", "uni"),
        "--enforce-eager",
        *replica.flags,
    ]


def server_environment(replica: Replica, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment: `inherited`, then ours, then `replica.environment`.

    One thread per process, since replicas share few cores; no model hub, no telemetry. Bytecode
    may be cached even where the caller's setting forbids it: starts take thrice as long without.
    The API server and the engine core are two processes, as ever; the model runs inside the latter
    (executor `uni`), which spares a third one: 350 MiB and a third of the start. On a CPU vLLM
    allows that only with its V1 multiprocessing setting at 0, which `vllm serve` reads for this.
    """
    ours = {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; the number of blocks is set by flag
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # see above
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    kept = {k: v for k, v in inherited.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **ours, **replica.environment}


class CpuServer:
    """One vLLM server: `start`, `wait_ready`, `stop`, or all three by way of `with`.

    `log` receives what it prints (replaced at each start). `ready_within_s` counts from the start;
    a cold disk or a busy core can double the usual half minute. `grace_s` is the time between
    SIGTERM and SIGKILL. A stopped server can be started again.
    """

    def __init__(
        self, replica: Replica, log: Path, *, ready_within_s: float = 240.0, grace_s: float = 15.0
    ) -> None:
        self.replica = replica
        self.log = log
        self.url = replica.url
        self._ready_within_s = ready_within_s
        self._grace_s = grace_s
        self._process: subprocess.Popen[bytes] | None = None
        self._leash: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0

    @property
    def pid(self) -> int:
        """Process id of the API server, and of the process group. Raises if not started."""
        if self._process is None:
            raise ServerError(f"the server for {self.url} is not started")
        return self._process.pid

    def start(self) -> None:
        """Start the processes and return at once. Raises ServerError if the port is taken."""
        if self._process is not None:
            raise ServerError(f"the server for {self.url} is started already (pid {self.pid})")
        require_free(self.replica.port)
        command = server_command(self.replica)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._started_s = time.monotonic()
        with self.log.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    command,
                    env=server_environment(self.replica, os.environ),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise ServerError(f"cannot run {command[0]}: {error.strerror}") from error
        self._leash = subprocess.Popen(
            ["/bin/sh", "-c", LEASH, "leash", str(self.pid), str(self._grace_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait_ready(self) -> float:
        """Return the seconds from start to the first 200 of GET /health, or raise ServerError."""
        while True:
            waited_s = time.monotonic() - self._started_s
            if self.is_healthy():
                return waited_s
            if (status := self.exit_status()) is not None:
                raise ServerError(f"vllm exited with status {status}:\n{self.log_tail()}")
            if waited_s > self._ready_within_s:
                raise ServerError(f"not ready after {waited_s:.0f} s:\n{self.log_tail()}")
            time.sleep(POLL_S)

    def exit_status(self) -> int | None:
        """Return None while the API server runs; minus the signal's number if one killed it."""
        if self._process is None:
            raise ServerError(f"the server for {self.url} is not started")
        return self._process.poll()

    def wait_exit(self) -> NoReturn:
        """Wait until the server ends by itself, and raise ServerError with its last words."""
        while (status := self.exit_status()) is None:
            time.sleep(POLL_S)
        raise ServerError(f"vllm exited with status {status}:\n{self.log_tail()}")

    def is_healthy(self) -> bool:
        """Ask GET /health once, for one second at most."""
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=1.0) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """End every process of the server. Does nothing if it is not started."""
        if self._process is None:
            return
        end_group(self._process, self._grace_s)
        self._process = None
        if self._leash is not None:
            self._leash.kill()
            self._leash.communicate()
            self._leash = None

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "stopped" if self._process is None else f"pid {self._process.pid}"
        return f"<CpuServer {self.url} {state}, log {self.log}>"


def require_free(port: int) -> None:
    """Refuse a port on which somebody listens: their /health would pass for ours."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ServerError(f"port {port} of 127.0.0.1: {error.strerror}") from error


def end_group(leader: subprocess.Popen[bytes], grace_s: float) -> None:
    """SIGTERM the leader's process group, SIGKILL what is left after `grace_s`, reap the leader."""
    group = leader.pid
    for signal_number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        with suppress(ProcessLookupError):
            os.killpg(group, signal_number)
        deadline_s = time.monotonic() + patience_s
        while members := running_members(group):
            if time.monotonic() > deadline_s:
                break
            time.sleep(0.05)
        if not members:
            break
    leader.wait()


def running_members(group: int) -> list[int]:
    """Return the ids of the processes in a group, without those that ended and await reaping."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # "pid (name) state parent group ...", where the name may hold spaces and brackets
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            found.append(int(entry.name))
    return found


def main() -> int:
    """Serve until Ctrl-C, SIGTERM or the server's own end."""
    parser = argparse.ArgumentParser(description="run vLLM on the CPU until Ctrl-C")
    parser.add_argument("--venv", type=Path, required=True, help="made by build_env.py")
    parser.add_argument("--model", type=Path, required=True, help="made by make_tiny_model.py")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--log", type=Path, help="default: vllm-PORT.log")
    parser.add_argument("flags", nargs="*", help="more flags for vllm serve, after --")
    asked = parser.parse_args()
    log = asked.log or Path(f"vllm-{asked.port}.log")
    server = CpuServer(
        Replica(asked.venv, asked.model, port=asked.port, flags=tuple(asked.flags)), log
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server.start()
        print(f"{server!r} starting", flush=True)
        print(f"{server.url} ready in {server.wait_ready():.1f} s", flush=True)
        server.wait_exit()
    except ServerError as error:
        print(f"serve: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    finally:
        server.stop()


if __name__ == "__main__":
    sys.exit(main())
