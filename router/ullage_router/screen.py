"""A terminal as `top` needs it: a screen of its own, a key at a time, and all as it was afterwards.

Rules
* However it ends (a key, Ctrl-C, a signal that ends the process, an error), the terminal gets its
  modes, its cursor and what stood on it back; while it is stopped with Ctrl-Z, too.
* A change of size is drawn at once.
"""

import contextlib
import os
import re
import select
import signal
import socket
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Final, Self

from ullage_router.top_table import Line, cut

_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_LEAVE: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_STYLES: Final = {"bad": "31", "mild": "33", "head": "7"}
_PLAIN_STYLES: Final = {"head": "7"}
_KEYS: Final = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"k": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"j": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b" ": "page down",
    b"\x1b[H": "home",
    b"\x1bOH": "home",
    b"\x1b[1~": "home",
}
_SEQUENCE: Final = re.compile(rb"\x1b\[[0-9;]*[A-Za-z~]|\x1bO.|.", re.DOTALL)
_USUAL_SIZE: Final = (80, 24)
_SIGNALS: Final = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT, signal.SIGTERM, signal.SIGHUP)


class Screen:
    """The terminal on standard input and output, while it is ours."""

    def __init__(self, *, colour: bool) -> None:
        self.utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        self._styles = _STYLES if colour else _PLAIN_STYLES
        self._stdin = sys.stdin.fileno()
        self._typed: list[str] = []
        """Keys that have come at once with one before."""
        self._modes: list[Any] = []
        self._handlers: dict[signal.Signals, Any] = {}
        self._woken, self._wakes = socket.socketpair()
        self._wakes.settimeout(0.0)

    def __enter__(self) -> Self:
        self._modes = termios.tcgetattr(self._stdin)
        for number in _SIGNALS:
            self._handlers[number] = signal.signal(number, self._happened)
        self._take()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._woken.close()
        self._wakes.close()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines: the terminal's own. (`shutil` believes `COLUMNS` rather than it.)"""
        try:
            return os.get_terminal_size(sys.stdout.fileno())
        except OSError:  # It has gone; what is drawn, nobody sees.
            return _USUAL_SIZE

    def draw(self, lines: Sequence[Line], foot: Line) -> None:
        """Fill the screen; what is too long or too many is cut."""
        width, height = self.size
        shown = list(lines[: max(0, height - 1)])
        shown += [Line("")] * (height - 1 - len(shown))
        text = "\r\n".join(f"{self._styled(line, width)}\x1b[K" for line in [*shown, foot])
        _write(f"\x1b[H{text}\x1b[J")

    def key(self, within_s: float) -> str:
        """The next key by name, or what it writes; empty: the time is up, or there is reason to
        draw anew. Standard input that has ended is a `q`."""
        if self._typed:
            return self._typed.pop(0)
        ready, _, _ = select.select([self._stdin, self._woken], [], [], max(0.0, within_s))
        if self._woken in ready:
            self._woken.recv(4096)
        if self._stdin not in ready:
            return ""
        typed: list[bytes] = _SEQUENCE.findall(os.read(self._stdin, 1024)) or [b"q"]
        first, *self._typed = [_KEYS.get(key, key.decode("ascii", "ignore")) for key in typed]
        return first

    def _styled(self, line: Line, width: int) -> str:
        text = cut(line.text, width)
        style = self._styles.get(line.mood)
        return f"\x1b[{style}m{text}\x1b[m" if style else text

    def _take(self) -> None:
        tty.setcbreak(self._stdin, termios.TCSANOW)
        _write(_ENTER)

    def _give_back(self) -> None:
        try:
            _write(_LEAVE)
        finally:
            termios.tcsetattr(self._stdin, termios.TCSADRAIN, self._modes)

    def _happened(self, number: int, _: FrameType | None) -> None:
        if number in (signal.SIGTERM, signal.SIGHUP):
            sys.exit(128 + number)  # By way of `__exit__`.
        if number == signal.SIGTSTP:
            self._give_back()
            os.kill(os.getpid(), signal.SIGSTOP)
        elif number == signal.SIGCONT:
            self._take()
        with contextlib.suppress(BlockingIOError):  # It will wake as it is.
            self._wakes.send(b"\0")


def _write(text: str) -> None:
    """Past Python's buffer, which a signal's handler must not find in the midst of a write."""
    rest = text.encode(sys.stdout.encoding or "ascii", "replace")
    while rest:
        rest = rest[os.write(sys.stdout.fileno(), rest) :]
