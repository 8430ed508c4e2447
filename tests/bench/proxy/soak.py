"""Our router for some minutes under churn: does it give back what it takes?

    soak.py [--minutes 10] [--seed 1]

In turn: churn (churn.py) for a while, then quiet, which is the mark; churn for long, quiet; 1,000
slow readers of large answers, quiet. While clients churn, a backend process (half of the replicas)
is killed every KILL_EVERY_S and returns DOWN_S later. Every 30 s a line says what the router holds.

It fails (status 1) when, against the mark,
* memory (RSS) after a quiet time is more than GROWTH_MB above it (SLOW_KEPT_MB after slow readers),
* open files are more than FILES_SLACK off it, or requests are in flight, or clients connected;
and when
* some client waited in vain (`hung`), or a slow reader's answer ended early,
* with slow readers, memory grows by more than SLOW_GROWTH_MB once they have begun, or takes more
  than SLOW_KB for each.
"""

import argparse
import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop
from churn import Churn, read_slowly
from memory import memory_kb
from processes import Child
from report import aligned, machine
from testbed import REPLICAS, Bed, Proxy, fetch

LINE_EVERY_S: Final = 30.0
QUIET_S: Final = 6.0
"""Longer than an idle connection to a replica is kept."""
GIVEN_BACK_S: Final = 16.0
"""Until the router has given free memory back to the system."""
KILL_EVERY_S: Final = 12.0
DOWN_S: Final = 2.0
GROWTH_MB: Final = 8.0
FILES_SLACK: Final = REPLICAS + 2
"""Connections on which each replica is asked for its models come and go."""
SLOW_READERS: Final = 1000
SLOW_ANSWER_TOKENS: Final = 2_000_000
SLOW_BEGIN_S: Final = 10.0
"""Until each has connected and the buffers on its way are full."""
SLOW_GROWTH_MB: Final = 16.0
SLOW_KB: Final = 192.0
SLOW_KEPT_MB: Final = 24.0


@dataclass(frozen=True, slots=True)
class Held:
    """What the router holds at one moment."""

    rss_mb: float
    files: int
    in_flight: int
    clients: int
    idle_upstream: int

    @classmethod
    def by(cls, proxy: Proxy) -> "Held":
        page = fetch(proxy.admin_port, "/metrics").decode()

        def total(name: str) -> int:
            found = re.findall(rf"^ullage_router_{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE)
            return int(sum(map(float, found)))

        return cls(
            rss_mb=memory_kb(proxy.child)["Rss"] / 1024,
            files=sum(len([*Path(f"/proc/{pid}/fd").iterdir()]) for pid in proxy.child.pids()),
            in_flight=total("in_flight"),
            clients=total("client_connections"),
            idle_upstream=total("idle_upstream_connections"),
        )

    def row(self, when: str) -> list[str]:
        numbers = (self.files, self.in_flight, self.clients, self.idle_upstream)
        return [when.ljust(26), f"{self.rss_mb:8.1f}", *(f"{n:9d}" for n in numbers)]


HEAD: Final = [" " * 26, "  RSS MB", "    files", "in flight", "  clients", "idle upstream"]


class Soak:
    """The whole plan, and what was found wrong."""

    def __init__(self, bed: Bed, backends: list[Child], proxy: Proxy, seed: int) -> None:
        self._bed = bed
        self._backends = backends
        self._proxy = proxy
        self._seed = seed
        self._began_s = time.monotonic()
        self.faults: list[str] = []

    async def run(self, seconds: float) -> None:
        """All of it, in about that time."""
        busy_s = max(seconds - 3 * QUIET_S, 20.0)
        print("  ".join(HEAD), flush=True)
        self._say("started")
        await self._churn(0.25 * busy_s)
        mark = await self._quiet("the mark", None)
        await self._churn(0.5 * busy_s)
        await self._quiet("after churn", mark)
        await self._slow_readers(max(0.25 * busy_s, SLOW_BEGIN_S + 5.0))
        await asyncio.sleep(GIVEN_BACK_S)
        await self._quiet("after slow readers", mark, SLOW_KEPT_MB)

    async def _churn(self, seconds: float) -> None:
        async with Churn(self._proxy.port, self._seed) as churn, self._killing():
            await self._watch("churn", seconds)
        rows = [[kind, f"{n:,}"] for kind, n in sorted(churn.ends.items())]
        print(*aligned(rows), sep="\n", flush=True)
        if hung := {kind: n for kind, n in churn.ends.items() if kind.endswith(" hung")}:
            self.faults.append(f"clients waited in vain: {hung}")

    async def _slow_readers(self, seconds: float) -> None:
        before = Held.by(self._proxy)
        readers = [
            asyncio.create_task(read_slowly(self._proxy.port, SLOW_ANSWER_TOKENS, seconds))
            for _ in range(SLOW_READERS)
        ]
        await asyncio.sleep(SLOW_BEGIN_S)
        begun = self._say("slow readers, begun")
        most_mb = begun.rss_mb
        while not all(reader.done() for reader in readers):
            await asyncio.sleep(1.0)
            most_mb = max(most_mb, memory_kb(self._proxy.child)["Rss"] / 1024)
        ends = await asyncio.gather(*readers, return_exceptions=True)
        failed = [end for end in ends if isinstance(end, BaseException)]
        each_kb = (most_mb - before.rss_mb) * 1024 / SLOW_READERS
        print(
            f"slow readers: {SLOW_READERS - len(failed)} of {SLOW_READERS} still reading after "
            f"{seconds:.0f} s; at most {most_mb:.1f} MB, {each_kb:.0f} KB for each"
        )
        if failed:
            self.faults.append(f"{len(failed)} slow readers were cut: {failed[0]!r}")
        if most_mb - begun.rss_mb > SLOW_GROWTH_MB:
            self.faults.append(f"slow readers: {begun.rss_mb:.1f} MB grew to {most_mb:.1f}")
        if each_kb > SLOW_KB:
            self.faults.append(f"slow readers: {each_kb:.0f} KB for each is more than {SLOW_KB}")

    async def _quiet(self, what: str, mark: Held | None, growth_mb: float = GROWTH_MB) -> Held:
        await asyncio.sleep(QUIET_S)
        now = self._say(what)
        mark = mark or now
        if now.rss_mb > mark.rss_mb + growth_mb:
            self.faults.append(f"{what}: RSS {now.rss_mb:.1f} MB, mark {mark.rss_mb:.1f}")
        if abs(now.files - mark.files) > FILES_SLACK:
            self.faults.append(f"{what}: {now.files} open files, mark {mark.files}")
        if now.in_flight or now.clients:
            held = f"{now.in_flight} requests in flight, {now.clients} clients"
            self.faults.append(f"{what}: {held}, with nobody there")
        return now

    async def _watch(self, what: str, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            await asyncio.sleep(min(LINE_EVERY_S, left_s))
            self._say(what)

    @asynccontextmanager
    async def _killing(self) -> AsyncIterator[None]:
        """Kill a backend process now and then; all are back in the end."""
        task = asyncio.create_task(self._kill_in_turn())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for number, backend in enumerate(self._backends):
                if not backend.alive:
                    self._revive(number)

    async def _kill_in_turn(self) -> None:
        while True:
            for number in range(len(self._backends)):
                await asyncio.sleep(KILL_EVERY_S - DOWN_S)
                self._backends[number].kill()
                await asyncio.sleep(DOWN_S)
                self._revive(number)

    def _revive(self, number: int) -> None:
        share = REPLICAS // len(self._backends)
        self._backends[number] = self._bed.start_backend(number * share, share)

    def _say(self, what: str) -> Held:
        self._proxy.child.check_alive()
        held = Held.by(self._proxy)
        print("  ".join(held.row(f"{time.monotonic() - self._began_s:5.0f} s {what}")), flush=True)
        return held


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="default 10")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print(machine())
    with ExitStack() as stack:
        bed = Bed(stack, int(os.environ.get("PORT_BASE", "29000")))
        backends = bed.start_backends(processes=2)
        soak = Soak(bed, backends, bed.start_proxy("ours"), arguments.seed)
        uvloop.run(soak.run(arguments.minutes * 60))
    print("\n".join(["FAILED", *soak.faults]) if soak.faults else "passed")
    return 1 if soak.faults else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
