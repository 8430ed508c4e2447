"""One vLLM server with a sidecar and a router, and the ways to ask all three about its ranks."""

import asyncio
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from vllm_cpu.serve import CpuServer, Replica

READY_WITHIN_S: Final = 500.0
"""Two ranks are six processes that import vLLM: 77 s on two free cores."""
TWO_RANKS: Final = ("--data-parallel-size", "2")
PLAYED: Final = Path(__file__).parents[1] / "versions"


@dataclass(slots=True)
class Site:
    """The server, and the ways to ask about it."""

    server: CpuServer
    router: str
    admin: str
    sidecar: str
    socket: Path
    numbers: Iterator[int]
    http: aiohttp.ClientSession

    async def json(self, url: str) -> Any:
        async with self.http.get(url) as answer:
            return await answer.json()

    async def ranks(self) -> dict[str, dict[str, Any]]:
        """Snapshots by id."""
        document = await self.json(f"{self.sidecar}/v1/snapshots")
        return {snapshot["id"]: snapshot for snapshot in document["replicas"]}

    async def samples(self, url: str, name: str) -> dict[str, float]:
        """Values of one metric by engine, those of one engine added up."""
        async with self.http.get(f"{url}/metrics") as answer:
            text = await answer.text()
        found: Counter[str] = Counter()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name:
                    found[sample.labels["engine"]] += sample.value
        return dict(found)

    async def ask(
        self, url: str, tokens: int = 10, rank: int | None = None
    ) -> tuple[int, str | None]:
        """Complete a prompt of its own: the status, and who the router says has answered."""
        prompt = f"number {next(self.numbers)}"
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
        async with self.http.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
            await answer.read()
            return answer.status, answer.headers.get("x-ullage-replica")

    async def until(self, what: str, true: Callable[[], Awaitable[Any]], within_s: float) -> None:
        deadline_s = perf_counter() + within_s
        while not await true():
            assert perf_counter() < deadline_s, f"{what}: not within {within_s} s"
            await asyncio.sleep(0.1)

    async def until_idle(self, *ids: str) -> None:
        async def idle() -> bool:
            seen = await self.ranks()
            return seen.keys() == set(ids) and all(
                (s["state"], s["running"], s["waiting"]) == ("serving", 0, 0) for s in seen.values()
            )

        await self.until(f"{ids} idle and serving", idle, within_s=60.0)

    async def operator(self, *command: str) -> int:
        """Exit status of a command to the sidecar."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ullage_sidecar", *command, "--socket", str(self.socket)),
            stdout=asyncio.subprocess.DEVNULL,
        )
        return await process.wait()


def with_experts(replica: Replica, model: Path) -> dict[str, Any]:
    """What changes when the model is a mixture of experts. It is played: its config is all it has.

    Only such models' ranks are kept in step by vLLM's coordinator.
    """
    shutil.copytree(replica.model, model)
    config = json.loads((model / "config.json").read_text())
    config |= {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
    config |= {"num_local_experts": 4, "num_experts_per_tok": 2}
    (model / "config.json").write_text(json.dumps(config))
    played = ("--distributed-executor-backend", "played.Played")
    environment = {
        "PYTHONPATH": f"{PLAYED}:{os.environ.get('PYTHONPATH', '')}".rstrip(":"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_LOGGING_LEVEL": "DEBUG",
    }
    return {
        "model": model,
        "flags": (*TWO_RANKS, "--api-server-count", "1", *played),
        "environment": {**replica.environment, **environment},
    }


@asynccontextmanager
async def load_on_rank_1(site: Site, clients: int) -> AsyncIterator[None]:
    """Around the router, until the block ends and what was asked is answered."""
    enough = asyncio.Event()

    async def client() -> None:
        while not enough.is_set():
            assert (await site.ask(site.server.url, 900, rank=1))[0] == 200

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
        yield
        enough.set()


async def seen_for(site: Site, duration_s: float) -> set[tuple[str, str, str]]:
    """Every state that a rank was seen in, and why."""
    end_s, seen = perf_counter() + duration_s, set()
    while perf_counter() < end_s:
        seen |= {(name, s["state"], s["reason"]) for name, s in (await site.ranks()).items()}
        await asyncio.sleep(0.1)
    return seen


async def start_anew(site: Site, places: dict[str, Any], **changes: Any) -> None:
    """Start the server again, and wait until all its ranks are another start's, warmed up."""
    was = {snapshot["boot_id"] for snapshot in (await site.ranks()).values()}
    site.server.stop()
    renewed = replace(places["replica"], **changes)
    site.server = CpuServer(renewed, site.server.log, ready_within_s=READY_WITHIN_S)
    places["server"] = site.server
    site.server.start()
    states: dict[str, set[str]] = {}

    async def serves() -> bool:
        seen = await site.ranks()
        young = {name: s for name, s in seen.items() if s["boot_id"] not in was}
        for name, snapshot in young.items():
            states.setdefault(name, set()).add(snapshot["state"])
        return bool(young) and {s["state"] for s in seen.values()} == {"serving"}

    await site.until("another start serves", serves, within_s=READY_WITHIN_S)
    assert len({snapshot["boot_id"] for snapshot in (await site.ranks()).values()}) == 1
    assert all("warming" in seen for seen in states.values()), states
