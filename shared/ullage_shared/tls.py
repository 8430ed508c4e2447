"""TLS between our own parts, and with replicas: what is shown, and who must vouch for the others.

Rules
* Files are PEM, and checked whole before any of them is used; a fault names key and file.
* Nothing is loaded into a context that is in use: it keeps one certificate for each kind of key,
  and forgets no authority. New connections go by a new context, open ones go on with theirs.
"""

import ssl
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta

from ullage_shared.config import ConfigError
from ullage_shared.secret import private

ClientKey = Annotated[
    str,
    Meta(
        description="PEM file with its private key, not readable by everybody. Empty: it is in "
        "`client_certificate`."
    ),
]
"""`tls.client_key` of whoever shows a certificate."""
_ALPN: Final = ("http/1.1",)


def read_pem(key: str, file: str) -> bytes:
    """The bytes of a file that the configuration names under `key`. Raises `ConfigError`."""
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{key} = {file!r}: cannot be read: {error.strerror}") from error


def trusting(
    key: str, ca: str, client_certificate: str = "", client_key: str = ""
) -> ssl.SSLContext:
    """A context that checks peers against the authorities in `ca`; empty: the system's.

    `key`: what the file is called in the configuration. `client_certificate`: what peers that want
    one are shown; empty: nothing. `client_key`: its key, if it is in a file of its own. Raises
    `ConfigError`.
    """
    context = _authorities(key, ca) if ca else ssl.create_default_context()
    if client_certificate:
        if client_key:
            private("tls.client_key", client_key)
        show(context, "tls.client_certificate", client_certificate, "tls.client_key", client_key)
    elif client_key:
        raise ConfigError(f"tls.client_key = {client_key!r}: wanted tls.client_certificate with it")
    return context


def listening(certificate: str, key: str, client_ca: str = "") -> ssl.SSLContext | None:
    """What to listen with, TLS 1.2 at least; None: there is no certificate, so plain HTTP.

    `client_ca`: clients must show a certificate of one of its authorities, by TLS 1.3; empty: none.
    Raises `ConfigError`.
    """
    if not certificate:
        for name, file in (("tls.key", key), ("tls.client_ca", client_ca)):
            if file:
                raise ConfigError(f"{name} = {file!r}: wanted tls.certificate with it")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN)
    show(context, "tls.certificate", certificate, "tls.key", key)
    if client_ca:
        read_pem("tls.client_ca", client_ca)
        try:
            context.load_verify_locations(cafile=client_ca)
        except ssl.SSLError as error:
            raise _no_authorities("tls.client_ca", client_ca) from error
        context.verify_mode = ssl.CERT_REQUIRED
        # Nobody goes on with a session of before, which an authority that has gone had vouched for.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
    return context


def show(
    context: ssl.SSLContext, certificate_key: str, certificate: str, key_key: str, key: str
) -> None:
    """Have a context show this certificate. `key` empty: it is in the same file.

    Raises `ConfigError`.
    """
    for name, file in ((certificate_key, certificate), (key_key, key)):
        if file:
            read_pem(name, file)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=certificate)
    except ssl.SSLError as error:
        wanted = "wanted a certificate in PEM form"
        raise ConfigError(f"{certificate_key} = {certificate!r}: {wanted}") from error
    name, file = (key_key, key) if key else (certificate_key, certificate)

    def no_passphrase() -> str:
        raise ConfigError(f"{name} = {file!r}: wanted a key without a passphrase")

    try:
        context.load_cert_chain(certificate, key or None, password=no_passphrase)
    except ssl.SSLError as error:
        matches = error.reason != "KEY_VALUES_MISMATCH"
        wanted = "a private key in PEM form" if matches else f"the key of {certificate!r}"
        raise ConfigError(f"{name} = {file!r}: wanted {wanted}") from error


def _authorities(key: str, ca: str) -> ssl.SSLContext:
    read_pem(key, ca)
    try:
        return ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        raise _no_authorities(key, ca) from error


def _no_authorities(key: str, ca: str) -> ConfigError:
    return ConfigError(f"{key} = {ca!r}: wanted certificates in PEM form")


class Listening:
    """What a server listens with, which a reload may replace."""

    def __init__(self, newest: ssl.SSLContext) -> None:
        self.newest = newest
        """May be replaced at any time. That clients must show a certificate stays as it began."""
        self.context: Final = newest
        """What to listen with."""
        newest.sni_callback = self._hello

    def _hello(self, connection: ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
        """A client begins a handshake: it goes on with the newest certificate."""
        connection.context = self.newest


class Peers(ssl.SSLContext):
    """Stands for the newest context in an event loop's hands. Made by `peers`."""

    newest: ssl.SSLContext
    """May be replaced at any time."""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,  # noqa: FBT001, FBT002 -- the signature is the library's
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Begin a connection."""
        return self.newest.wrap_bio(incoming, outgoing, server_side, server_hostname, session)


def peers(newest: ssl.SSLContext) -> Peers:
    """What to connect with, replaceable."""
    context = Peers(ssl.PROTOCOL_TLS_CLIENT)
    context.newest = newest
    return context
