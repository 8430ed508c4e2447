"""Holding a port for several processes to listen on."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ullage_shared.address import Address


@contextmanager
def claim(address: Address) -> Iterator[int]:
    """Bind it without listening, so that others of this user may listen there. Raises `OSError`.

    Yields its number, which may have been 0.

    Two routers of one user could so share a port and not notice: it is bound alone first.
    """
    found = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    port = address.port
    with ExitStack() as held:
        for family, _, _, _, (host, _, *rest) in found:
            with _bound(family, (host, port, *rest), shared=False) as sock:
                port = sock.getsockname()[1]
            held.enter_context(_bound(family, (host, port, *rest), shared=True))
        yield port


def _bound(family: int, address: tuple[object, ...], *, shared: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shared))
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock
