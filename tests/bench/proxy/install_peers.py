"""Install the routers we measure ourselves against, from PyPI, into `.build/venv-peers`.

    python tests/bench/proxy/install_peers.py [PEER…]       default: every one

Done once per pinned version: a stamp says so and nothing is run again. An environment of their
own, since their dependencies are not ours. Two calls at once wait for each other.
"""

import fcntl
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path
from typing import Final

PINS: Final = {"smg": "smg==1.13.0", "vllm-router": "vllm-router==0.1.17"}
ROOT: Final = Path(__file__).resolve().parents[3]
HOME: Final = ROOT / ".build" / "venv-peers"


class InstallError(Exception):
    """PyPI's fault or the network's. One line: what, and pip's last word."""


def ensure(peers: Iterable[str]) -> None:
    """Have each of `peers` (keys of `PINS`) installed, or raise `InstallError`."""
    wanted = {_stamp(PINS[peer]): PINS[peer] for peer in peers}
    if all(stamp.exists() for stamp in wanted):
        return
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (HOME / "bin" / "pip").exists():
            venv.create(HOME, with_pip=True, symlinks=True)
        for stamp, pin in wanted.items():
            if not stamp.exists():
                _pip_install(pin)
                stamp.touch()


def _stamp(pin: str) -> Path:
    return HOME / f"installed-{pin}"


def _pip_install(pin: str) -> None:
    done = subprocess.run(
        [HOME / "bin" / "python", "-m", "pip", "install", "-q", "--no-input", pin],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise InstallError(f"{pin} could not be installed: {said[-1]}")


def main(peers: list[str]) -> int:
    if unknown := sorted(set(peers) - set(PINS)):
        print(f"{unknown[0]}: not one of {', '.join(sorted(PINS))}", file=sys.stderr)
        return 2
    try:
        ensure(peers or PINS)
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
