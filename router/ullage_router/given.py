"""Sockets that systemd holds for us, and gives to a process it starts: sd_listen_fds(3).

With them the router binds nothing itself. systemd keeps its own end: whoever connects while no
router runs waits in the kernel's queue, and is refused by nobody; and two routers that are given
the same socket serve from one queue, so that one can take over from the other.
"""

import os
import socket
from collections.abc import Iterable, Mapping
from typing import Final

from ullage_shared.address import Address
from ullage_shared.config import ConfigError

_FIRST: Final = 3
_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)


def given(environment: Mapping[str, str], pid: int) -> tuple[int, ...]:
    """The descriptors that the process `pid` was given; none, if they were for another.

    Raises `ConfigError` if one of them is no place for clients.
    """
    if environment.get("LISTEN_PID") != str(pid):
        return ()
    number = environment.get("LISTEN_FDS", "")
    if not number.isdecimal():
        raise ConfigError(f"LISTEN_FDS = {number!r}: wanted a whole number (environment)")
    descriptors = tuple(range(_FIRST, _FIRST + int(number)))
    for descriptor in descriptors:
        _check(descriptor)
        os.set_inheritable(descriptor, False)  # noqa: FBT003 -- it takes no keyword
    return descriptors


def opened(descriptors: Iterable[int]) -> list[socket.socket]:
    """As sockets, which whoever gets them closes."""
    return [socket.socket(fileno=descriptor) for descriptor in descriptors]


def address_of(descriptors: Iterable[int]) -> Address:
    """Where clients connect: the first one's."""
    with socket.socket(fileno=os.dup(next(iter(descriptors)))) as sock:
        host, port = sock.getsockname()[:2]
    return Address(host, port)


def _check(descriptor: int) -> None:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as sock:
            is_tcp = sock.family in _FAMILIES and sock.type == socket.SOCK_STREAM
            listens = is_tcp and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError:  # Closed, or no socket at all.
        listens = False
    if not listens:
        wanted = "wanted TCP sockets that listen (ListenStream=port, Accept=no)"
        raise ConfigError(f"LISTEN_FDS: descriptor {descriptor}: {wanted} (environment)")
