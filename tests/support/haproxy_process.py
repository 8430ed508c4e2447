"""A real HAProxy with the configuration that we ship, its addresses and timers replaced."""

import asyncio
import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import system_packages

SHIPPED = Path(__file__).parents[2] / "deploy" / "haproxy" / "haproxy.cfg"
BACKEND = "vllm"
SERVERS = ("gpu-01", "gpu-02")


def configuration(socket: Path, port: int, agent_port: int, backends: Mapping[str, int]) -> str:
    """The shipped file for one sidecar that has the engines of all `backends`, by their ports."""
    replaced = {
        "    user haproxy\n    group haproxy\n": "",
        "/run/haproxy/admin.sock": str(socket),
        "bind :8080": f"bind 127.0.0.1:{port}",
        "agent-port 9402": f"agent-port {agent_port}",
        "agent-inter 500ms": "agent-inter 50ms",
        "check inter 2s": "check inter 100ms",
    }
    at = ("10.0.0.11:8000", "10.0.0.12:8000")
    for name, address, (engine, backend_port) in zip(SERVERS, at, backends.items(), strict=True):
        server = f"server {name} "
        replaced[server + address] = f'{server}127.0.0.1:{backend_port} agent-send "{engine}\\n"'
    text = SHIPPED.read_text()
    for shipped, ours in replaced.items():
        assert shipped in text
        text = text.replace(shipped, ours)
    return text


class HAProxy:
    """It runs, with one backend."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port = port
        self.socket = folder / "admin.sock"
        self._file = folder / "haproxy.cfg"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, text: str) -> None:
        """Start it with this configuration, and wait until each server had its first answer."""
        system_packages.ensure({"haproxy"})
        self._file.write_text(text)
        self._process = await asyncio.create_subprocess_exec(
            str(system_packages.find("haproxy")), "-db", "-f", str(self._file),
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        async with asyncio.timeout(10.0):
            while not self.socket.exists():  # noqa: ASYNC110 (in another process)
                await asyncio.sleep(0.01)
        await self.servers(lambda rows: all(row["last_agt"] for row in rows.values()))

    async def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            await self._process.wait()

    async def command(self, text: str) -> str:
        """What it answers to a command of its operator."""
        reader, writer = await asyncio.open_unix_connection(str(self.socket))
        writer.write(f"{text}\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
        return answer.strip()

    async def servers(self, good: Any = lambda rows: True) -> dict[str, dict[str, str]]:
        """Its own view, by server, once it is `good`; 15 s at most.

        While a check is under way `last_agt` is empty.
        """
        rows: dict[str, dict[str, str]] = {}
        try:
            async with asyncio.timeout(15.0):
                while True:
                    table = (await self.command("show stat")).removeprefix("# ")
                    rows = {
                        row["svname"]: row
                        for row in csv.DictReader(io.StringIO(table))
                        if row["pxname"] == BACKEND and row["svname"] in SERVERS
                    }
                    if good(rows):
                        return rows
                    await asyncio.sleep(0.02)
        except TimeoutError:
            keys = ("status", "weight", "last_agt")
            seen = {name: [row[key] for key in keys] for name, row in rows.items()}
            raise AssertionError(f"HAProxy sees {seen}") from None

    async def weights(self, *wanted: int) -> None:
        """Wait until the servers are up and weigh so much; 15 s at most."""
        await self.servers(
            lambda rows: (
                [int(row["weight"]) for row in rows.values()] == [*wanted]
                and all(row["status"] == "UP" for row in rows.values())
            )
        )
