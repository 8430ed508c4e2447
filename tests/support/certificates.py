"""Certificates for tests: an authority of our own, and what it issues, as files."""

import ssl
from pathlib import Path

import trustme

from ullage_router.config import Tls

KeyType = trustme.KeyType


class Authority:
    """Issues certificates for the loopback."""

    def __init__(self) -> None:
        self._ca = trustme.CA()

    def file(self, path: Path) -> str:
        """Its own certificate, written to `path`."""
        self._ca.cert_pem.write_to_path(str(path))
        return str(path)

    def issue(
        self, directory: Path, name: str = "127.0.0.1", key_type: KeyType = KeyType.ECDSA
    ) -> Tls:
        """A certificate and its key, written to `cert.pem` and `key.pem` in `directory`."""
        issued = self._ca.issue_cert(name, key_type=key_type)
        directory.mkdir(exist_ok=True)
        certificate, key = directory / "cert.pem", directory / "key.pem"
        certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        key.write_bytes(issued.private_key_pem.bytes())
        return Tls(certificate=str(certificate), key=str(key))

    def server(self, name: str = "127.0.0.1") -> ssl.SSLContext:
        """What a server listens with."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._ca.issue_cert(name).configure_cert(context)
        return context

    def client(self) -> ssl.SSLContext:
        """What a client that trusts this authority connects with."""
        context = ssl.create_default_context(cadata=self._ca.cert_pem.bytes().decode())
        context.set_alpn_protocols(["h2", "http/1.1"])
        return context
