"""Who may send requests: clients that have one of the API keys whose hashes a file holds.

    # name      SHA-256 of the key, in hexadecimal
    team-a      2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae

Rules
* A key stands behind `Authorization: Bearer`. A request without one of the file gets 401 before its
  body is read, and its connection is closed.
* `/health` and `/ping` want none, as in vLLM, for load balancers ask them.
* Keys are random and long (`ullage-router key` makes them), so a plain hash of them is enough; a
  file that leaks opens nothing. Hashes are compared in constant time.
* What the client sent goes on to the replica, unless the router has a key of its own for that.
"""

import hmac
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final

from ullage_router.http.errors import NO_KEY, WRONG_KEY, Refusal
from ullage_router.http.message import Fields, split_target
from ullage_shared.config import ConfigError
from ullage_shared.secret import Secret, own

AUTHORIZATION: Final = b"authorization"
NOTED: Final = frozenset({AUTHORIZATION})
_OPEN: Final = (b"/health", b"/ping")
_BEARER: Final = re.compile(rb"bearer +(\S+)", re.IGNORECASE)
_LINE: Final = re.compile(r"(\S+)\s+([0-9a-fA-F]{64})")
_KEY: Final = re.compile(rb"[!-~]+")
_KEY_BYTES: Final = 32
_PREFIX: Final = "ullage-"


@dataclass(frozen=True, slots=True)
class Access:
    """The keys of clients, and the one for replicas."""

    hashes: Sequence[bytes] | None = field(default=None, repr=False)
    """None: everybody may send requests."""
    replica_key: bytes | None = field(default=None, repr=False)
    """None: what clients send goes on."""
    sidecar_token: Secret | None = field(default=None, repr=False)
    """What to ask sidecars with; it goes to nobody else."""

    @property
    def idle(self) -> bool:
        """Has it nothing to do?"""
        return self.hashes is None and self.replica_key is None

    @property
    def replica_headers(self) -> Mapping[str, str]:
        """For what the router itself asks of replicas."""
        key = self.replica_key
        return {} if key is None else {"Authorization": f"Bearer {key.decode()}"}

    def refusal(self, target: bytes, values: Mapping[bytes, Sequence[bytes]]) -> Refusal | None:
        """Why a request with this head may not go on; None: it may."""
        if self.hashes is None or split_target(target)[1].partition(b"?")[0] in _OPEN:
            return None
        said = values.get(AUTHORIZATION)
        if said is None:
            return NO_KEY
        found = _BEARER.fullmatch(said[0].strip()) if len(said) == 1 else None
        if found is None:
            return WRONG_KEY
        digest, known = sha256(found[1]).digest(), False
        for each in self.hashes:
            known |= hmac.compare_digest(each, digest)
        return None if known else WRONG_KEY

    def passed(self, fields: Fields) -> Fields:
        """What of the head goes on to the replica."""
        if self.replica_key is None:
            return fields
        kept = [line for line in fields.kept if line[:14].lower() != b"authorization:"]
        return Fields([*kept, b"Authorization: Bearer " + self.replica_key], fields.values)


def read(keys: str, replica_key: str, sidecar_token: str = "") -> Access:
    """From the three files; empty: there is none. Raises `ConfigError`, which names no key."""
    return Access(
        _hashes("access.keys", keys) if keys else None,
        _key("access.replica_key", replica_key) if replica_key else None,
        own("access.sidecar_token", sidecar_token),
    )


def _hashes(key: str, file: str) -> list[bytes]:
    hashes = []
    for number, line in enumerate(_text(key, file).splitlines(), 1):
        said = line.partition("#")[0].strip()
        if not said:
            continue
        found = _LINE.fullmatch(said)
        if found is None:
            wanted = "wanted a name and the 64 hexadecimal digits of a SHA-256"
            raise ConfigError(f"{key} = {file!r}: line {number}: {wanted}")
        hashes.append(bytes.fromhex(found[2]))
    return hashes


def _key(key: str, file: str) -> bytes:
    said = _text(key, file).strip().encode()
    if not _KEY.fullmatch(said):
        raise ConfigError(f"{key} = {file!r}: wanted one line, an API key without spaces")
    return said


def _text(key: str, file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{key} = {file!r}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key} = {file!r}: wanted text in UTF-8") from error


def made(name: str, dice: Callable[[int], str] = secrets.token_urlsafe) -> tuple[str, str]:
    """A new key, and its line for the file."""
    key = _PREFIX + dice(_KEY_BYTES)
    return key, f"{name} {sha256(key.encode()).hexdigest()}"
