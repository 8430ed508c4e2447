"""What many sidecars cost a router, asked one by one and through aggregators.

    PYTHONPATH=tests/support .venv/bin/python tests/bench/bench_aggregate.py [--sizes 32,1000]

Simulated sidecars, each a port and a connection of its own and one replica, that change enough to
be told at once `--changes` times a second each (2, a busy engine), beside their interval; a router
with its defaults and no client; and one or two aggregators with theirs, as processes. The router's
CPU is that of keeping the table: its clients' requests have what is left of the core. How old what
the table shows is, is measured by the sidecars' own clock.

Must: at the largest size and with two aggregators, a router takes less CPU than asked directly,
holds no more than a connection to each aggregator, and 99 of 100 snapshots are less than 3 s old,
so that they are not stale. Exits with 1 where it is not so. Columns: `fresh`, the share that were;
`off by`, by how much an age that the router reckons differs from the true one, 1st to 99th of a
hundred: what a line waits in queues, of a busy machine above all, no age can tell.
"""

import argparse
import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from aggregators import aggregator_process

HERE = Path(__file__).parent
MUST_BE_FRESH = 0.99
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
WAYS = {"directly": 0, "one aggregator": 1, "two aggregators": 2}


@asynccontextmanager
async def sidecars(number: int, changes_per_s: float) -> AsyncIterator[list[str]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(HERE / "many_sidecars.py"), str(number), str(changes_per_s)),
        stdout=asyncio.subprocess.PIPE,
        limit=2**20,
    )
    assert process.stdout is not None
    try:
        ports = json.loads(await asyncio.wait_for(process.stdout.readline(), 30.0))
        yield [f"http://127.0.0.1:{port}" for port in ports]
    finally:
        process.kill()
        await process.wait()


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


async def measured(urls: list[str], aggregators: int, seconds: float) -> dict[str, Any]:
    """What a router has of it, and what each aggregator takes."""
    async with AsyncExitStack() as stack:
        pids = []
        asked = urls
        if aggregators:
            words = [word for url in urls for word in ("--sidecar", url)]
            made = [
                await stack.enter_async_context(aggregator_process(*words, "--node", f"agg-{n}"))
                for n in range(aggregators)
            ]
            asked = [each.url for each in made]
            pids = [each.process.pid for each in made]
        router = await asyncio.create_subprocess_exec(
            *(sys.executable, str(HERE / "table_of.py"), str(len(urls)), str(seconds), *asked),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert router.stdout is not None
        await asyncio.sleep(2.0)
        began_s, before = time.monotonic(), [cpu_s(pid) for pid in pids]
        line = await asyncio.wait_for(router.stdout.readline(), 90.0 + seconds)
        took_s = time.monotonic() - began_s
        shares = [(cpu_s(pid) - then) / took_s for pid, then in zip(pids, before, strict=True)]
        await router.wait()
        return json.loads(line) | {"aggregator_cpu": max(shares, default=None)}


def row(size: int, way: str, it: dict[str, Any]) -> str:
    aggregator = "" if it["aggregator_cpu"] is None else f"{100 * it['aggregator_cpu']:.1f}"
    p50, p99 = it["true_s"]
    low, high = it["off_s"]
    return (
        f"{size:>8}  {way:<16}{100 * it['cpu']:>9.1f}{aggregator:>13}{it['connections']:>13}"
        f"{100 * it['fresh']:>9.1f}{p50:>9.2f}{p99:>9.2f}{low:>10.3f}{high:>8.3f}"
    )


async def main(sizes: list[int], changes_per_s: float, seconds: float) -> int:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(
        f"{'sidecars':>8}  {'asked':<16}{'router %':>9}{'aggregator %':>13}{'connections':>13}"
        f"{'fresh %':>9}{'age p50':>9}{'p99 s':>9}{'off by s':>10}{'to':>8}"
    )
    last: dict[str, dict[str, Any]] = {}
    for size in sizes:
        for way, aggregators in WAYS.items():
            async with sidecars(size, changes_per_s) as urls:
                last[way] = await measured(urls, aggregators, seconds)
            print(row(size, way, last[way]), flush=True)
    direct, two = last["directly"], last["two aggregators"]
    well = (
        two["cpu"] < direct["cpu"]
        and two["connections"] <= WAYS["two aggregators"]
        and two["fresh"] > MUST_BE_FRESH
    )
    print("ok" if well else "FAILED: see above what must be")
    return 0 if well else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="32,128,512,1000")
    parser.add_argument("--changes", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args()
    wanted = [int(size) for size in options.sizes.split(",")]
    sys.exit(asyncio.run(main(wanted, options.changes, options.seconds)))
