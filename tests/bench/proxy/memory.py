"""Memory of a proxy, idle and per open stream: `/proc/PID/smaps_rollup` of all its processes.

Measured first of all loads and once, in a process that has done little yet: what earlier streams
left in its allocator would hide what the next ones take. Idle = after a second of plain requests.
Per stream = growth of private memory (nobody else's pages) ÷ streams, with all of them open and
some chunks through: slow ones, so that every proxy keeps up. The kernel's socket buffers belong to
no process and are not in it.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from processes import Child, NotStartedError
from sample import Column, Sample
from testbed import TICK_MS, Bed, Proxy
from wrk_load import WrkLoad, finish

STREAMS: Final = 1024
ENDLESS_TOKENS: Final = 1_000_000
TICK_OF_STREAMS_MS: Final = 250
OPEN_LIMIT_S: Final = 15.0


class Memory:
    """The load."""

    name: Final = "memory"
    once: Final = True
    title: Final = f"memory: idle after some requests, and with {STREAMS:,} open streams"
    columns: Final[Sequence[Column]] = (
        Column("idle_rss_mb", "idle RSS MB", compared=True),
        Column("idle_private_mb", "idle private MB"),
        Column("streams_rss_mb", "streams RSS MB"),
        Column("stream_kb", "KB/stream", compared=True),
    )

    def prepare(self, bed: Bed, seconds: int) -> Mapping[str, Sample]:
        return {}

    def measure(self, bed: Bed, proxy: Proxy, seconds: int) -> Sample:
        warm_up = WrkLoad("warm-up", connections=32)
        with warm_up.running(proxy, 1) as wrk:
            finish(wrk)
        time.sleep(0.2)
        idle = memory_kb(proxy.child)
        bed.set_tick(TICK_OF_STREAMS_MS)
        streams = WrkLoad("open", connections=STREAMS, tick_ms=TICK_MS)  # which sets the ramp
        with streams.running(proxy, 60, ENDLESS_TOKENS):
            self._await_streams(bed)
            time.sleep(1.0)
            busy = memory_kb(proxy.child)
        bed.settle()
        return Sample(
            {
                "idle_rss_mb": idle["Rss"] / 1024,
                "idle_private_mb": idle["Private"] / 1024,
                "streams_rss_mb": busy["Rss"] / 1024,
                "stream_kb": (busy["Private"] - idle["Private"]) / STREAMS,
            }
        )

    def _await_streams(self, bed: Bed) -> None:
        until_s = time.monotonic() + OPEN_LIMIT_S
        while (n := bed.counters()["open_streams"]) < STREAMS:
            if time.monotonic() > until_s:
                raise NotStartedError(f"{n} of {STREAMS} streams within {OPEN_LIMIT_S:.0f} s")
            time.sleep(0.05)


def memory_kb(child: Child) -> dict[str, int]:
    """`Rss`, `Pss` and `Private` of a process and its children, in KB, added up."""
    total = {"Rss": 0, "Pss": 0, "Private": 0}
    for pid in child.pids():
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, value, *_ = line.split()
            key = name.rstrip(":").partition("_")[0]
            if name.startswith("Private") or name in ("Rss:", "Pss:"):
                total[key] += int(value)
    return total
