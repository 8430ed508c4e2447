"""`python -m ullage_router` as operators run it: a process, ready when it says so."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType

from manager import given
from ullage_shared.address import Address, parse_listen

_READY_WITHIN_S = 20.0
_PYTHON = ("-m", "ullage_router")
_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass
class RouterProcess:
    """The running router."""

    process: asyncio.subprocess.Process
    address: Address
    admin: Address
    log: list[str]
    """Lines of its stderr, so far."""

    async def ended(self, within_s: float) -> int:
        """Wait for its exit status."""
        return await asyncio.wait_for(self.process.wait(), within_s)


@asynccontextmanager
async def router_process(
    *arguments: str, environment: Mapping[str, str] = _NOTHING, sockets: Sequence[int] = ()
) -> AsyncIterator[RouterProcess]:
    """Start it on free ports of the loopback; `arguments` come behind.

    `environment` comes on top of this process's. `sockets` are given to it as systemd does.
    """
    process = await asyncio.create_subprocess_exec(
        *(given(sockets, *_PYTHON) if sockets else (sys.executable, *_PYTHON)),
        *("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *arguments),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
        pass_fds=sockets,
    )
    log: list[str] = []
    assert process.stderr is not None
    try:
        ready = await asyncio.wait_for(_ready(process.stderr, log), _READY_WITHIN_S)
        listen, admin = (parse_listen(ready[name]) for name in ("http", "admin"))
        reading = asyncio.ensure_future(_read_on(process.stderr, log))
        yield RouterProcess(process, listen, admin, log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    await reading


async def run_router(*arguments: str, sockets: Sequence[int] = ()) -> tuple[int, str]:
    """Run one that is expected to end by itself: its exit status and stderr."""
    process = await asyncio.create_subprocess_exec(
        *(given(sockets, *_PYTHON) if sockets else (sys.executable, *_PYTHON)),
        *arguments,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=sockets,
    )
    try:
        _, said = await asyncio.wait_for(process.communicate(), _READY_WITHIN_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def _ready(stderr: asyncio.StreamReader, log: list[str]) -> dict[str, str]:
    async for line in stderr:
        log.append(line.decode().rstrip())
        if " listening " in log[-1]:
            return dict(re.findall(r"(\w+)=(\S+)", log[-1]))
    raise AssertionError(f"the router ended: {log}")


async def _read_on(stderr: asyncio.StreamReader, log: list[str]) -> None:
    while line := await stderr.readline():
        log.append(line.decode().rstrip())
