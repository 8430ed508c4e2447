"""Loads whose client is wrk: so many connections, each its next request as soon as one is done.

CPU time and the backends' counters are read at both ends of a window inside wrk's run, when the
load is steady: connecting and parting stay outside. Per request or chunk = CPU seconds in the
window ÷ what the backends sent in it, by their own count. Latencies, errors and the events of
each stream are wrk's, of its whole run.
"""

import json
import math
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from processes import NotStartedError
from proxies import url
from sample import Column, Sample
from testbed import TOKENS, Bed, Proxy

SCRIPT: Final = Path(__file__).with_name("load.lua")
EDGE_S: Final = 0.15
"""Kept free between the window and both ends of the steady load."""


@dataclass(frozen=True, slots=True)
class WrkLoad:
    """Plain requests, or streams of `TOKENS` chunks when `tick_ms` is not 0."""

    name: str
    connections: int
    tick_ms: int = 0
    prompt_bytes: int = 600

    @property
    def once(self) -> bool:
        return False

    @property
    def unit(self) -> str:
        """What CPU is counted by."""
        return "chunk" if self.tick_ms else "request"

    @property
    def ramp_s(self) -> float:
        """Until it is steady: streams begin out of step, over the length of one."""
        return (TOKENS + 1) * self.tick_ms / 1000 if self.tick_ms else 0.2

    @property
    def title(self) -> str:
        stream = f" of {TOKENS} chunks, one per {self.tick_ms} ms tick" if self.tick_ms else ""
        return f"{self.name}: {self.connections:,} connections{stream}"

    @property
    def columns(self) -> Sequence[Column]:
        return (
            Column("cpu_us", f"CPU µs/{self.unit}", compared=True),
            Column("per_s", f"{self.unit}s/s", digits=0),
            Column("p50_ms", "p50 ms"),
            Column("p99_ms", "p99 ms"),
        )

    def prepare(self, bed: Bed, seconds: int) -> Mapping[str, Sample]:
        if self.tick_ms:
            bed.set_tick(self.tick_ms)
        return {}

    def measure(self, bed: Bed, proxy: Proxy, seconds: int) -> Sample:
        whole_s = seconds + math.ceil(self.ramp_s - EDGE_S)  # wrk takes whole seconds
        with self.running(proxy, whole_s) as wrk:
            first = self._read_counts(bed, proxy)
            time.sleep(whole_s - self.ramp_s - 2 * EDGE_S)
            last = self._read_counts(bed, proxy)
            client = finish(wrk)
        bed.settle()
        at_s, cpu_s, counted = (b - a for a, b in zip(first, last, strict=True))
        return Sample(
            figures={
                "cpu_us": cpu_s * 1e6 / max(counted, 1),
                "per_s": counted / at_s,
                **({key: client[key] for key in ("p50_ms", "p99_ms")} if client["answers"] else {}),
            },
            counts={
                "counted": int(counted),
                "answers": client["answers"],
                "whole_streams": client["whole_streams"],
                "events": client["events"],
            },
            errors={kind: n for kind, n in client["errors"].items() if n},
        )

    @contextmanager
    def running(
        self, proxy: Proxy, seconds: int, tokens: int = TOKENS
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start wrk and wait until the load is steady; it is ended at the latest when we leave."""
        argv = ["wrk", "-t1", f"-c{self.connections}", f"-d{seconds}s"]
        argv += ["--timeout", "15s", "-s", str(SCRIPT), f"{url(proxy.port)}/v1/chat/completions"]
        if self.tick_ms:
            ramp_ms = int(self.ramp_s * 1000)
            argv += ["--", "stream", *map(str, (self.connections, ramp_ms, tokens))]
        else:
            argv += ["--", "unary", str(self.prompt_bytes)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as wrk:
            try:
                time.sleep(self.ramp_s + EDGE_S)
                yield wrk
            finally:
                wrk.kill()

    def _read_counts(self, bed: Bed, proxy: Proxy) -> tuple[float, float, int]:
        """Moment, CPU seconds of the proxy, what the backends sent: read as close as can be."""
        sent = bed.counters()["events" if self.tick_ms else "unary"]
        return time.monotonic(), proxy.child.cpu_s(), sent


def finish(wrk: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Wait for wrk's end, and return what load.lua reports."""
    said, complaint = wrk.communicate()
    if wrk.returncode != 0:
        raise NotStartedError(f"wrk: {complaint.decode().strip()}")
    report: dict[str, Any] = json.loads(said.decode().splitlines()[-1])
    return report
