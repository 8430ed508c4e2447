"""What the kernel is asked of connections.

* TCP keepalive: a peer that has vanished, power and all, is noticed within a minute.
* Whoever is led to a port of this router by a replica's address is told, and goes no further.
* A replica's connection buffers little: what waits for a slow client waits at its replica.
"""

import asyncio
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final

from ullage_shared.address import Address

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


def reaches(transport: asyncio.BaseTransport, own: Iterable[Address]) -> bool:
    """Does a connection lead to one of these places, at which this host listens?

    It goes by where the connection has come to, not by what that is called: names and spellings of
    an address are many, and may mean another one at each look. Port 0 is none.
    """
    peer: Any = transport.get_extra_info("peername")
    near: Any = transport.get_extra_info("sockname")
    if not peer or not near:
        return False
    for place in own:
        if place.port == peer[1]:
            there, at = _plain(peer[0]), _plain(place.host)
            if at is None or at.is_unspecified:
                at = _plain(near[0])  # A connection to this host has one address at both ends.
            if there == at:
                return True
    return False


def _plain(host: str) -> IPv4Address | IPv6Address | None:
    """The address, an IPv4 one as such; None: it is a name."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
