"""The distribution as `pip` gets it: wheel and sdist built from this source, environments."""

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parents[2]


@functools.cache
def built(kind: str) -> Path:
    """The `wheel` or the `sdist` of this source, built once in a process."""
    folder = tempfile.mkdtemp(prefix="ullage-dist-")
    run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", folder, cwd=SOURCE)
    (made,) = Path(folder).iterdir()
    return made


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run it without this process's `PYTHONPATH`; its standard output. Fails if it does."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def environment() -> dict[str, str]:
    """This process's, without what would let a command find this source."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
