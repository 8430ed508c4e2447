"""Runs once more, one by one and with nothing beside them, what failed in the latest runs.

    python tests/again.py

Two cores are few for thousands of tests with real processes and real clocks: what misses a bar
beside others may have missed it for want of a processor. What fails here, too, does not work. Exit
status: pytest's; 5 where nothing is known to have failed.

pytest's own `--last-failed` does not do: it finds no test that pytest-xdist has put into a group,
for its name ends with that of the group.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
FAILED: Final = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
NOTHING_FAILED: Final = 5


def own_name(name: str) -> str:
    """Without its group: what stands behind the last `@`, unless that is in a parameter."""
    return name[: name.rfind("@")] if name.rfind("@") > name.rfind("]") else name


def main() -> int:
    """Run them."""
    try:
        names = [own_name(name) for name in json.loads(FAILED.read_text(encoding="utf-8"))]
    except (OSError, ValueError):
        names = []
    if not names:
        return NOTHING_FAILED
    print(f"{len(names)} failed beside others, and are tried once more by themselves", flush=True)
    command = [sys.executable, "-m", "pytest", "-rpfE", *names]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
