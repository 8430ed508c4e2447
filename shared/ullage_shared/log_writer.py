"""Writes lines in a thread of its own, so that nobody waits for whoever reads them.

A pipe that nobody empties (journald is stuck, a terminal was stopped) holds up whoever writes to
it. Here that is this thread; lines that come meanwhile are kept, `MOST_LINES` at most, and those
beyond are counted, and the count is a line once there is room.

Rules
* A line is written at once if none was a moment ago; else within `GATHER_S`, with those that came.
* What was put before `flush` has been written after it, or `FLUSH_S` are over.
"""

import os
import select
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

MOST_LINES: Final = 8192
GATHER_S: Final = 0.05
FLUSH_S: Final = 1.0
_BATCH: Final = 256


class Writer:
    """The thread, and what waits for it. It begins with the first line."""

    def __init__(self, fd: int, gather_s: float = GATHER_S) -> None:
        self.dropped: Callable[[int], str] | None = None
        """Makes the line that says how many were dropped."""
        self._fd = fd
        self._gather_s = gather_s
        self._lines: SimpleQueue[str | threading.Event] = SimpleQueue()
        self._lost = 0
        """As counted by those who put."""
        self._told = 0
        """Of these, as told by the thread."""
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, text: str) -> None:
        """Have a line written, without its end. Never waits."""
        if self._lines.qsize() >= MOST_LINES:
            self._lost += 1
            return
        self._lines.put(text)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ullage-log", daemon=True)
            self._thread.start()

    def flush(self) -> None:
        """Wait until all has been written; not for ever."""
        if self._thread is None or not self._thread.is_alive():
            return
        written = threading.Event()
        self._lines.put(written)
        self._hurry.set()
        written.wait(FLUSH_S)
        self._hurry.clear()

    def _run(self) -> None:
        while True:
            first = self._lines.get()
            begun_s = time.monotonic()
            self._write([first, *self._more()])
            left_s = begun_s + self._gather_s - time.monotonic()
            if left_s > 0.0:
                self._hurry.wait(left_s)

    def _more(self) -> list[str | threading.Event]:
        more: list[str | threading.Event] = []
        try:
            while len(more) < _BATCH:
                more.append(self._lines.get_nowait())
        except Empty:
            pass
        return more

    def _write(self, came: list[str | threading.Event]) -> None:
        lines = [text for text in came if isinstance(text, str)]
        lost = self._lost - self._told
        if lost and self.dropped is not None:
            self._told += lost
            lines.append(self.dropped(lost))
        data = "".join(f"{text}\n" for text in lines).encode("utf-8", "backslashreplace")
        try:
            while data:
                data = data[self._some(data) :]
        except OSError:
            pass  # Nobody reads any more: there is nowhere to say so.
        for each in came:
            if isinstance(each, threading.Event):
                each.set()

    def _some(self, data: bytes) -> int:
        """How much of it could be written."""
        try:
            return os.write(self._fd, data)
        except BlockingIOError:  # Somebody else has made the file so.
            poll = select.poll()
            poll.register(self._fd, select.POLLOUT)
            poll.poll()
            return 0
