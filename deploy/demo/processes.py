"""Ullage's own two processes, started and stopped as an operator would."""

import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class ProcessError(Exception):
    """A process did not come up; the message has the end of its log."""


@contextmanager
def running(module: str, flags: Sequence[str], ready_url: str, log: Path) -> Iterator[int]:
    """Run `python -m module flags` until the block ends; it starts once `ready_url` answers.

    Yields the process id. Raises `ProcessError` if the process exits or is not there in 30 s.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *flags],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_for(process, ready_url, log)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline_s = time.monotonic() + 30.0
    while not _answers(url):
        late = time.monotonic() > deadline_s
        if late or process.poll() is not None:
            how = "is not ready after 30 s" if late else f"exited with {process.returncode}"
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
            raise ProcessError(f"{log.stem} {how}:\n{tail}")
        time.sleep(0.1)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1.0):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
