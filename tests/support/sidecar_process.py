"""A sidecar process, and what a fake engine says to it."""

import asyncio
import os
import signal
import sys
import time
from dataclasses import replace

import aiohttp

from ullage_shared.snapshot import decode
from ullage_sidecar.channel import encode_hello, encode_step
from ullage_sidecar.core.reading import Hello


def hello(**changes):
    started_s = time.monotonic() - 3600.0
    fields = Hello(1, "vllm", "boot-1", 1, started_s, total_blocks=101, max_num_seqs=8)
    return encode_hello(replace(fields, **changes))


def step(seq, running=2, waiting=0, kv_usage=0.5):
    return encode_step(1, seq, time.monotonic(), (running, waiting, kv_usage, 0, 0, 0, 0, 0))


class Sidecar:
    """A sidecar process: its places, and what it said."""

    def __init__(self, tmp_path, port):
        self.socket = tmp_path / "readings.sock"
        self.listen = f"127.0.0.1:{port}"
        self.process = None

    async def start(self, *flags, **environment):
        """Start it and wait until it serves, or has ended. `environment` comes on top of ours."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ullage_sidecar", "--socket", os.fspath(self.socket),
            "--listen", self.listen, "--node", "n", *flags,
            stderr=asyncio.subprocess.PIPE, env={**os.environ, **environment},
        )  # fmt: skip
        self.said = []
        async with asyncio.timeout(30.0):
            async for line in self.process.stderr:
                self.said.append(line.decode())
                if "listening" in self.said[-1]:
                    return
            await self.process.wait()

    async def stop(self, number=signal.SIGTERM):
        """Send a signal; the exit status."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        self.said += (await self.process.stderr.read()).decode().splitlines(keepends=True)
        return await self.process.wait()

    async def get(self, path="/v1/snapshots", **headers):
        """Status, headers and body of one request."""
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"http://{self.listen}{path}", headers=headers) as answer,
        ):
            return answer.status, answer.headers, await answer.read()

    async def replica(self, good=lambda replica: True):
        """The first replica, once it is `good`; 10 s at most."""
        async with asyncio.timeout(10.0):
            while True:
                document, faults = decode((await self.get())[2])
                assert faults == ()
                if good(document.replicas[0]):
                    return document.replicas[0]
                await asyncio.sleep(0.02)


async def run(sidecar: Sidecar, *arguments: str) -> tuple[int, str, str]:
    """A command to the sidecar: its exit status, and what it said."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ullage_sidecar", *arguments, "--socket", os.fspath(sidecar.socket),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(30.0):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()
