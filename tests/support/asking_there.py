"""Clients on a `Machine` that ask its router and ask again (`asking.py`)."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from machine import SOURCES, Machine

SUPPORT = SOURCES / "tests" / "support"
CLIENTS = "http://127.0.0.1:8080"
"""Where they ask."""


class Asking:
    """Clients that ask one request after the other, each over a new connection."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.ends: dict[str, int] = {}
        """What came of all requests, once they have ended."""

    def last(self) -> None:
        """Those under way are the last ones."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None  # Else `communicate` would write to it.

    def end(self) -> None:
        """Wait for them."""
        said, fault = self.process.communicate(timeout=90)
        assert self.process.returncode == 0, fault
        self.ends = json.loads(said)


@contextmanager
def asking(host: Machine, clients: int, max_tokens: int = 6) -> Iterator[Asking]:
    words = (CLIENTS, str(clients), str(max_tokens))
    they = Asking(host.start("python3", f"{SUPPORT}/asking.py", *words))
    try:
        yield they
        they.end()
    finally:
        if they.process.poll() is None:
            they.process.kill()
            they.process.communicate()
