"""What the kernel is asked of connections.

* TCP keepalive: a peer that has vanished, power and all, is noticed within a minute.
* A replica's connection buffers little: what waits for a slow client waits at its replica.
"""

import asyncio
import socket
from typing import Final

_IDLE_S: Final = 30
_EVERY_S: Final = 10
_PROBES: Final = 3
_BUFFER_BYTES: Final = 65_536
"""Of one read, and so of one write to a client; without a limit, uvloop reads four times that."""


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Have the kernel ask after a silent peer."""
    sock: socket.socket = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


def buffer_little(transport: asyncio.BaseTransport) -> None:
    """Have the kernel hold no more for us than one read takes."""
    sock: socket.socket = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES // 2)  # It takes twice.
