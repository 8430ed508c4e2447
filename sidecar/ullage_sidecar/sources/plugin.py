"""The plugin's readings: datagrams over connections to a unix socket that this process owns.

The socket file has mode 0660: vLLM runs as the sidecar's user, as root, or in its group. A file
that a dead sidecar left is replaced, one that a living process answers on is not. One that somebody
deletes is made anew within a second (`mend`): a connected plugin notices nothing of a deletion, but
the next vLLM to start would find nobody.

Rule: while steps flow, nobody sleeps on the connections. Waking a sleeper costs the engine's thread
several times what the rest of `record()` does. So when a step comes within `QUIET_S` of another, of
whomever, all connections are looked at after each rest instead, until no step has come for so long.

    state      event                                 then
    asleep     a heartbeat, or the first step        look; stay asleep
    asleep     a step, less than `QUIET_S` later     look; rest
    resting    the rest is over                      look; rest
    resting    the same, no step for `QUIET_S`       asleep

A rest is `REST_S` while somebody waits for what changes, else `LONG_REST_S`: who asks has what is
there taken in first (`look`). A look takes `CHUNK_BYTES` at most from each connection, so a flood
keeps the loop from nothing.
"""

import asyncio
import contextlib
import logging
import os
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from ullage_shared.address import Address
from ullage_shared.log import line
from ullage_sidecar.channel import DatagramError, is_heartbeat, whole

MODE: Final = 0o660
REST_S: Final = 0.015
"""More is cheaper and later. A step is to be with the routers within 20 ms."""
QUIET_S: Final = 0.1
LONG_REST_S: Final = 0.2
"""The kernel keeps 500 steps of a connection: 2,500 a second go through."""
CHUNK_BYTES: Final = 32_768
"""Taken from one connection at a look: 340 steps, or two hellos."""
MAX_CONNECTIONS: Final = 1024
"""vLLM has one for each engine and API process. What comes beyond is turned away, and asks anew."""
ACCEPT_AGAIN_S: Final = 1.0
"""Where the process may open no more files, for how long it leaves callers alone."""

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
def readings(
    path: Path, hear: Callable[[bytes], None], is_awaited: Callable[[], bool]
) -> Iterator["Readings"]:
    """Hand what arrives at `path` to `hear`: one or several whole datagrams of one sender.

    `is_awaited`: does somebody wait for it, or is it enough to have it when it is asked for?

    What is no datagram is handed on as well, to be counted, and its connection is closed. Needs a
    running loop. Raises `ListenError`. The file is removed at the end.
    """
    found = Readings(path, hear, is_awaited)
    try:
        yield found
    finally:
        found.close()


class Readings:
    """The socket, and its file."""

    def __init__(
        self, path: Path, hear: Callable[[bytes], None], is_awaited: Callable[[], bool]
    ) -> None:
        self._path = path
        self._fault = ""
        listener = _bound(path)
        self._owned = path.stat().st_ino
        self._ear = _Ear(asyncio.get_running_loop(), listener, hear, is_awaited)
        self._ear.sleep()

    def look(self) -> None:
        """Hand on what has come by now."""
        self._ear.look()

    def mend(self) -> bool:
        """Make the file anew if it is gone. False: it cannot be; to be tried again.

        Whoever is connected stays so.
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
        self._owned = self._path.stat().st_ino
        self._ear.listen_to(listener)
        _log.warning(line("socket_bound_anew", socket=self._path, why="its file was gone"))
        return True

    def close(self) -> None:
        """Listen no more."""
        self._ear.close()
        with contextlib.suppress(OSError):
            if is_at(self._path, self._owned):
                self._path.unlink()


def is_at(path: Path, inode: int) -> bool:
    """Is this file still there, and not another one in its place?"""
    try:
        return path.stat().st_ino == inode
    except OSError:
        return False


class _Connection:
    """A sender's, and what has come of a datagram that is not whole yet."""

    __slots__ = ("begun", "socket")

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.begun = b""

    def take(self) -> tuple[bytes, bool]:
        """What has come, and whether more can come: not at the end, and not behind no datagram.

        Raises `BlockingIOError`.
        """
        try:
            came = self.socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            raise
        except OSError as error:
            _log.warning(line("receive", error=error))
            came = b""
        if not came:
            return b"", False
        stream = self.begun + came
        try:
            end = whole(stream)
        except DatagramError:
            return stream, False
        self.begun = stream[end:]
        return stream[:end], True


class _Ear:
    """Takes in what comes: when woken, or by the clock."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        hear: Callable[[bytes], None],
        is_awaited: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._hear = hear
        self._is_awaited = is_awaited
        self._accepts = True
        self._connections: dict[int, _Connection] = {}
        self._poll = select.epoll()
        self._poll.register(listener, select.EPOLLIN)
        self._next: asyncio.TimerHandle | None = None
        self._stepped_s = -QUIET_S

    def sleep(self) -> None:
        """Do nothing until somebody calls or says something."""
        self._next = None
        self._loop.add_reader(self._poll, self._woken)

    def listen_to(self, listener: socket.socket) -> None:
        """Take calls there from now on. Who has called before is still heard."""
        self._accept_all()
        self._listener.close()  # Closed, it is out of the poll.
        self._listener = listener
        self._accepts = True
        self._poll.register(listener, select.EPOLLIN)

    def close(self) -> None:
        """Do nothing any more."""
        self._loop.remove_reader(self._poll)
        if self._next is not None:
            self._next.cancel()
        self._poll.close()
        self._listener.close()
        for connection in self._connections.values():
            connection.socket.close()

    def _woken(self) -> None:
        before_s = self._stepped_s
        self.look()
        if before_s < self._stepped_s < before_s + QUIET_S:
            self._loop.remove_reader(self._poll)
            self._rest()

    def _rest(self) -> asyncio.TimerHandle:
        rest_s = REST_S if self._is_awaited() else LONG_REST_S
        self._next = self._loop.call_later(rest_s, self._rested)
        return self._next

    def _rested(self) -> None:
        resting = self._rest()  # First: nothing may make us deaf.
        self.look()
        if self._loop.time() - self._stepped_s >= QUIET_S:
            resting.cancel()
            self.sleep()

    def look(self) -> None:
        """Take in what is there."""
        for descriptor, _ in self._poll.poll(0.0):
            connection = self._connections.get(descriptor)
            if connection is None:
                self._accept_all()
            else:
                self._take(descriptor, connection)

    def _take(self, descriptor: int, connection: _Connection) -> None:
        try:
            datagrams, goes_on = connection.take()
        except BlockingIOError:
            return
        if not goes_on:
            self._poll.unregister(descriptor)
            del self._connections[descriptor]
            connection.socket.close()
        if not is_heartbeat(datagrams):
            self._stepped_s = self._loop.time()
        if datagrams:
            self._hear(datagrams)

    def _accept_all(self) -> None:
        """Take the calls that wait, but no flood of them."""
        for _ in range(MAX_CONNECTIONS):
            if not (self._accepts and self._accept()):
                return

    def _accept(self) -> bool:
        """Take one call. Was there any?"""
        try:
            accepted, _ = self._listener.accept()
        except BlockingIOError:
            return False
        except OSError as error:  # No more files: to be asked again and again would help nobody.
            _log.warning(line("accept", error=error))
            self._accepts = False
            self._poll.unregister(self._listener)
            self._loop.call_later(ACCEPT_AGAIN_S, self._accept_again)
            return False
        if len(self._connections) >= MAX_CONNECTIONS:
            accepted.close()
            return True
        accepted.settimeout(0.0)
        self._connections[accepted.fileno()] = _Connection(accepted)
        self._poll.register(accepted, select.EPOLLIN)
        return True

    def _accept_again(self) -> None:
        if not self._accepts and not self._poll.closed:
            self._accepts = True
            self._poll.register(self._listener, select.EPOLLIN)


def _bound(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.settimeout(0.0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _remove_if_dead(path)
        listener.bind(os.fspath(path))
        path.chmod(MODE)
        listener.listen(MAX_CONNECTIONS)
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
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(0.0)
        with contextlib.suppress(BlockingIOError):  # Too busy to take a call.
            try:
                caller.connect(os.fspath(path))
            except ConnectionRefusedError:
                path.unlink()
                return
    raise ListenError(f"socket {path}: another sidecar listens there")
