"""The main job, for real: two vLLM servers on the CPU, a sidecar, a router, and a mixed load.

Usage: make demo [KEEP=1] [PORT_BASE=18800]

1. Two `vllm serve` processes with Ullage's plugin, one sidecar for both, one router.
2. A mixed load through the router.
3. The same load while somebody floods one of the servers around the router: its score falls, and
   the router sends its requests to the other one.

Exit status: 0 every request was answered in full, 1 some were not or something did not start,
130 Ctrl-C. Whatever was started is stopped, unless KEEP=1.
"""

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import aiohttp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from demo import load, report, watch
from demo.processes import ProcessError, running
from vllm_cpu.serve import CpuServer, Replica, ServerError

_NAMES: Final = ("a", "b")
_REQUESTS: Final = 150
_AT_ONCE: Final = 8
_FLOOD: Final = 16

# The ramp behind the warm-up takes 10 s by default.
_SIDECAR_TOML: Final = """
node = "demo"
socket = "{socket}"
listen = "127.0.0.1:{sidecar}"

[warm_up]
ramp_s = 2.0
"""


class Demo:
    """The processes of the demo, and where they listen."""

    def __init__(
        self, console: Console, venv: Path, model: Path, port_base: int, folder: Path
    ) -> None:
        self.console = console
        self.folder = folder
        self.router_url = f"http://127.0.0.1:{port_base}"
        self.admin_url = f"http://127.0.0.1:{port_base + 1}"
        self.sidecar_url = f"http://127.0.0.1:{port_base + 2}"
        self.servers = [
            CpuServer(
                Replica(
                    venv=venv,
                    model=model,
                    port=port_base + 3 + index,
                    kv_blocks=256,
                    max_seqs=8,
                    environment={
                        "ULLAGE_SOCKET": str(folder / "readings.sock"),
                        "ULLAGE_ENGINE": name,
                    },
                ),
                folder / f"vllm-{name}.log",
            )
            for index, name in enumerate(_NAMES)
        ]

    def start(self, stack: ExitStack) -> None:
        """Start everything; `stack` stops it in reverse order."""
        began_s = time.monotonic()
        for server in self.servers:
            stack.callback(server.stop)
            server.start()
        config = self.folder / "sidecar.toml"
        port = self.sidecar_url.rpartition(":")[2]
        text = _SIDECAR_TOML.format(socket=self.folder / "readings.sock", sidecar=port)
        for name, server in zip(_NAMES, self.servers, strict=True):
            text += f'\n[[engine]]\nname = "{name}"\nurl = "{server.url}"\n'
        config.write_text(text)
        stack.enter_context(
            running(
                "ullage_sidecar",
                ["--config", str(config)],
                f"{self.sidecar_url}/healthz",
                self.folder / "sidecar.log",
            )
        )
        stack.enter_context(
            running(
                "ullage_router",
                [
                    *("--listen", self.router_url.removeprefix("http://")),
                    *("--admin", self.admin_url.removeprefix("http://")),
                    *("--sidecar", self.sidecar_url),
                ],
                f"{self.admin_url}/healthz",
                self.folder / "router.log",
            )
        )
        for server in self.servers:
            with self.console.status(f"vLLM at {server.url} is starting (half a minute) …"):
                server.wait_ready()
        self.console.print(f"Two vLLM servers are ready after {time.monotonic() - began_s:.0f} s.")

    async def wait_for_warm_up(self, session: aiohttp.ClientSession) -> list[str]:
        """Wait until the router would choose either; return their names."""
        deadline_s = time.monotonic() + 60.0
        with self.console.status("") as status:
            while True:
                rows = (await watch.fetch(session, self.admin_url, "/replicas"))["replicas"]
                states = ", ".join(f"{row['id']} is {row['state'] or 'unknown'}" for row in rows)
                status.update(f"Warm-up by dummy requests: {states} …")
                if len(rows) == len(_NAMES) and all(row["state"] == "serving" for row in rows):
                    return [row["id"] for row in rows]
                if time.monotonic() > deadline_s:
                    raise ProcessError(f"not serving after 60 s: {states}")
                await asyncio.sleep(0.2)

    async def phase(
        self, session: aiohttp.ClientSession, title: str, names: Sequence[str], seed: int
    ) -> int:
        """Run one mixed load and report on it; return how many requests failed."""
        before = await watch.counts(session, self.admin_url)
        extremes = watch.Extremes()
        watcher = asyncio.create_task(watch.watch(session, self.admin_url, extremes))
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
        ) as progress:
            bar = progress.add_task(title, total=_REQUESTS)
            answers = await load.run(
                self.router_url,
                load.mixed(_REQUESTS, seed),
                _AT_ONCE,
                lambda _: progress.advance(bar),
            )
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher
        counted = (await watch.counts(session, self.admin_url)).since(before)
        self.console.print(report.phase_table(title, names, answers, counted, extremes))
        why = ", ".join(f"{rule} {count:.0f}" for rule, count in counted.why.items() if count)
        self.console.print(f"Decisions by rule: {why}")
        for name, reason in extremes.why_not.items():
            self.console.print(f"{name} was left out: {reason}")
        if refusals := sum(answer.refusals for answer in answers):
            self.console.print(f"Refused for want of capacity and made again later: {refusals}")
        self.console.print()
        return report.print_failures(self.console, answers)

    async def show(self) -> int:
        """Both phases, and what was decided; return how many requests failed."""
        async with aiohttp.ClientSession() as session:
            names = await self.wait_for_warm_up(session)
            self.console.print(
                f"First {_REQUESTS} chat and completion requests through the router, "
                f"{_AT_ONCE} at a time: short and long, streamed and not."
            )
            failed = await self.phase(session, "Mixed load", names, seed=1)
            self.console.print(
                f"Now somebody sends {_FLOOD} long requests at a time straight to {names[0]}, "
                "around the router. The router must see it, and send its own load elsewhere."
            )
            flood = asyncio.create_task(
                load.run(self.servers[0].url, load.flood(seed=2), _FLOOD, lambda _: None)
            )
            await asyncio.sleep(3.0)  # Most of the sidecar's window.
            failed += await self.phase(session, f"While {names[0]} is flooded", names, seed=3)
            flood.cancel()
            with suppress(asyncio.CancelledError):
                await flood
            decisions = await watch.fetch(session, self.admin_url, "/decisions")
            self.console.print("The latest decisions:")
            for line in report.decision_lines(decisions[:8]):
                self.console.print(f"  {line}", highlight=False, soft_wrap=True)
        return failed

    def where_to_look(self) -> None:
        """Name the pages."""
        self.console.print("\nWhere to look:", style="bold")
        admin = f"--admin {self.admin_url.removeprefix('http://')}"
        for what, url in (
            ("a page: how the replicas stand", f"{self.admin_url}/"),
            ("the same in a terminal", f".venv/bin/ullage-router top {admin}"),
            ("who would get a request, and why", f".venv/bin/ullage-router explain {admin}"),
            ("replicas as the router sees them", f"{self.admin_url}/replicas"),
            ("the latest decisions", f"{self.admin_url}/decisions"),
            ("the router's metrics", f"{self.admin_url}/metrics"),
            ("the sidecar's snapshots", f"{self.sidecar_url}/v1/snapshots"),
            ("the sidecar's metrics", f"{self.sidecar_url}/metrics"),
            ("the API itself", f"{self.router_url}/v1/models"),
        ):
            self.console.print(f"  {what:<34} {url}", highlight=False, soft_wrap=True)
        status = f".venv/bin/ullage-sidecar status --config {self.folder}/sidecar.toml"
        self.console.print(
            f"  {'how the engines stand':<34} {status}", highlight=False, soft_wrap=True
        )


def main() -> int:
    """Entry point."""
    arguments = argparse.ArgumentParser(prog="demo", description="see `make help`")
    arguments.add_argument("--venv", type=Path, required=True, help="of vLLM")
    arguments.add_argument("--model", type=Path, required=True)
    arguments.add_argument("--port-base", type=_port_base, required=True, metavar="PORT")
    arguments.add_argument("--keep", action="store_true", help="leave it running until Ctrl-C")
    asked = arguments.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):  # SIGINT is ignored behind a script's `&`.
        signal.signal(number, signal.default_int_handler)
    console = Console()
    if not console.is_terminal:
        console = Console(width=110)
    folder = Path(tempfile.mkdtemp(prefix="ullage-demo-"))
    demo = Demo(console, asked.venv, asked.model, asked.port_base, folder)
    try:
        status = run(demo, keep=asked.keep)
    except (ServerError, ProcessError) as error:
        console.print(f"demo: {error}", style="red", highlight=False)
        status = 1
    except KeyboardInterrupt:
        console.print("Stopped.")
        status = 130
    if status == 1:
        console.print(f"The logs are in {folder}", soft_wrap=True)
    else:
        shutil.rmtree(folder)
    return status


def run(demo: Demo, *, keep: bool) -> int:
    """Start everything, show it, stop everything; return the exit status."""
    console = demo.console
    with ExitStack() as stack:
        demo.start(stack)
        failed = asyncio.run(demo.show())
        if keep:
            demo.where_to_look()
            console.print(f"\nLogs are in {demo.folder}. Ctrl-C ends it.", soft_wrap=True)
            signal.pause()
    if failed:
        console.print(f"[red]{failed} requests failed.[/red]")
        return 1
    console.print("Every request was answered in full.")
    console.print("All of it is stopped; `make demo KEEP=1` leaves it running.")
    return 0


def _port_base(text: str) -> int:
    if not text.isdecimal() or not 1024 <= int(text) <= 65_531:
        raise argparse.ArgumentTypeError(f"{text!r}: wanted a port from 1024 to 65531")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
