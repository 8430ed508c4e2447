"""Listening for clients: many are let in at one turn of the event loop.

uvloop accepts one connection a turn. When a hundred clients come at once, each with a long prompt,
a turn takes long and the last of them would wait for seconds; so connections are accepted here.

Rule: nothing that goes wrong with a connection ends the listening. Without a descriptor left, it
pauses, and newcomers wait in the kernel's queue.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ullage_shared.address import Address

NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""The router's own want, and nobody's fault."""
_BACKLOG: Final = 4096
_AT_ONCE: Final = 64
_PAUSE_S: Final = 0.1
_SHUTDOWN_S: Final = 5.0


def bound(address: Address, *, shared: bool) -> Iterator[socket.socket]:
    """A socket at each address that the name stands for, not yet listening. Raises `OSError`.

    Port 0: any free one, the same for all. `shared`: others may listen there too (SO_REUSEPORT).
    """
    port = address.port
    found = socket.getaddrinfo(address.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, _, _, _, (host, _, *rest) in dict.fromkeys(found):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shared))
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((host, port, *rest))
        except OSError:
            sock.close()
            raise
        port = sock.getsockname()[1]
        yield sock


class Guest(asyncio.Protocol):
    """Who is let in."""

    is_in = False
    """Its connection was made, so it will hear when that is lost."""


class Listener:
    """The listening sockets of one address."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        welcome: Callable[[], Guest],
        no_room: Callable[[OSError], None],
        not_let_in: Callable[[OSError], None],
        crowded: Callable[[int], bool],
        tls: ssl.SSLContext | None,
        handshake_timeout_s: float,
    ) -> None:
        """`welcome` makes each connection's protocol.

        `no_room` hears why none can be accepted, `not_let_in` why one has not got past TLS.
        `crowded` says whether, with so many more in their handshakes, another is too much.
        """
        self._loop = loop
        self._welcome = welcome
        self._no_room = no_room
        self._not_let_in = not_let_in
        self._crowded = crowded
        self._tls = tls
        self._handshake_timeout_s = handshake_timeout_s
        self._sockets: list[socket.socket] = []
        self._arriving: dict[Guest, asyncio.Task[None]] = {}
        self._paused: asyncio.TimerHandle | None = None

    def open(self, address: Address, *, share_port: bool) -> int:
        """Listen. Returns the port. Raises `OSError`."""
        try:
            for sock in bound(address, shared=share_port):
                self._sockets.append(sock)
                sock.settimeout(0.0)
                sock.listen(_BACKLOG)
        except OSError:
            self.close()
            raise
        self._resume()
        port: int = self._sockets[0].getsockname()[1]
        return port

    def take(self, sockets: Iterable[socket.socket]) -> None:
        """Accept on sockets that listen already, and close them at the end."""
        for sock in sockets:
            self._sockets.append(sock)
            sock.settimeout(0.0)
        self._resume()

    def close(self) -> None:
        """Accept no more."""
        self._pause()
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()

    async def see_in(self, within_s: float) -> None:
        """Let those in who have been accepted. Who is in TLS's handshake even then is let go.

        Not those that are in, though their task has yet to hear of it: cancelled, it would close
        their connection without a word to them.
        """
        if self._arriving:
            await asyncio.wait(self._arriving.values(), timeout=within_s)
        for guest, task in self._arriving.items():
            if not guest.is_in:
                task.cancel()

    def _resume(self) -> None:
        self._paused = None
        for sock in self._sockets:
            self._loop.add_reader(sock, self._accept, sock)

    def _pause(self) -> None:
        for sock in self._sockets:
            self._loop.remove_reader(sock)
        if self._paused is not None:
            self._paused.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, _ = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in NO_ROOM:
                    continue  # That client has gone already.
                self._pause()
                self._paused = self._loop.call_later(_PAUSE_S, self._resume)
                self._no_room(error)
                return
            if self._tls is not None and self._crowded(len(self._arriving)):
                sock.close()  # It cannot be told why before its handshake.
                continue
            self._meet(self._welcome(), sock)

    def _meet(self, guest: Guest, sock: socket.socket) -> None:
        self._arriving[guest] = task = self._loop.create_task(self._let_in(guest, sock))

        def met(done: asyncio.Task[None]) -> None:
            del self._arriving[guest]
            if done.cancelled():  # Before it began, perhaps: then nobody else closes this.
                sock.close()

        task.add_done_callback(met)

    async def _let_in(self, guest: Guest, sock: socket.socket) -> None:
        sock.settimeout(0.0)
        tls = self._tls
        try:
            await self._loop.connect_accepted_socket(
                lambda: guest,
                sock,
                ssl=tls,
                ssl_handshake_timeout=self._handshake_timeout_s if tls else None,
                ssl_shutdown_timeout=_SHUTDOWN_S if tls else None,
            )
        except OSError as error:
            self._not_let_in(error)
        except asyncio.CancelledError:
            if guest.is_in:  # By a turn: uvloop has closed the connection, and tells nobody.
                guest.connection_lost(None)
            raise
