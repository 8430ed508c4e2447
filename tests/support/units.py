"""The shipped units below a folder that stands for `/`, and what systemd's own tools say of them.

python -m units       prints how exposed each of them is
"""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import system_packages

SHIPPED = Path(__file__).parents[2] / "deploy" / "systemd"
SERVICES = ("ullage-sidecar", "ullage-router", "ullage-router@9409", "ullage-aggregator")
UNITS = (*(f"{name}.service" for name in SERVICES), "ullage-router.socket", "vllm@a.service")
_OWN = Path("usr/lib/systemd/system")
_COMMANDS = (
    *(f"opt/ullage/bin/ullage-{name}" for name in ("sidecar", "router", "aggregator")),
    "opt/vllm/bin/vllm",
    "bin/sh",
)


def root_with_units(root: Path) -> Path:
    """Units, systemd's own, and commands that are there and do nothing."""
    units = root / "usr/local/lib/systemd/system"
    shutil.copytree(Path("/") / _OWN, root / _OWN, symlinks=True)
    for source in (SHIPPED / "units", SHIPPED / "vllm"):
        shutil.copytree(source, units, dirs_exist_ok=True)
    for command in _COMMANDS:
        place = root / command
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("#!/bin/sh\n")
        place.chmod(0o755)
    return root


def verify(root: Path) -> str:
    """What `systemd-analyze verify` has to say; nothing, if all is well."""
    done = _analyze("verify", f"--root={root}", "--man=no", *UNITS)
    return done.stdout + done.stderr


def exposure(root: Path, service: str) -> float:
    """0 (least) to 10, as `systemd-analyze security` reckons it."""
    done = _analyze("security", "--offline=true", f"--root={root}", "--json=short", service)
    assert json.loads(done.stdout), done.stderr
    done = _analyze("security", "--offline=true", f"--root={root}", "--no-pager", service)
    said = next(line for line in done.stdout.splitlines() if "Overall exposure level" in line)
    return float(said.split(": ")[1].split()[0])


def _analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    system_packages.ensure({"systemd"})
    command = str(system_packages.find("systemd-analyze"))
    return subprocess.run([command, *arguments], capture_output=True, text=True, check=False)


def main() -> None:
    """Print the scores."""
    with tempfile.TemporaryDirectory() as folder:
        root = root_with_units(Path(folder))
        print("systemd-analyze security (0 is least exposed, 10 most):")
        for service in SERVICES:
            print(f"  {service:<22} {exposure(root, f'{service}.service')}")


if __name__ == "__main__":
    main()
