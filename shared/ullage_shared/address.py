"""Addresses as operators write them: `host:port` to listen on, `http(s)://host:port` to reach.

An IPv6 address stands in brackets, as in a URL: `[::1]:9400`.
"""

import re
from typing import Final, NamedTuple
from urllib.parse import urlsplit

_USUAL_PORTS: Final = {"http": 80, "https": 443}
_USER: Final = re.compile(r"//.*@", re.DOTALL)
_QUERY: Final = re.compile(r"(//[^\s?]*\?)[^\s'\"]+")


def without_password(text: str) -> str:
    """Hide what may be one in a URL: `http://user:password@host`, `http://host?key`."""
    return _QUERY.sub(r"\1…", _USER.sub("//…@", text))


class AddressError(ValueError):
    """The operator's fault. The message says what was wanted, and no password."""

    def __init__(self, message: str) -> None:
        super().__init__(without_password(message))


class Address(NamedTuple):
    """A host (without brackets) and a port, 0..65535."""

    host: str
    port: int
    tls: bool = False
    """Is it reached over TLS?"""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen(text: str) -> Address:
    """`127.0.0.1:8080`, `[::]:8080`, `:8080` (every interface). Port 0: any free one."""
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port
        _check_host(parts.hostname)
    except ValueError as error:
        raise AddressError(f"{text!r}: {error}; wanted host:port") from error
    if port is None or parts.path or parts.query or parts.fragment or parts.username is not None:
        raise AddressError(f"{text!r}: wanted host:port, as in 127.0.0.1:8080")
    return Address(parts.hostname or "0.0.0.0", port)


def parse_base_url(text: str) -> tuple[str, Address]:
    """A server's address: the URL in normal form, and where to connect.

    `HTTP://GPU-03:8000/` is `http://gpu-03:8000`. No path: requests keep theirs.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
        _check_host(parts.hostname)
    except ValueError as error:
        raise AddressError(f"{text!r}: {error}; wanted http://host:port") from error
    usual = _USUAL_PORTS.get(parts.scheme)
    if usual is None or not parts.hostname:
        raise AddressError(f"{text!r}: wanted http://host:port or https://host:port")
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        raise AddressError(f"{text!r}: wanted {parts.scheme}://host:port and nothing behind it")
    address = Address(parts.hostname, usual if port is None else port, parts.scheme == "https")
    return f"{parts.scheme}://{address}", address


def _check_host(host: str | None) -> None:
    """Raise `ValueError` for what no resolver takes: empty labels, labels of more than 63 bytes,
    and what is no part of a name."""
    if host and ":" not in host:
        if not all(each.isalnum() or each in "-._" for each in host):
            raise ValueError(f"{host!r} is no host name")
        try:
            host.encode("idna")
        except UnicodeError as error:
            raise ValueError(f"{host!r} is no host name") from error
