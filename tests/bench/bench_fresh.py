"""A fresh vLLM beside a loaded pair: what its first requests pay, with warm-up and without.

    make bench-fresh

Two real servers on the CPU take a steady load of streams through router and sidecar. A third is
started, and what the router sends it is watched: the requests that fail there, and the seconds to
the first token (TTFT) of its first ones beside those of its later ones. In turns with the warm-up
as it is by default and with none at all (`rounds = 0`, no uptime rule); everything but the pair is
started anew each time. The load goes on while the third one starts.

Printed per turn, and the medians of both ways. `late` is the share of the first requests whose TTFT
is more than `LATE` times the median of the later ones of that turn.
"""

import argparse
import asyncio
import itertools
import random
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from demo import load
from demo.processes import running
from vllm_cpu.serve import CpuServer, Replica

CLIENTS = 6
FIRST = 12
"""Requests of the fresh server that count as its first."""
ENOUGH = 60
GIVE_UP_S = 90.0
LATE = 2.0
WAYS = {"default": "", "none": "rounds = 0\nzero_until_s = 0.0\nramp_until_s = 0.0\n"}
WORDS = ("return", "self", "value", "for", "item", "list", "not", "None", "else", "raise")


@dataclass(frozen=True, slots=True)
class Turn:
    """What the fresh server's requests saw."""

    after_s: float
    """From its `/health` to the first request sent to it."""
    failed: int
    first_ttft_s: float
    """Of the very first."""
    worst_ttft_s: float
    """Of the first `FIRST`."""
    later_ttft_s: float
    """Median of the later ones."""
    late: float
    """Share of the first `FIRST`, 0..1."""


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def asks(seed: int) -> Iterator[load.Ask]:
    """Streams of 24 tokens behind prompts of 50 to 400 words, no two alike, without end."""
    rng = random.Random(seed)
    while True:
        text = " ".join(rng.choices(WORDS, k=rng.randint(50, 400)))
        body = {"model": load.MODEL, "stream": True, "max_tokens": 24, "ignore_eos": True}
        yield load.Ask("/v1/completions", {**body, "prompt": text})


class Stand:
    """The pair, and the third."""

    def __init__(self, folder: Path, venv: Path, model: Path) -> None:
        self.folder = folder
        environment = {"ULLAGE_SOCKET": str(folder / "readings.sock")}
        self.servers = {
            name: CpuServer(
                Replica(
                    venv, model, free_port(), environment={**environment, "ULLAGE_ENGINE": name}
                ),
                folder / f"vllm-{name}.log",
            )
            for name in ("a", "b", "fresh")
        }

    def run(self, way: str, seed: int) -> Turn:
        """Start the sidecar, the router and the third server; load; stop them."""
        with ExitStack() as stack:
            router, admin = self._start(stack, WAYS[way])
            try:
                return asyncio.run(self._watch(router, admin, seed))
            finally:
                self.servers["fresh"].stop()

    def _start(self, stack: ExitStack, warm_up: str) -> tuple[str, str]:
        listen, router, admin = (f"127.0.0.1:{free_port()}" for _ in range(3))
        engines = "".join(
            f'[[engine]]\nname = "{name}"\nurl = "{server.url}"\n'
            for name, server in self.servers.items()
        )
        config = self.folder / "sidecar.toml"
        config.write_text(
            f'node = "n"\nsocket = "{self.folder}/readings.sock"\nlisten = "{listen}"\n'
            f"[warm_up]\n{warm_up}{engines}"
        )
        for module, flags, ready in (
            ("ullage_sidecar", ["--config", str(config)], f"http://{listen}/healthz"),
            (
                "ullage_router",
                ["--listen", router, "--admin", admin, "--sidecar", f"http://{listen}"],
                f"http://{admin}/healthz",
            ),
        ):
            stack.enter_context(running(module, flags, ready, self.folder / f"{module}.log"))
        return f"http://{router}", f"http://{admin}"

    async def _watch(self, router: str, admin: str, seed: int) -> Turn:
        fresh = self.servers["fresh"]
        sent: list[tuple[float, load.Answer]] = []
        over = asyncio.Event()
        timeout = aiohttp.ClientTimeout(total=60.0)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            source = asks(seed)

            async def client() -> None:
                while not over.is_set():
                    begun_s = time.monotonic()
                    sent.append((begun_s, await load.send(http, router, next(source))))

            while not await _serve(http, admin, ("n/a", "n/b")):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
            clients = [asyncio.create_task(client()) for _ in range(CLIENTS)]
            fresh.start()
            await asyncio.to_thread(fresh.wait_ready)
            ready_s = time.monotonic()
            enough = lambda: len(_of_fresh(sent)) >= ENOUGH  # noqa: E731
            while time.monotonic() - ready_s < GIVE_UP_S and not enough():  # noqa: ASYNC110
                await asyncio.sleep(0.2)
            over.set()
            await asyncio.gather(*clients)
        return _turn(_of_fresh(sent), ready_s)


async def _serve(http: aiohttp.ClientSession, admin: str, names: tuple[str, ...]) -> bool:
    async with http.get(f"{admin}/replicas") as answer:
        rows = (await answer.json())["replicas"]
    return {row["id"] for row in rows if row["state"] == "serving"} >= set(names)


def _of_fresh(sent: list[tuple[float, load.Answer]]) -> list[tuple[float, load.Answer]]:
    return sorted((pair for pair in sent if pair[1].replica == "n/fresh"), key=lambda pair: pair[0])


def _turn(sent: list[tuple[float, load.Answer]], ready_s: float) -> Turn:
    if len(sent) < 2 * FIRST:
        raise SystemExit(f"the fresh server was sent {len(sent)} requests in {GIVE_UP_S:.0f} s")
    good = [answer.ttft_s for _, answer in sent if not answer.problem]
    first, later = good[:FIRST], statistics.median(good[FIRST:])
    return Turn(
        sent[0][0] - ready_s,
        len(sent) - len(good),
        first[0],
        max(first),
        later,
        sum(ttft_s > LATE * later for ttft_s in first) / FIRST,
    )


def main() -> int:
    """Run the turns, print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    turns: dict[str, list[Turn]] = {way: [] for way in WAYS}
    print("warm-up   begins after   failed   first TTFT   worst of 12   later median   late")
    with tempfile.TemporaryDirectory(prefix="ullage") as folder, ExitStack() as stack:
        stand = Stand(Path(folder), asked.venv, asked.model)
        for name in ("a", "b"):
            stack.callback(stand.servers[name].stop)
            stand.servers[name].start()
        for name in ("a", "b"):
            stand.servers[name].wait_ready()
        for seed, way in itertools.product(range(asked.turns), WAYS):
            turns[way].append(stand.run(way, seed))
            _show(way, turns[way][-1])
    print("medians")
    for way, of_way in turns.items():
        columns = zip(*((getattr(t, f) for f in Turn.__slots__) for t in of_way), strict=True)
        _show(way, Turn(*(statistics.median(column) for column in columns)))
    return 0


def _show(way: str, turn: Turn) -> None:
    print(
        f"{way:<8} {turn.after_s:>11.1f} s {turn.failed:>9} {turn.first_ttft_s:>10.2f} s"
        f" {turn.worst_ttft_s:>11.2f} s {turn.later_ttft_s:>12.2f} s {turn.late:>6.0%}",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
