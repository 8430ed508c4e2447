"""TLS as the configuration wants it: what clients are shown, and whom peers must be vouched for by.

Rules
* Files are read whole and checked whole before any of them is used; a fault names key and file.
* A certificate is replaced for new connections; open ones go on with theirs.
"""

import ssl
from collections.abc import Mapping
from hashlib import sha256
from typing import Final, NamedTuple

from ullage_router.config import Tls
from ullage_shared.tls import Listening, listening, peers, read_pem, trusting


class Material(NamedTuple):
    """What the files of `[tls]` hold."""

    clients: ssl.SSLContext | None
    """For connections that clients open; None: plain HTTP."""
    peers: ssl.SSLContext
    """For connections to replicas and sidecars at `https://`."""
    prints: Mapping[str, bytes]
    """A fingerprint of each file by its key, to tell whether one has changed."""


def read(tls: Tls, before: Material | None = None) -> Material:
    """Read and check all files. Raises `ConfigError`.

    The system's authorities are read once, since that takes 50 ms: kept from `before`.
    """
    prints = {
        f"tls.{key}": sha256(read_pem(f"tls.{key}", file)).digest()
        for key in tls.__struct_fields__
        if (file := getattr(tls, key))
    }
    own = {"tls.ca", "tls.client_certificate", "tls.client_key"}
    if before is not None and not own & (before.prints.keys() | prints.keys()):
        peers = before.peers
    else:
        peers = trusting("tls.ca", tls.ca, tls.client_certificate, tls.client_key)
    return Material(listening(tls.certificate, tls.key), peers, prints)


class LiveTls:
    """The material in use, which a reload replaces."""

    def __init__(self, material: Material) -> None:
        self._material = material
        self._clients = Listening(material.clients) if material.clients else None
        self.peers: Final = peers(material.peers)
        """What to connect to replicas and sidecars with."""

    @property
    def listening(self) -> ssl.SSLContext | None:
        """What to listen with; None: plain HTTP."""
        return self._clients.context if self._clients else None

    @property
    def material(self) -> Material:
        """May be replaced at any time: new connections use the new one."""
        return self._material

    @material.setter
    def material(self, material: Material) -> None:
        self._material = material
        self.peers.newest = material.peers
        if self._clients is not None and material.clients is not None:
            self._clients.newest = material.clients
