"""Long prompts, many at once; and how long a short request waits meanwhile.

150 connections, each with 220 KB of prompt, its next as soon as one is answered. Meanwhile 50
times a second, in an open loop, `GET /health` goes through the proxy's own port: the same short
request for all, whether a proxy answers it itself or passes it on. Of ours, the admin port's
`/healthz` is asked, too, as an orchestrator would.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final

from pace import Paced, pace
from sample import Column, Sample
from testbed import Bed, Proxy
from wrk_load import WrkLoad

PROBES_PER_S: Final = 50.0
PROBE_CONNECTIONS: Final = 64


class Prompts:
    """The load."""

    name: Final = "prompts"
    once: Final = False
    columns: Final[Sequence[Column]] = (
        Column("per_s", "requests/s", digits=0, compared=True),
        Column("cpu_us", "CPU µs/request", compared=True),
        Column("p50_ms", "p50 ms"),
        Column("p99_ms", "p99 ms"),
        Column("health_p50_ms", "/health p50 ms"),
        Column("health_p99_ms", "/health p99 ms", compared=True),
        Column("admin_p99_ms", "admin /healthz p99 ms"),
    )

    def __init__(self) -> None:
        self._load = WrkLoad(self.name, connections=150, prompt_bytes=220_000)

    @property
    def title(self) -> str:
        return f"{self._load.title}, prompts of {self._load.prompt_bytes // 1000} KB"

    def prepare(self, bed: Bed, seconds: int) -> Mapping[str, Sample]:
        return {}

    def measure(self, bed: Bed, proxy: Proxy, seconds: int) -> Sample:
        with ExitStack() as stack:
            health = stack.enter_context(_probe(proxy.port, "/health", seconds))
            admin = None
            if proxy.name in ("ours", "before"):
                admin = stack.enter_context(_probe(proxy.admin_port, "/healthz", seconds))
            sample = self._load.measure(bed, proxy, seconds)
            said = health.report()
            figures = {**sample.figures, **_latencies("health", said)}
            errors = {**sample.errors, **_renamed("/health", said)}
            if admin:
                said = admin.report()
                figures |= _latencies("admin", said)
                errors |= _renamed("/healthz", said)
        return Sample(figures, sample.counts, errors)


def _probe(port: int, path: str, seconds: int) -> AbstractContextManager[Paced]:
    return pace(port, path, rate_per_s=PROBES_PER_S, seconds=seconds, connections=PROBE_CONNECTIONS)


def _latencies(name: str, said: Mapping[str, Any]) -> dict[str, float]:
    return {f"{name}_p50_ms": said["p50_ms"], f"{name}_p99_ms": said["p99_ms"]}


def _renamed(path: str, said: Mapping[str, Any]) -> dict[str, int]:
    return {f"{path} {kind}": n for kind, n in said["errors"].items()}
