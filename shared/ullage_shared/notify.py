"""What systemd is told of this process: sd_notify(3).

    READY=1        it serves
    RELOADING=1    a reload has begun, at MONOTONIC_USEC; READY=1 ends it
    STOPPING=1     it was told to stop, which may take EXTEND_TIMEOUT_USEC
    WATCHDOG=1     its event loop runs: every half of WATCHDOG_USEC, or systemd ends it
    STATUS=…       one line for `systemctl status`

Rules
* Without NOTIFY_SOCKET nobody is told of anything.
* systemd holds nothing up. It is waited for `PATIENCE_S` at a turn of the process's life, for a
  sign of life not at all: another one follows.
* No fault of this ends the process: it is one line in the log.
"""

import asyncio
import logging
import socket
from collections.abc import Mapping
from typing import Final, Self

from ullage_shared.log import line

PATIENCE_S: Final = 1.0
_log: Final = logging.getLogger("ullage.systemd")


class Notifier:
    """Tells systemd how one process stands."""

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        """`address`: a path, or `@` and a name in the abstract namespace; empty: nobody listens."""
        self.watchdog_s: Final = watchdog_s if address else None
        """After so many seconds without a sign of life the process is ended; None: never."""
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._status = ""
        self._serves = False
        self._failed = False

    @classmethod
    def of(cls, environment: Mapping[str, str], pid: int) -> Self:
        """As systemd has told the process `pid`. What was said to its parent is not for it."""
        address = environment.get("NOTIFY_SOCKET", "")
        microseconds = environment.get("WATCHDOG_USEC", "")
        if environment.get("WATCHDOG_PID", str(pid)) != str(pid) or not address:
            return cls(address)
        if microseconds and not (microseconds.isdecimal() and int(microseconds)):
            why = f"WATCHDOG_USEC = {microseconds!r}: wanted a whole number above 0"
            _log.warning(line("systemd_not_told", why=why))
            microseconds = ""
        return cls(address, int(microseconds) / 1e6 if microseconds else None)

    def ready(self, status: str) -> None:
        """It serves, and how it stands, which is the status again after each good reload."""
        self._serves, self._status = True, status
        self._say("READY=1", _status(status))

    def reloading(self, now_s: float) -> None:
        """A reload has begun; `now_s` by CLOCK_MONOTONIC. Not before it serves: it still starts."""
        if self._serves:
            self._say("RELOADING=1", f"MONOTONIC_USEC={round(now_s * 1e6)}")

    def reloaded(self, refused: str) -> None:
        """A reload has ended. `refused`: why nothing was taken over; empty: it was."""
        if self._serves:
            status = f"reload refused: {refused}" if refused else self._status
            self._say("READY=1", _status(status))

    def stopping(self, within_s: float) -> None:
        """It ends, and needs so many seconds at most, whatever its unit grants."""
        self._serves = False
        status = f"stopping, within {within_s:g} s"
        self._say("STOPPING=1", f"EXTEND_TIMEOUT_USEC={round(within_s * 1e6)}", _status(status))

    async def keep_alive(self) -> None:
        """For ever, where there is a watchdog: say that this event loop runs."""
        if self.watchdog_s is None:
            return
        while True:
            self._say("WATCHDOG=1", patience_s=0.0)
            await asyncio.sleep(self.watchdog_s / 2)

    def _say(self, *told: str, patience_s: float = PATIENCE_S) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
                to.settimeout(patience_s)
                to.sendto("\n".join(told).encode(), self._address)
        except OSError as error:  # Too long an address has no number, and its own words.
            if not self._failed:
                _log.warning(line("systemd_not_told", why=error.strerror or error))
            self._failed = True
        else:
            self._failed = False


def _status(text: str) -> str:
    """One line, so that no text can tell anything else."""
    return f"STATUS={' '.join(text.split())}"
