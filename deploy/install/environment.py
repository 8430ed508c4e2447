"""The environment below the prefix: made anew beside the old one, and then put in its place.

Rule: until the last moment what runs is left alone; a failure leaves all as it was.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from install.layout import SOURCE, Layout

EXTRAS: Final = "sidecar,router,aggregator"


class InstallError(Exception):
    """It cannot be installed; the message says why."""


def replace(layout: Layout, wheel: Path | None, extras: str) -> None:
    """Make the environment, old or none. `wheel`: None: built from this source.

    `extras`: those of the distribution, with commas. Raises `InstallError`.
    """
    if layout.home.exists() and not layout.is_ours:
        wanted = "wanted a folder that is not there yet, or that this has made"
        raise InstallError(f"PREFIX = {layout.prefix}: {wanted}")
    new, old = (layout.home.with_name(f".{layout.home.name}.{age}") for age in ("new", "old"))
    shutil.rmtree(new, ignore_errors=True)
    if old.exists() and not layout.home.exists():  # Ended in the midst of a swap, once.
        old.rename(layout.home)
    new.parent.mkdir(parents=True, exist_ok=True)
    try:
        _make(new, layout.prefix, wheel, extras)
        layout.write_documents(new)
        _swap(new, layout.home, old)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _swap(new: Path, home: Path, old: Path) -> None:
    shutil.rmtree(old, ignore_errors=True)
    if home.exists():
        home.rename(old)
    try:
        new.rename(home)
    except OSError:
        if old.exists():
            old.rename(home)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _make(new: Path, prefix: Path, wheel: Path | None, extras: str) -> None:
    _run(sys.executable, "-m", "venv", str(new))
    pip = (str(new / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check")
    with tempfile.TemporaryDirectory() as built:
        if wheel is None:
            _run(*pip, "wheel", "--no-deps", "--wheel-dir", built, str(SOURCE))
            (wheel,) = Path(built).glob("*.whl")
        what = f"{wheel.absolute()}[{extras}]" if extras else str(wheel.absolute())
        _run(*pip, "install", "--no-compile", what)
    _move(new, prefix)
    # The services may not write there.
    python = str(new / "bin" / "python")
    _run(python, "-m", "compileall", "-q", "-s", str(new), "-p", str(prefix), str(new / "lib"))


def _move(new: Path, prefix: Path) -> None:
    """Have it find itself where it will be."""
    made = [path for path in (new / "bin").iterdir() if not path.is_symlink()]
    for path in (*made, new / "pyvenv.cfg"):
        content = path.read_bytes()
        path.write_bytes(content.replace(str(new).encode(), str(prefix).encode()))


def _run(*command: str) -> None:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise InstallError(f"{' '.join(command)}\n{done.stdout.strip()}")
