"""TLS towards peers: whom they must be vouched for by. Files are PEM, as everywhere."""

import ssl
from pathlib import Path

from ullage_shared.config import ConfigError


def read_pem(key: str, file: str) -> bytes:
    """The bytes of a file that the configuration names under `key`. Raises `ConfigError`."""
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{key} = {file!r}: cannot be read: {error.strerror}") from error


def trusting(key: str, ca: str) -> ssl.SSLContext:
    """A context that checks peers against the authorities in `ca`; empty: the system's.

    `key`: what the file is called in the configuration. Raises `ConfigError`.
    """
    if not ca:
        return ssl.create_default_context()
    read_pem(key, ca)
    try:
        return ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        raise ConfigError(f"{key} = {ca!r}: wanted certificates in PEM form") from error
