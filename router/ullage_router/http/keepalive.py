"""TCP keepalive: a peer that has vanished, power and all, is noticed within a minute."""

import asyncio
import socket
from typing import Final

_IDLE_S: Final = 30
_EVERY_S: Final = 10
_PROBES: Final = 3


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Have the kernel ask after a silent peer."""
    sock: socket.socket = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
