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
from ullage_shared.config import ConfigError
from ullage_shared.tls import read_pem, trusting

_ALPN: Final = ("http/1.1",)


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
    named = {"tls.certificate": tls.certificate, "tls.key": tls.key, "tls.ca": tls.ca}
    prints = {key: sha256(read_pem(key, file)).digest() for key, file in named.items() if file}
    if before is not None and "tls.ca" not in before.prints and not tls.ca:
        peers = before.peers
    else:
        peers = trusting("tls.ca", tls.ca)
    return Material(_towards_clients(tls), peers, prints)


def _towards_clients(tls: Tls) -> ssl.SSLContext | None:
    if not tls.certificate:
        if tls.key:
            raise ConfigError(f"tls.key = {tls.key!r}: wanted tls.certificate with it")
        return None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=tls.certificate)
    except ssl.SSLError as error:
        raise ConfigError(
            f"tls.certificate = {tls.certificate!r}: wanted a certificate in PEM form"
        ) from error
    key = "tls.key" if tls.key else "tls.certificate"
    file = tls.key or tls.certificate

    def no_passphrase() -> str:
        raise ConfigError(f"{key} = {file!r}: wanted a key without a passphrase")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN)
    try:
        context.load_cert_chain(tls.certificate, tls.key or None, password=no_passphrase)
    except ssl.SSLError as error:
        matches = error.reason != "KEY_VALUES_MISMATCH"
        wanted = "a private key in PEM form" if matches else f"the key of {tls.certificate!r}"
        raise ConfigError(f"{key} = {file!r}: wanted {wanted}") from error
    return context


class LiveTls:
    """The material in use, which a reload replaces. New connections use the new one.

    Nothing is loaded into a context that is in use: it keeps one certificate for each kind of key,
    and would go on to show an RSA certificate after one of ECDSA has come in its place; and it
    forgets no authority.
    """

    def __init__(self, material: Material) -> None:
        self.material = material
        """May be replaced at any time."""
        self.listening: Final = material.clients
        """What to listen with; None: plain HTTP."""
        self.peers: Final = _Peers(ssl.PROTOCOL_TLS_CLIENT)
        """What to connect to replicas and sidecars with."""
        self.peers.live = self
        if self.listening is not None:
            self.listening.sni_callback = self._hello

    def _hello(self, connection: ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
        """A client begins a handshake: it goes on with the newest certificate."""
        assert self.material.clients is not None
        connection.context = self.material.clients


class _Peers(ssl.SSLContext):
    """Stands for the newest context in an event loop's hands."""

    live: LiveTls

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,  # noqa: FBT001, FBT002 -- the signature is the library's
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Begin a connection."""
        newest = self.live.material.peers
        return newest.wrap_bio(incoming, outgoing, server_side, server_hostname, session)
