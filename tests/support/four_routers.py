"""Four router processes over one fleet, and clients who share their requests between them evenly.

Eight stand-ins for vLLM live in this process (`LiveEngine`: real time, real HTTP, the plugin's real
channel). One real sidecar process speaks for them, four real routers listen to it; of each other
they know nothing but how many they are. At SIGHUP they choose in another way.
"""

import asyncio
import itertools
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from random import Random

import aiohttp

from data_plane import eventually
from live_engine import LiveEngine
from router_process import RouterProcess, router_process
from sidecar_process import Sidecar

ROUTERS, REPLICAS = 4, 8
HOT_PER_S = 20.0
"""Of the cluster: what this machine can do with ease."""
ROUTER_FILE = f"""\
name_why = true
[choose]
way = "{{way}}"
[affinity]
routers = {ROUTERS}
hot_per_s = {HOT_PER_S}
"""
TOKENS = 8
LOOK_S = 0.02
SETTLED_S = 0.05
"""After so long, routers have heard that a short request has ended."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of one request."""

    router: int
    replica: str | None
    status: int
    why: str | None


@dataclass
class Site:
    """All of it."""

    engines: tuple[LiveEngine, ...]
    routers: Sequence[RouterProcess]
    file: Path
    client: aiohttp.ClientSession
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    async def choose(self, way: str) -> None:
        """Have all routers choose in this way."""
        self.file.write_text(ROUTER_FILE.format(way=way))
        seen = [len(router.log) for router in self.routers]
        for router in self.routers:
            router.process.send_signal(signal.SIGHUP)
        for router, before in zip(self.routers, seen, strict=True):
            await eventually(
                lambda log=router.log, n=before: any(" reload" in line for line in log[n:]), 20.0
            )

    async def ask(
        self, router: int, *, key: str = "", prompt_bytes: int = 400, tokens: int = 1
    ) -> Sent:
        """One request, whole. Without a key its prompt is like no other."""
        prompt = f"{next(self._numbers)} ".ljust(prompt_bytes, "x")
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "stream": True}
        url = f"http://{self.routers[router].address}/v1/completions"
        headers = {"x-ullage-cache-key": key} if key else {}
        async with self.client.post(url, json=body, headers=headers) as answer:
            await answer.read()
            replica = answer.headers.get("x-ullage-replica")
            return Sent(router, replica, answer.status, answer.headers.get("x-ullage-why"))

    async def idle(self) -> None:
        """Wait until nothing runs, and until the routers know."""
        await eventually(lambda: not any(engine.in_flight for engine in self.engines), 20.0)
        await asyncio.sleep(0.3)

    async def agree_on(self, key: str, turn: int) -> bool:
        """Do two routers, one after the other, send a new key to the same replica?"""
        sent = []
        for router in (turn % ROUTERS, (turn + 1) % ROUTERS):
            sent.append(await self.ask(router, key=key))
            await asyncio.sleep(SETTLED_S)
        return sent[0].replica == sent[1].replica

    async def same_key(self, key: str, per_s: float, seconds: float) -> list[Sent]:
        """Requests with one key, evenly in time, and over the routers."""
        began_s, asked = time.monotonic(), []
        for number in range(round(per_s * seconds)):
            await asyncio.sleep(max(0.0, began_s + number / per_s - time.monotonic()))
            asked.append(asyncio.ensure_future(self.ask(number % ROUTERS, key=key)))
        return list(await asyncio.gather(*asked))

    async def volleys(self, per_s: float, seconds: float, dice: Random) -> list[list[Sent]]:
        """Clients who ask all routers at once, one request each, for answers of `TOKENS` to short
        and long prompts; volleys come independently of each other."""
        asked: list[list[asyncio.Task[Sent]]] = []
        due_s = time.monotonic()
        end_s = due_s + seconds
        while (due_s := due_s + dice.expovariate(per_s)) < end_s:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            sizes = dice.choices((200, 400, 800, 1600), k=ROUTERS)
            volley = (self.ask(r, prompt_bytes=size, tokens=TOKENS) for r, size in enumerate(sizes))
            asked.append([asyncio.ensure_future(one) for one in volley])
        return [list(await asyncio.gather(*volley)) for volley in asked]

    async def watch(self, looks: list[list[int]]) -> None:
        """Write down how many requests are in flight at each replica, again and again."""
        while True:
            looks.append([engine.in_flight for engine in self.engines])
            await asyncio.sleep(LOOK_S)


def together(volleys: Sequence[Sequence[str | None]]) -> float:
    """How many times more often than by chance two routers choose the same replica at one moment.

    1: as independent dice do. `REPLICAS`: all that comes in a moment goes to one replica, be it
    that it pours into that one until the next snapshot, or that it swings from one to the next.
    """
    pairs = [a == b for volley in volleys for a, b in combinations(volley, 2)]
    return REPLICAS * sum(pairs) / len(pairs)


def dispersion(looks: Sequence[Sequence[int]]) -> float:
    """How uneven requests in flight are between replicas: their variance by their mean, over time.

    1 for independent requests, each to a replica at random, whatever the load (Poisson); near 0 if
    each goes where the fewest are; about k if k go and come the same way together.
    """
    squares = total = 0.0
    for look in looks:
        mean = sum(look) / len(look)
        squares += sum((count - mean) ** 2 for count in look)
        total += sum(look)
    return squares / total


@asynccontextmanager
async def four_routers(folder: Path) -> AsyncIterator[Site]:
    """Start it all; it is ready."""
    engines = tuple(LiveEngine(f"r{n}", n + 1) for n in range(REPLICAS))
    sidecar = Sidecar(folder, 0)
    sidecar.listen = "127.0.0.1:0"
    file = folder / "router.toml"
    file.write_text(ROUTER_FILE.format(way="least_wait"))
    async with AsyncExitStack() as stack:
        for engine in engines:
            await engine.serve()
            stack.push_async_callback(engine.stop)
        named = [f"--engine={engine.name}={engine.url}" for engine in engines]
        await sidecar.start(*named)
        stack.push_async_callback(sidecar.stop)
        (listening,) = (line for line in sidecar.said if "listening" in line)
        sidecar.listen = listening.split("http=")[1].split()[0]
        living = [asyncio.ensure_future(engine.live(str(sidecar.socket))) for engine in engines]
        stack.push_async_callback(ended, living)
        flags = ("--config", str(file), "--sidecar", f"http://{sidecar.listen}")
        starts = (stack.enter_async_context(router_process(*flags)) for _ in range(ROUTERS))
        routers = await asyncio.gather(*starts)
        client = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        site = Site(engines, routers, file, client)
        for router in routers:
            await _all_serve(client, router)
        yield site


async def ended(tasks: Sequence["asyncio.Future[None]"]) -> None:
    """End them."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task


async def _all_serve(client: aiohttp.ClientSession, router: RouterProcess) -> None:
    """Wait until it knows how all are."""
    async with asyncio.timeout(20.0):
        known = 0
        while known < REPLICAS:
            await asyncio.sleep(LOOK_S)
            async with client.get(f"http://{router.admin}/replicas") as answer:
                replicas = (await answer.json())["replicas"]
            known = sum(each["capacity_score"] is not None for each in replicas)
