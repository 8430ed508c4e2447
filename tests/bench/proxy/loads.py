"""The loads, and one measurement: a proxy under one load for some seconds.

CPU time and the backends' counters are read at both ends of a window inside wrk's run, when the
load is steady: connecting and parting stay outside. Per request or chunk = CPU seconds in the
window ÷ what the backends sent in it, by their own count. Latencies, errors and the events of
each stream are wrk's, of its whole run.
"""

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

from processes import Child, NotStartedError
from proxies import url

CHUNKS: Final = 64
TICK_MS: Final = 10
EVENTS: Final = CHUNKS + 1
"""Per stream: the chunks of content, then [DONE]."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the clients do, all of them at once, each its next request as soon as one is done."""

    name: str
    unit: str
    """What CPU is counted by; the backends count it under `counter`."""
    counter: str
    connections: int
    ramp_s: float
    """Until it is steady, at least."""

    def wrk_arguments(self) -> list[str]:
        """For load.lua."""
        if self.unit == "request":
            return ["unary"]
        return ["stream", str(self.connections), str(int(self.ramp_s * 1000)), str(EVENTS)]


LOADS: Final = (
    Load("unary", unit="request", counter="unary", connections=32, ramp_s=0.2),
    Load(
        "streams",
        unit="chunk",
        counter="events",
        connections=256,
        ramp_s=EVENTS * TICK_MS / 1000,
    ),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement."""

    cpu_us: float
    """CPU of the proxy per request or chunk."""
    per_s: float
    """Requests or chunks per second."""
    p50_ms: float
    """Of whole answers: for a stream, first byte sent to last byte read."""
    p99_ms: float
    counted: int
    """Requests or chunks in the window."""
    answers: int
    """That clients got in the whole run."""
    streams: int
    """Those of them that were streams with every event."""
    events: int
    """That clients read in their streams."""
    errors: dict[str, int]
    """By kind, those that were."""


def measure(
    load: Load, proxy: Child, port: int, backend_ports: Sequence[int], seconds: int
) -> Sample:
    """Put `load` on the proxy; raises `NotStartedError` when it does not answer any more."""
    began_s = time.monotonic()
    argv = ["wrk", "-t1", f"-c{load.connections}", f"-d{seconds}s", "--timeout", "10s"]
    argv += ["-s", str(Path(__file__).with_name("load.lua")), f"{url(port)}/v1/chat/completions"]
    with subprocess.Popen(
        [*argv, "--", *load.wrk_arguments()], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as wrk:
        time.sleep(load.ramp_s + 0.1)
        first = _read_counts(load, proxy, backend_ports)
        time.sleep(max(0.0, began_s + seconds - 0.1 - time.monotonic()))
        last = _read_counts(load, proxy, backend_ports)
        said, complaint = wrk.communicate()
    if wrk.returncode != 0:
        raise NotStartedError(f"wrk: {complaint.decode().strip()}")
    _settle(backend_ports)
    at_s, cpu_s, counted = (b - a for a, b in zip(first, last, strict=True))
    client = json.loads(said.decode().splitlines()[-1])
    return Sample(
        cpu_us=cpu_s * 1e6 / max(counted, 1),
        per_s=counted / at_s,
        p50_ms=client["p50_ms"],
        p99_ms=client["p99_ms"],
        counted=int(counted),
        answers=client["answers"],
        streams=client["whole_streams"],
        events=client["events"],
        errors={kind: n for kind, n in client["errors"].items() if n},
    )


def _read_counts(
    load: Load, proxy: Child, backend_ports: Sequence[int]
) -> tuple[float, float, float]:
    """Moment, CPU seconds of the proxy, what the backends sent: read as close as can be."""
    sent = sum(counters(port)[load.counter] for port in backend_ports)
    return time.monotonic(), proxy.cpu_s(), sent


def counters(backend_port: int) -> dict[str, int]:
    """What a stub backend sent so far."""
    connection = HTTPConnection("127.0.0.1", backend_port, timeout=5)
    try:
        connection.request("GET", "/stub/counters")
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return answer


def _settle(backend_ports: Sequence[int]) -> None:
    """Wait until the streams that their clients left have ended, 3 s at most."""
    until_s = time.monotonic() + 3.0
    while time.monotonic() < until_s:
        if not any(counters(port)["open_streams"] for port in backend_ports):
            return
        time.sleep(0.02)
