"""Latency that a proxy adds to plain requests at half load: an open loop at a constant rate.

The rate is half of what vllm-router takes at most (without it in the run: the first proxy), by wrk,
the better of two tries; it is the same for all. Latencies count from the moment a request was due.
Each figure is the median of SLICES short runs: a stall of the machine spoils one of them. Added =
the proxy's figure − that of the same load on a backend itself, taken in the same round. A proxy
whose requests/s stay below the rate is over its limit there: its figures say only that.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from pace import pace
from sample import Column, Sample
from testbed import QUESTION, Bed, Proxy
from wrk_load import WrkLoad

YARDSTICK: Final = "vllm-router"
CONNECTIONS: Final = 64
SLICES: Final = 3
DIRECT: Final = "no proxy"


class HalfLoad:
    """The load; remembers the rate, and the round's latencies without a proxy."""

    name: Final = "half-load"
    once: Final = False
    columns: Final[Sequence[Column]] = (
        Column("added_p99_ms", "added p99 ms", digits=2, compared=True),
        Column("added_p50_ms", "added p50 ms", digits=2, compared=True),
        Column("p50_ms", "p50 ms", digits=2),
        Column("p99_ms", "p99 ms", digits=2),
        Column("per_s", "requests/s", digits=0),
    )

    def __init__(self) -> None:
        self._rate_per_s = 0.0
        self._half_of = ""
        self._direct: Mapping[str, float] = {}

    @property
    def title(self) -> str:
        return (
            f"{self.name}: latency added at a constant {self._rate_per_s:,.0f} requests/s "
            f"(half of {self._half_of}'s most), {CONNECTIONS} connections"
        )

    def prepare(self, bed: Bed, seconds: int) -> Mapping[str, Sample]:
        if not self._rate_per_s:
            by_name = {proxy.name: proxy for proxy in bed.proxies}
            proxy = by_name.get(YARDSTICK) or bed.proxies[0]
            most = WrkLoad("most", connections=32)
            tries = [most.measure(bed, proxy, seconds).figures["per_s"] for _ in range(2)]
            self._rate_per_s, self._half_of = max(tries) / 2, proxy.name
        direct = self._run(bed, bed.backend_ports[0], seconds)
        self._direct = direct.figures
        return {DIRECT: direct}

    def measure(self, bed: Bed, proxy: Proxy, seconds: int) -> Sample:
        proxy.child.check_alive()
        sample = self._run(bed, proxy.port, seconds)
        added = {f"added_{key}": sample.figures[key] - self._direct[key] for key in self._direct}
        return Sample({**sample.figures, **added}, sample.counts, sample.errors)

    def _run(self, bed: Bed, port: int, seconds: int) -> Sample:
        slices = [self._slice(bed, port, max(1.0, seconds / SLICES)) for _ in range(SLICES)]
        errors: Counter[str] = Counter()
        for each in slices:
            errors.update(each["errors"])
        return Sample(
            {key: median(each[key] for each in slices) for key in ("p50_ms", "p99_ms", "per_s")},
            {"answers": sum(each["answers"] for each in slices)},
            errors,
        )

    def _slice(self, bed: Bed, port: int, seconds: float) -> dict[str, Any]:
        with pace(
            port,
            "/v1/chat/completions",
            rate_per_s=self._rate_per_s,
            seconds=seconds,
            connections=CONNECTIONS,
            body=_question(bed.folder),
        ) as client:
            return client.report()


def _question(folder: Path) -> Path:
    path = folder / "question.json"
    path.write_text(QUESTION)
    return path
