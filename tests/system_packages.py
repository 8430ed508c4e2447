#!/usr/bin/env python3
"""The Debian packages that tests and benchmarks need, installed where that is allowed.

    python3 tests/system_packages.py             every package of the list below
    python3 tests/system_packages.py wrk nginx   these

Exit 0: every command is there; when it was there already, nothing was run at all. Exit 1: it is
not, and one line on stderr names what is missing. Installing takes root and apt-get. No service is
started by it: while it lasts, `policy-rc.d` says no. Two calls at once wait for each other.

Rule: the standard library only, for this runs before any environment exists.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COMMANDS = {
    "chromium": "chromium",
    "curl": "curl",
    "debootstrap": "debootstrap",
    "haproxy": "haproxy",
    "ip": "iproute2",
    "nginx": "nginx",
    "promtool": "prometheus",
    "systemd-analyze": "systemd",
    "systemd-nspawn": "systemd-container",
    "wrk": "wrk",
}
"""Command → the Debian package that brings it."""

LOCK = Path("/run/lock/ullage-system-packages.lock")
POLICY = Path("/usr/sbin/policy-rc.d")
SIGNED_DENIAL = "#!/bin/sh\n# By Ullage's system_packages.py, while it installs.\nexit 101\n"
PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin"))


class InstallError(Exception):
    """The machine's fault or its operator's: one line that says what is missing and why."""


def missing(packages: set[str]) -> list[str]:
    """Those of `packages` whose command is not there, in alphabetical order."""
    return sorted({p for c, p in COMMANDS.items() if p in packages and not find(c)})


def find(command: str) -> str | None:
    """Where a command is; daemons live in sbin, which is not on everybody's PATH."""
    return shutil.which(command, path=PATH)


def ensure(packages: set[str]) -> None:
    """Install what is missing of `packages`, or raise `InstallError`."""
    if not missing(packages):
        return
    if os.geteuid() != 0 or find("apt-get") is None:
        need = " ".join(missing(packages))
        raise InstallError(f"missing Debian packages: {need} (as root: apt-get install {need})")
    failure = ""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = missing(packages)  # another call may have brought them meanwhile
        if wanted:
            with _no_service_starts():
                _apt_get("update")  # a mirror may be down and the install still work
                failure = _apt_get("install", "--no-install-recommends", *wanted)
    if absent := missing(packages):
        why = failure or "apt-get installed it, but the command is not there"
        raise InstallError(f"missing Debian packages: {' '.join(absent)} ({why})")


@contextmanager
def _no_service_starts() -> Iterator[None]:
    """Have Debian's own `policy-rc.d` deny starts, unless the machine has a policy already."""
    ours = not POLICY.exists() or POLICY.read_text() == SIGNED_DENIAL  # left by a killed call
    if ours:
        POLICY.write_text(SIGNED_DENIAL)
        POLICY.chmod(0o755)
    try:
        yield
    finally:
        if ours:
            POLICY.unlink()


def _apt_get(*arguments: str) -> str:
    """Run apt-get unattended and silently; its last words if it failed, else nothing."""
    done = subprocess.run(
        ["apt-get", "-qq", "-y", "-o", "DPkg::Lock::Timeout=300", *arguments],
        env={**os.environ, "PATH": PATH, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said = done.stdout.strip().splitlines() or [f"exit status {done.returncode}"]
    return "" if done.returncode == 0 else f"apt-get {arguments[0]}: {said[-1]}"


def main(names: list[str]) -> int:
    known = set(COMMANDS.values())
    if unknown := sorted(set(names) - known):
        print(f"{unknown[0]}: not one of {', '.join(sorted(known))}", file=sys.stderr)
        return 2
    try:
        ensure(set(names) or known)
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
