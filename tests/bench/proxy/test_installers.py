"""What is there is not installed again; what cannot be installed is named in one line."""

import subprocess
import sys
from pathlib import Path

SYSTEM_PACKAGES = Path(__file__).parents[2] / "system_packages.py"
PEERS = Path(__file__).with_name("install_peers.py")


def run(script: Path, *names: str, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, script, *names], env={"PATH": path}, capture_output=True, text=True
    )


def test_a_machine_without_apt_get_names_what_is_missing(tmp_path: Path) -> None:
    done = run(SYSTEM_PACKAGES, "wrk", path=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("missing Debian packages: wrk (")
    assert done.stderr.count("\n") == 1


def test_commands_that_are_there_need_neither_root_nor_apt_get(tmp_path: Path) -> None:
    command = tmp_path / "wrk"
    command.touch(mode=0o755)
    done = run(SYSTEM_PACKAGES, "wrk", path=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    for script, known in ((SYSTEM_PACKAGES, "nginx"), (PEERS, "vllm-router")):
        done = run(script, "no-such", path="")
        assert done.returncode == 2
        assert done.stderr.startswith("no-such: not one of ")
        assert known in done.stderr
