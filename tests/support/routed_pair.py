"""Two real vLLM servers and their sidecar, routers over them, and what a test asks of these."""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from demo.processes import running
from router_process import RouterProcess, router_process
from vllm_cpu.serve import CpuServer, Replica

MAX_SEQS = 8
BLOCKS = 2048
CONTEXT_TOKENS = 12_288
"""Thrice the tiny model's own, so that a prompt can be long: from 8,192 tokens on."""
CHAT = "/v1/chat/completions"
WORDS = ("return", "self", "value", "for", "item", "list", "not", "None", "else", "raise")
SIDECAR_TOML = """
node = "n"
socket = "{socket}"
listen = "127.0.0.1:{port}"

[warm_up]
ramp_s = 1.0
"""
BY_SCORE = """
[choose]
way = "weighted"
"""
"""The mission's."""


class Page:
    """A page of metrics."""

    def __init__(self, text: str) -> None:
        self._samples = [s for f in text_string_to_metric_families(text) for s in f.samples]

    def sum(self, name: str, **labels: str) -> float:
        """All samples of that name which have these labels, added up."""
        wanted = labels.items()
        return sum(s.value for s in self._samples if s.name == name and wanted <= s.labels.items())


class Reply(NamedTuple):
    """What came back for a request that was not to be streamed."""

    status: int
    replica: str
    why: str
    retry_after: str
    content: dict[str, Any]
    took_s: float


async def page(http: aiohttp.ClientSession, url: str) -> Page:
    async with http.get(f"{url}/metrics") as answer:
        return Page(await answer.text())


async def post(
    http: aiohttp.ClientSession, url: str, body: dict[str, Any], request_id: str = ""
) -> Reply:
    headers = {"x-request-id": request_id} if request_id else {}
    began_s = perf_counter()
    async with http.post(url, json=body, headers=headers) as answer:
        content = json.loads(await answer.read())
        took_s = perf_counter() - began_s
        replica, why, retry_after = (
            answer.headers.get(name, "")
            for name in ("x-ullage-replica", "x-ullage-why", "retry-after")
        )
        return Reply(answer.status, replica, why, retry_after, content, took_s)


@dataclass(slots=True, eq=False)
class Router:
    """A router of its own process, and the ways to ask about it."""

    process: RouterProcess
    http: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.process.address.port}"

    @property
    def admin(self) -> str:
        return f"http://127.0.0.1:{self.process.admin.port}"

    async def metrics(self) -> Page:
        return await page(self.http, self.admin)

    async def chat(self, body: dict[str, Any], request_id: str = "") -> Reply:
        return await post(self.http, self.url + CHAT, body, request_id)

    async def explain(self, body: dict[str, Any]) -> dict[str, Any]:
        reply = await post(self.http, f"{self.admin}/explain", body)
        assert reply.status == 200, reply
        return reply.content

    async def decision(self, request_id: str) -> dict[str, Any]:
        async with self.http.get(f"{self.admin}/decisions") as answer:
            found = [d for d in await answer.json() if d["request_id"] == request_id]
        assert len(found) == 1, found
        return found[0]

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.process.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1024

    def said(self, event: str) -> list[str]:
        return [line for line in self.process.log if f" {event}" in line]


@dataclass(slots=True)
class Pair:
    """Two servers and their sidecar."""

    servers: dict[str, CpuServer]
    sidecar: str
    http: aiohttp.ClientSession
    folder: Path

    @asynccontextmanager
    async def router(self, keys: str = "", *, sidecar: bool = True) -> AsyncIterator[Router]:
        """A router that tells why, and has these keys in its file."""
        config = self.folder / "router.toml"
        config.write_text("name_why = true\n" + keys)
        flags = ["--sidecar", self.sidecar]
        if not sidecar:
            flags = [f for s in self.servers.values() for f in ("--replica", s.url)]
        async with router_process("--config", str(config), *flags) as process:
            yield Router(process, self.http)

    async def snapshot(self, name: str) -> dict[str, Any]:
        async with self.http.get(f"{self.sidecar}/v1/snapshots") as answer:
            document = await answer.json()
        return next(r for r in document["replicas"] if r["id"] == f"n/{name}")

    async def of_all(self, name: str, **labels: str) -> float:
        """A count of vLLM's own, over both servers."""
        pages = [await page(self.http, server.url) for server in self.servers.values()]
        return sum(each.sum(name, **labels) for each in pages)

    async def until(self, what: str, true: Callable[[], Any], within_s: float) -> None:
        deadline_s = perf_counter() + within_s
        while not await true():
            assert perf_counter() < deadline_s, f"{what}: not within {within_s} s"
            await asyncio.sleep(0.1)

    async def until_idle(self) -> None:
        async def idle() -> bool:
            seen = [await self.snapshot(name) for name in self.servers]
            return all(s["state"] == "serving" and s["capacity_score"] > 0.99 for s in seen)

        await self.until("both servers idle and serving", idle, within_s=60.0)


@contextmanager
def pair_of_servers(
    folder: Path, venv: Path, model: Path, free_port: Callable[[], int]
) -> Iterator[dict[str, Any]]:
    """Start them, and their sidecar: the first two fields of a `Pair`."""
    readings, port = folder / "readings.sock", free_port()
    overrides = json.dumps({"max_position_embeddings": CONTEXT_TOKENS})
    servers = {
        name: CpuServer(
            Replica(
                venv=venv,
                model=model,
                port=free_port(),
                kv_blocks=BLOCKS,
                max_seqs=MAX_SEQS,
                flags=("--hf-overrides", overrides),
                environment={"ULLAGE_SOCKET": str(readings), "ULLAGE_ENGINE": name},
            ),
            folder / f"vllm-{name}.log",
        )
        for name in ("a", "b")
    }
    config = folder / "sidecar.toml"
    config.write_text(
        SIDECAR_TOML.format(socket=readings, port=port)
        + "".join(f'[[engine]]\nname = "{n}"\nurl = "{s.url}"\n' for n, s in servers.items())
    )
    sidecar, log = f"http://127.0.0.1:{port}", folder / "sidecar.log"
    with ExitStack() as stack:
        for server in servers.values():
            stack.callback(server.stop)
            server.start()
        flags = ["--config", str(config)]
        stack.enter_context(running("ullage_sidecar", flags, f"{sidecar}/healthz", log))
        for server in servers.values():
            server.wait_ready()
        yield {"servers": servers, "sidecar": sidecar}


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


def chat(content: str, max_tokens: int = 8) -> dict[str, Any]:
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
    }


class Talk:
    """A conversation whose history grows by each answer."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._messages = [{"role": "system", "content": words(self._rng, 800)}]
        self.turns: list[Reply] = []

    def next_body(self, max_tokens: int) -> dict[str, Any]:
        """What so far was said, and one more message."""
        asked = {"role": "user", "content": words(self._rng, 40)}
        return chat("", max_tokens) | {"messages": [*self._messages, asked]}

    async def go_on(self, router: Router) -> Reply:
        body = self.next_body(max_tokens=32)
        reply = await router.chat(body)
        assert reply.status == 200, reply
        self._messages = [*body["messages"], reply.content["choices"][0]["message"]]
        self.turns.append(reply)
        return reply

    @property
    def home(self) -> str:
        return self.turns[-1].replica
