"""The plugin's readings: datagrams on a unix socket that this process owns.

The socket file has mode 0660: vLLM runs as the sidecar's user, as root, or in its group. A file
that a dead sidecar left is replaced, one that a living process answers on is not. One that somebody
deletes is made anew within a second (`mend`): a connected plugin notices nothing of a deletion, but
the next vLLM to start would find nobody.

Rule: while readings flow, nobody sleeps on the socket. Waking a sleeper costs the engine's thread
several times what the rest of `record()` does, so from the first datagram on the queue is emptied
every `REST_S` instead, until it has been empty for `QUIET_S`.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from ullage_shared.address import Address
from ullage_shared.log import line
from ullage_sidecar.channel import MAX_DATAGRAM_BYTES

MODE: Final = 0o660
REST_S: Final = 0.01
HURRIED_S: Final = 0.001
MANY: Final = 5
"""The kernel queues few datagrams (net.unix.max_dgram_qlen, often 10), and 10 in 10 ms would be
1,000 steps a second for all engines together. Behind a look that finds many, looks come sooner."""
QUIET_S: Final = 0.25
DRAIN_AT_ONCE: Final = 64
"""Datagrams taken at a time: a flood must not keep the loop from answering routers."""

_log = logging.getLogger("ullage.sidecar")


class ListenError(Exception):
    """The operator's fault: the place to listen at cannot be had. The message says why."""

    @classmethod
    def at(cls, address: Address, error: OSError) -> "ListenError":
        """What the system, or the resolver, says of a TCP address."""
        is_lookup = isinstance(error, socket.gaierror) or not error.errno
        why = error.strerror if is_lookup else os.strerror(error.errno or 0)
        return cls(f"listen {address}: {why}")


@contextlib.contextmanager
def readings(path: Path, hear: Callable[[bytes], None]) -> Iterator["Readings"]:
    """Hand every datagram that arrives at `path` to `hear`. Needs a running loop.

    Raises `ListenError`. The file is removed at the end.
    """
    found = Readings(path, hear)
    try:
        yield found
    finally:
        found.close()


class Readings:
    """The socket, and its file."""

    def __init__(self, path: Path, hear: Callable[[bytes], None]) -> None:
        self._path = path
        self._hear = hear
        self._fault = ""
        self._open(_bound(path))

    def mend(self) -> bool:
        """Make the file anew if it is gone. False: it cannot be; to be tried again.

        Whoever is connected then finds the new one with its next heartbeat.
        """
        if is_at(self._path, self._owned):
            return True
        try:
            listener = _bound(self._path)
        except ListenError as error:
            if str(error) != self._fault:
                self._fault = str(error)
                _log.error(line("socket_lost", why=error, fix="no new vLLM can reach this sidecar"))
            return False
        self._fault = ""
        self._drain.empty()
        self._shut()
        self._open(listener)
        _log.warning(line("socket_bound_anew", socket=self._path, why="its file was gone"))
        return True

    def close(self) -> None:
        """Listen no more."""
        self._shut()
        with contextlib.suppress(OSError):
            if is_at(self._path, self._owned):
                self._path.unlink()

    def _open(self, listener: socket.socket) -> None:
        self._listener = listener
        self._owned = self._path.stat().st_ino
        self._drain = _Drain(asyncio.get_running_loop(), listener, self._hear)
        self._drain.sleep()

    def _shut(self) -> None:
        self._drain.stop()
        self._listener.close()


def is_at(path: Path, inode: int) -> bool:
    """Is this file still there, and not another one in its place?"""
    try:
        return path.stat().st_ino == inode
    except OSError:
        return False


class _Drain:
    """Empties the queue: when woken by the first datagram, then by the clock."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        hear: Callable[[bytes], None],
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._hear = hear
        self._next: asyncio.TimerHandle | None = None
        self._heard_s = 0.0
        self._taken = 0

    def sleep(self) -> None:
        """Do nothing until a datagram comes."""
        self._next = None
        self._loop.add_reader(self._listener, self._woken)

    def stop(self) -> None:
        """Do nothing any more."""
        self._loop.remove_reader(self._listener)
        if self._next is not None:
            self._next.cancel()

    def _woken(self) -> None:
        self._loop.remove_reader(self._listener)
        self._look()

    def _look(self) -> None:
        rest_s = HURRIED_S if self._taken >= MANY else REST_S
        self._next = self._loop.call_later(rest_s, self._look)  # First: nothing may make us deaf.
        now_s = self._loop.time()
        self._taken = self.empty()
        if self._taken:
            self._heard_s = now_s
        elif now_s - self._heard_s > QUIET_S:
            self._next.cancel()
            self.sleep()

    def empty(self) -> int:
        """Hand on what is there, `DRAIN_AT_ONCE` at most; return how much that was."""
        for taken in range(DRAIN_AT_ONCE):
            try:
                datagram = self._listener.recv(MAX_DATAGRAM_BYTES + 1)
            except BlockingIOError:
                return taken
            except OSError as error:
                _log.warning(line("receive", error=error))
                return taken
            self._hear(datagram)
        return DRAIN_AT_ONCE


def _bound(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.settimeout(0.0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _remove_if_dead(path)
        listener.bind(os.fspath(path))
        path.chmod(MODE)
    except OSError as error:
        listener.close()
        raise ListenError(f"socket {path}: {error.strerror}") from error
    except ListenError:
        listener.close()
        raise
    return listener


def _remove_if_dead(path: Path) -> None:
    if not path.is_socket():
        raise ListenError(f"socket {path}: something else is there, and no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as caller:
        try:
            caller.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
        else:
            raise ListenError(f"socket {path}: another sidecar listens there")
