"""Holding a port for several processes to listen on."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ullage_router.http.listener import bound
from ullage_shared.address import Address


@contextmanager
def claim(address: Address) -> Iterator[int]:
    """Bind it without listening, so that others of this user may listen there. Raises `OSError`.

    Yields its number, which may have been 0.

    Two routers of one user could so share a port and not notice: it is bound alone first.
    """
    with ExitStack() as alone:
        sockets = [alone.enter_context(sock) for sock in bound(address, shared=False)]
        port: int = sockets[0].getsockname()[1]
    with ExitStack() as held:
        for sock in bound(Address(address.host, port), shared=True):
            held.enter_context(sock)
        yield port
