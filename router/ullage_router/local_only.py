"""An admin port on the loopback answers only those who ask for the loopback.

A web page that somebody on this host has open may have its own name resolve to 127.0.0.1 (DNS
rebinding), and so read what is meant for operators. Such a request names the page's host in `Host`.
An admin port on another address is for a network to protect, and has other names.
"""

from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from aiohttp import web

from ullage_shared.address import Address

_REFUSED: Final = 403
_WHY: Final = (
    "The admin port listens on the loopback, and answers to localhost and its addresses only. A "
    "proxy in front of it must send such a Host.\n"
)


def is_loopback(host: str) -> bool:
    """Is it this host by a name or an address that nobody else can have?"""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def guard(app: web.Application, at: Address | Path) -> None:
    """Have an app that will listen there answer only whom it should."""
    if isinstance(at, Address) and is_loopback(at.host):
        app.middlewares.append(_local_only)


@web.middleware
async def _local_only(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuse whoever asks for another host."""
    if not is_loopback(_hostname(request.host)):
        return web.Response(status=_REFUSED, text=_WHY)
    return await handler(request)


def _hostname(host: str) -> str:
    """Without the port."""
    name, _, port = host.rpartition(":")
    return name if name and (port.isdecimal() or not port) and not name.endswith(":") else host
