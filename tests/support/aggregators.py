"""Aggregators: in this process, and as operators run them."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from ullage_shared.aggregator.config import Config
from ullage_shared.aggregator.serve import Aggregator, aggregating, opened


@dataclass
class Running:
    """One in this process."""

    it: Aggregator
    listen: str
    config: Config

    @property
    def url(self) -> str:
        return f"http://{self.listen}"

    async def get(self, path: str) -> Any:
        async with aiohttp.ClientSession() as session, session.get(self.url + path) as answer:
            assert answer.status == 200
            return await (answer.text() if path == "/metrics" else answer.json())


@asynccontextmanager
async def aggregator(*sidecars: str, **keys: Any) -> AsyncIterator[Running]:
    """One over these sidecars, which it asks every 20 ms."""
    quick = {"listen": "127.0.0.1:0", "node": "agg", "poll_interval_s": 0.02}
    config = Config(sidecars=sidecars, **(quick | keys))
    async with aggregating(config) as it, opened(it, config) as listen:
        yield Running(it, str(listen), config)


@dataclass
class Process:
    """One as a process."""

    process: asyncio.subprocess.Process
    url: str = ""
    log: list[str] = field(default_factory=list)


@asynccontextmanager
async def aggregator_process(*words: str) -> AsyncIterator[Process]:
    """One that serves, or has ended."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ullage_shared.aggregator", "--listen", "127.0.0.1:0", *words),
        stderr=asyncio.subprocess.PIPE,
    )
    it = Process(process)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(20.0):
            async for text in process.stderr:
                it.log.append(text.decode().rstrip())
                if found := re.search(r" listening .*http=(\S+)", it.log[-1]):
                    it.url = f"http://{found[1]}"
                    break
        reading = asyncio.ensure_future(_read_on(process.stderr, it.log))
        yield it
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    await reading


async def _read_on(stderr: asyncio.StreamReader, log: list[str]) -> None:
    while text := await stderr.readline():
        log.append(text.decode().rstrip())
