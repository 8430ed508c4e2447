"""The constant-rate client (pace.c) as a context: it runs while its block does."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processes import NotStartedError
from testbed import build


class Paced:
    """A run of pace."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def report(self) -> dict[str, Any]:
        """Wait for its end; raises `NotStartedError` when nobody listens (any more)."""
        said, complaint = self._process.communicate()
        if self._process.returncode != 0:
            raise NotStartedError(f"pace: {complaint.decode().strip()}")
        figures: dict[str, Any] = json.loads(said)
        figures["errors"] = {kind: n for kind, n in figures["errors"].items() if n}
        return figures


@contextmanager
def pace(
    port: int,
    path: str,
    *,
    rate_per_s: float,
    seconds: float,
    connections: int,
    body: Path | None = None,
) -> Iterator[Paced]:
    """Send to `port`: POST of the file `body`, else GET."""
    argv = [build("pace"), str(port), f"{rate_per_s:.1f}", f"{seconds:.2f}", str(connections), path]
    argv += [body] if body else []
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield Paced(process)
        finally:
            process.kill()
