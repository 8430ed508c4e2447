"""Where a list of servers comes from, as an operator writes it: pure.

    http://gpu-01:9400                  one server
    file:/etc/ullage/sidecars.yml       a file in Prometheus' file_sd form; `*` and the like in its
                                        path: several; `.json`, `.yml` or `.yaml`
    dns+http://sidecars.example:9400    each address of that name (A and AAAA), at that port
    srv+http://_ullage._tcp.example     each target of its SRV records, at the port that they say

`https` in the place of `http`: the servers are reached over TLS, by what is written in the URL that
comes of it: `dns+https` wants certificates that name addresses.
"""

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from ullage_shared.address import Address, AddressError, parse_base_url

FILE: Final = "file:"
_SUFFIXES: Final = (".json", ".yml", ".yaml")
_FORMS: Final = (
    "http://host:port, file:/path.yml, dns+http://name:port or srv+http://_service._tcp.domain"
)


class Kind(StrEnum):
    """How a source is read."""

    URL = "url"
    FILE = "file"
    DNS = "dns"
    SRV = "srv"


@dataclass(frozen=True, slots=True)
class Source:
    """One entry of a list."""

    text: str
    """As it was written. Names it in logs, pages and metrics."""
    kind: Kind
    where: str
    """The URL in normal form, the path, or the name to look up."""
    scheme: str = "http"
    """Of the servers that it names."""
    port: int = 0
    """Of the servers that it names; 0: it says so itself."""


def parse_source(text: str) -> Source:
    """Read one entry. Raises `AddressError`."""
    if text.startswith(FILE):
        return _file(text)
    how, plus, rest = text.partition("+")
    if not plus or ":" in how:
        if "://" not in text:
            raise AddressError(f"{text!r}: wanted {_FORMS}")
        return Source(text, Kind.URL, parse_base_url(text)[0])
    if how == Kind.DNS:
        return _name(text, rest)
    if how == Kind.SRV:
        return _service(text, rest)
    raise AddressError(f"{text!r}: wanted {_FORMS}")


def url_of(scheme: str, host: str, port: int) -> str:
    """The URL, in normal form, of a server that a source names. Raises `AddressError`."""
    return parse_base_url(f"{scheme}://{Address(host, port)}")[0]


def _file(text: str) -> Source:
    path = text.removeprefix(FILE)
    if path.startswith("//"):  # As in `file:///etc/…`: nothing between the second and the third.
        path = path[2:]
    if not path.startswith("/") or not path.endswith(_SUFFIXES):
        raise AddressError(f"{text!r}: wanted file:/… with {', '.join(_SUFFIXES)} at its end")
    return Source(text, Kind.FILE, path)


def _name(text: str, rest: str) -> Source:
    url, address = _parsed(text, rest)
    try:
        ip_address(address.host)
    except ValueError:
        return Source(text, Kind.DNS, address.host, urlsplit(url).scheme, address.port)
    raise AddressError(f"{text!r}: wanted a name to look up, not an address")


def _service(text: str, rest: str) -> Source:
    url, address = _parsed(text, rest)
    if urlsplit(rest).port is not None:
        raise AddressError(f"{text!r}: wanted no port, for SRV records say it")
    return Source(text, Kind.SRV, address.host, urlsplit(url).scheme)


def _parsed(text: str, rest: str) -> tuple[str, Address]:
    try:
        return parse_base_url(rest)
    except AddressError as error:
        raise AddressError(f"{text!r}: {str(error).rpartition(': ')[2]}") from error
