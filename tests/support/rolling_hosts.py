"""Hosts on this machine for `deploy/rolling`: real processes, and a stand-in for their systemd.

`n0`, `n1`, … each have a live twin and a sidecar; `r0`, `r1` a router each, both of which accept on
one socket that is given to them, as by ullage-router.socket. `Hosts.runner` is what `--run` is
told; a host knows the commands in `COMMANDS`, and does what our units do at them.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from manager import given
from twins.fleet import Fleet
from ullage_tune.gpu import Engine

NODES = ("n0", "n1", "n2")
ROUTERS = ("r0", "r1")
_TELL = Path(__file__).with_name("tell_host.py")
_STARTS_WITHIN_S = 60.0
_STOPS_WITHIN_S = 60.0


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Daemon:
    """`python -m …`, started, started anew, and stopped as systemd does it."""

    def __init__(self, words: Sequence[str], log: Path, sockets: Sequence[int] = ()) -> None:
        self._words = given(sockets, *words) if sockets else [sys.executable, *words]
        self._log = log
        self._sockets = sockets
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> str:
        """Until it says that it listens. Returns what went wrong."""
        begun = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._words, stderr=log, pass_fds=self._sockets
            )
        async with asyncio.timeout(_STARTS_WITHIN_S):
            while b" listening " not in self._log.read_bytes()[begun:]:
                if self._process.returncode is not None:
                    return f"it ended: {self._log.read_text()}"
                await asyncio.sleep(0.05)
        return ""

    async def stop(self) -> str:
        """By SIGTERM. Returns what went wrong."""
        if self._process is None or self._process.returncode is not None:
            return ""
        self._process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(_STOPS_WITHIN_S):
            status = await self._process.wait()
        return "" if status == 0 else f"exit status {status}"

    async def restart(self) -> str:
        return await self.stop() or await self.start()

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


class Node:
    """A host with a twin and a sidecar."""

    def __init__(
        self, name: str, engine: Engine, venv: Path, model: Path, ports: Sequence[int], folder: Path
    ) -> None:
        folder.mkdir()
        self.name = name
        self.url = f"http://127.0.0.1:{ports[0]}"
        fleet = Fleet(1, engine, venv=venv, model=model, port_base=ports[0], folder=folder)
        self.twin = fleet.twins[0]
        self._socket = str(fleet.socket)
        self.sidecar_url = f"http://127.0.0.1:{ports[1]}"
        self.sidecar = Daemon(
            (
                *("-m", "ullage_sidecar", "--node", name, "--socket", self._socket),
                *("--listen", f"127.0.0.1:{ports[1]}", "--engine", f"twin0={self.url}"),
            ),
            folder / "sidecar.log",
        )

    async def drain(self) -> str:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ullage_sidecar", "drain", "--wait", "120"),
            *("--socket", self._socket),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
        return said.decode() if process.returncode else ""

    async def stop_vllm(self) -> str:
        await asyncio.to_thread(self.twin.server.stop)
        return ""

    async def start_vllm(self) -> str:
        """As `systemctl start` of a simple service: it does not wait until vLLM serves."""
        self.twin.server.start()
        return ""


class Hosts:
    """All of them, and where they are told."""

    def __init__(self, nodes: Sequence[Node], routers: dict[str, Daemon], folder: Path) -> None:
        self.nodes = nodes
        self.routers = routers
        self.told: list[str] = []
        """`HOST COMMAND`, in the order in which they were told."""
        self._path = folder / "hosts.sock"
        self._commands: dict[str, Callable[[], Coroutine[Any, Any, str]]] = {}
        for node in nodes:
            self._commands[f"{node.name} drain"] = node.drain
            self._commands[f"{node.name} stop vllm"] = node.stop_vllm
            self._commands[f"{node.name} start vllm"] = node.start_vllm
            self._commands[f"{node.name} restart sidecar"] = node.sidecar.restart
        for name, router in routers.items():
            self._commands[f"{name} restart router"] = router.restart

    @property
    def runner(self) -> str:
        """For `--run`."""
        return f"{sys.executable} {_TELL} {self._path} {{host}}"

    def pids(self) -> dict[str, int]:
        """Of everything that is to be upgraded."""
        return (
            {f"{node.name} vllm": node.twin.server.pid for node in self.nodes}
            | {f"{node.name} sidecar": node.sidecar.pid for node in self.nodes}
            | {f"{name} router": router.pid for name, router in self.routers.items()}
        )

    async def listen(self) -> asyncio.Server:
        return await asyncio.start_unix_server(self._hear, self._path)

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        words = (await reader.readline()).decode().strip()
        self.told.append(words)
        try:
            problem = await self._commands[words]()
        except (OSError, KeyError, TimeoutError) as error:
            problem = repr(error)
        writer.write(f"{problem}\n{int(bool(problem))}\n".lstrip().encode())
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def hosts(
    engine: Engine, venv: Path, model: Path, folder: Path
) -> AsyncIterator[tuple[Hosts, str, dict[str, str]]]:
    """Everything started; vLLM may yet warm up. Yields them, the clients' URL and admin URLs."""
    ports = iter(free_ports(2 * len(NODES) + len(ROUTERS)))
    async with AsyncExitStack() as stack:
        nodes = [
            Node(name, engine, venv, model, (next(ports), next(ports)), folder / name)
            for name in NODES
        ]
        for node in nodes:
            stack.callback(node.twin.server.stop)
            await node.start_vllm()
            stack.callback(node.sidecar.kill)
            assert not await node.sidecar.start()
        for node in nodes:
            await asyncio.to_thread(node.twin.server.wait_ready)
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=4096))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        admins = {name: f"127.0.0.1:{next(ports)}" for name in ROUTERS}
        sidecars = [word for node in nodes for word in ("--sidecar", node.sidecar_url)]
        routers = {
            name: Daemon(
                ("-m", "ullage_router", "--admin", admin, *sidecars),
                folder / f"{name}.log",
                (listening.fileno(),),
            )
            for name, admin in admins.items()
        }
        for router in routers.values():
            stack.callback(router.kill)
            assert not await router.start()
        there = Hosts(nodes, routers, folder)
        server = await there.listen()
        stack.callback(server.close)
        yield there, url, {name: f"http://{admin}" for name, admin in admins.items()}


def program(*words: str) -> list[str]:
    """The shipped program, as an operator runs it."""
    return [sys.executable, os.fspath(Path(__file__).parents[2] / "deploy" / "rolling"), *words]
