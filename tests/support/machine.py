"""A machine with a systemd of its own: Debian in systemd-nspawn, with nothing on it but Python.

It has a network of its own, in which there is only the loopback. What is written on it is gone when
it is off. Needs root. The first one takes a minute or two: debootstrap fetches 300 MB, once.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import system_packages
from distribution import SOURCE, built, run
from install.environment import EXTRAS

ROOT = SOURCE / ".build" / "debian-root"
SUITE = "bookworm"
PYTHON = "3.11"
"""The suite's."""
PACKAGES = "systemd,systemd-sysv,dbus,python3,python3-venv"
WHEELS = Path("/wheels")
SOURCES = Path("/src")
_BOOTED_WITHIN_S = 60.0
_OFF_WITHIN_S = 30.0


class Machine:
    """It runs."""

    def __init__(self, leader: int) -> None:
        self._enter = ("nsenter", "--target", str(leader), "--all", "--")

    def run(self, *command: str, check: bool = True, **options: Any) -> Any:
        """Run a command on it. Fails if it fails, unless `check` is false."""
        done = subprocess.run(
            [*self._enter, *command], capture_output=True, text=True, check=False, **options
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Have a command run beside."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*self._enter, *command], stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def kill(self, name: str, pid: int) -> None:
        """Send a signal. (The shell does: Debian's smallest has no command for it.)"""
        self.run("sh", "-c", f"kill -{name} {pid}")

    def systemctl(self, *words: str, check: bool = True) -> Any:
        """`systemctl …`."""
        return self.run("systemctl", *words, check=check)

    @property
    def is_up(self) -> bool:
        """Has it started all that it starts?"""
        said = self.systemctl("is-system-running", check=False).stdout.strip()
        return said in ("running", "degraded")

    def comes_true(self, holds: Callable[[], object], within_s: float = 30.0) -> None:
        """Wait for something there."""
        end_s = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < end_s, "it did not come true in time"
            time.sleep(0.1)

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        said: str = self.systemctl("show", "--value", "--property", name, unit).stdout
        return said.strip()

    def journal(self, unit: str) -> list[dict[str, Any]]:
        """All that a unit has said, and that was said of it."""
        said = self.run("journalctl", "--output=json", "--unit", unit, "--quiet").stdout
        return [json.loads(line) for line in said.splitlines()]

    def write(self, path: str, text: str) -> None:
        """Write a file there."""
        self.run("sh", "-c", 'mkdir -p "${0%/*}"; cat > "$0"', path, input=text)

    def get(self, url: str) -> tuple[int, str]:
        """Status and body of a GET, as seen on the machine."""
        done = self.run("python3", "-c", _GET, url)
        status, _, body = done.stdout.partition("\n")
        return int(status), body


_GET = """\
import sys, urllib.error, urllib.request
try:
    answer = urllib.request.urlopen(sys.argv[1], timeout=5)
except urllib.error.HTTPError as error:
    answer = error
except OSError as error:
    sys.exit(print(f"0\\n{error}"))
print(answer.status, answer.read().decode(), sep="\\n")
"""


@contextlib.contextmanager
def machine() -> Iterator[Machine]:
    """Boot one, and switch it off."""
    system_packages.ensure({"debootstrap", "systemd-container"})
    _debian()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ullage-machine-"))
        wheels = _wheels(Path(folder))
        console = stack.enter_context((Path(folder) / "console").open("wb"))
        process = subprocess.Popen(
            [
                *("systemd-nspawn", "--quiet", f"--directory={ROOT}", "--volatile=overlay"),
                *("--boot", "--register=no", "--keep-unit", "--private-network"),
                *(f"--bind-ro={wheels}:{WHEELS}", f"--bind-ro={SOURCE}:{SOURCES}"),
                f"--machine=ullage-{os.getpid()}",
            ],
            # Its own system-call filter wants more of the kernel than a container may have.
            env={**os.environ, "SYSTEMD_SECCOMP": "0"},
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
        )
        try:
            booted = Machine(_leader(process, Path(folder) / "console"))
            booted.comes_true(lambda: booted.is_up, _BOOTED_WITHIN_S)
            yield booted
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_OFF_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _debian() -> None:
    if ROOT.exists():
        return
    new = ROOT.with_name(f"{ROOT.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.parent.mkdir(parents=True, exist_ok=True)
    path = {"PATH": system_packages.PATH}
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(new)]
    done = subprocess.run(
        command, env={**os.environ, **path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    new.rename(ROOT)


def _wheels(folder: Path) -> Path:
    """What pip needs there, where it has no network."""
    wheels = folder / "wheels"
    wheels.mkdir()
    wheel = shutil.copy(built("wheel"), wheels)
    run(
        *("python3", "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--only-binary=:all:", f"--python-version={PYTHON}", "--dest", wheels),
        f"{wheel}[{EXTRAS}]",
    )
    return wheels


def _leader(process: subprocess.Popen[bytes], console: Path) -> int:
    """The process that is 1 inside."""
    end_s = time.monotonic() + _BOOTED_WITHIN_S
    while time.monotonic() < end_s and process.poll() is None:
        for child in _children(process.pid):
            named = Path(f"/proc/{child}/comm").read_text().strip()
            if named == "systemd":
                return child
        time.sleep(0.1)
    raise AssertionError(f"it does not boot: {console.read_text(errors='replace')[-2000:]}")


def _children(pid: int) -> list[int]:
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []
