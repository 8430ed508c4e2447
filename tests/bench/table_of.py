"""A router's table, without clients: `table_of.py REPLICAS SECONDS URL…` keeps it, and says what
that took, once so many replicas are in it, or `PATIENCE_S` have passed.

As JSON: `cpu`, share of a core; `connections` to these URLs; `true_s`, how old what the table shows
of each replica really is, at many looks, by the sender's clock (see `many_sidecars`); `off_s`, by
how much the router reckons it older than it is; `fresh`, share of so many replicas times looks that
found one whose picture was less than `STALE_S` old.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from ullage_router.config import Config
from ullage_router.serve import service
from ullage_shared.address import Address

LOOK_EVERY_S = 0.23
SETTLE_S = 2.0
PATIENCE_S = 15.0
STALE_S = 3.0
ESTABLISHED = "01"


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def connections(ports: set[int]) -> int:
    """Established TCP connections of this process to these ports."""
    there = set()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            there.add(str(fd.readlink()))
        except OSError:
            continue
    rows = [row.split() for row in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return sum(
        state == ESTABLISHED and f"socket:[{inode}]" in there and int(peer[-4:], 16) in ports
        for _, _, peer, state, *_, inode in (row[:10] for row in rows)
    )


async def main(expected: int, seconds: float, urls: list[str]) -> None:
    true_s: list[float] = []
    off_s: list[float] = []
    async with service(Config(sidecars=tuple(urls)), lambda _: None) as running:
        loopback = Address("127.0.0.1", 0)
        await running.open(loopback, loopback)
        router = running._router
        end_s = time.monotonic() + PATIENCE_S
        while len(router.fleet.replicas) < expected and time.monotonic() < end_s:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S)
        await asyncio.sleep(SETTLE_S)
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        looking_s, looks = 0.0, 0
        while time.monotonic() < began_s + seconds:
            await asyncio.sleep(LOOK_EVERY_S)
            look_s, looks = time.process_time(), looks + 1
            now_s = time.monotonic()
            for replica in router.fleet.replicas.values():
                assert replica.snapshot is not None
                true_s.append(now_s - replica.snapshot.ts)
                off_s.append((replica.age_s(now_s) or 0.0) - true_s[-1])
            looking_s += time.process_time() - look_s
        took_s = time.process_time() - began_cpu_s - looking_s
        told = {
            "cpu": took_s / (time.monotonic() - began_s),
            "connections": connections({urlsplit(url).port or 0 for url in urls}),
            "true_s": [quantile(true_s, share) for share in (0.5, 0.99)],
            "off_s": [quantile(off_s, share) for share in (0.01, 0.99)],
            "fresh": sum(age_s < STALE_S for age_s in true_s) / (looks * expected),
        }
        print(json.dumps(told), flush=True)
        running.stop()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
