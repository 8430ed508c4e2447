"""Secrets between our own parts: who asks for snapshots shows one, behind `Authorization: Bearer`.

A file holds them, one to a line. Of whoever serves, each opens, so that one can be exchanged for
another while both are in use; whoever asks has one.

    openssl rand -hex 32 > token        makes one

Rules
* It is random and long: 16 characters of printable ASCII at least, without spaces.
* A file that everybody on the host may read is refused: it holds no secret any more.
* No error, no repr and no page shows one; nor what stands where a path was wanted, for that may be
  the secret itself.
"""

import hmac
import re
import stat
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from ullage_shared.config import ConfigError

LEAST: Final = 16
"""Characters of a secret."""
MOST_BYTES: Final = 65_536
"""Of its file."""
_SECRET: Final = re.compile(rb"[!-~]+")
_BEARER: Final = re.compile(r"bearer +([!-~]+)", re.IGNORECASE)


class Secret:
    """One of them. Its `repr` does not show it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return "Secret(…)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._digest, other._digest)

    def __hash__(self) -> int:
        return hash(self._digest)

    @property
    def headers(self) -> Mapping[str, str]:
        """What to ask with."""
        return {"Authorization": f"Bearer {self._text}"}

    @property
    def _digest(self) -> bytes:
        return sha256(self._text.encode()).digest()


def opens(accepted: Iterable[Secret], said: str | None) -> bool:
    """Does this `Authorization` hold one of them? It takes as long whichever it is, and if none."""
    found = _BEARER.fullmatch((said or "").strip())
    shown = Secret(found[1]) if found else None
    known = False
    for each in accepted:
        known |= each == shown
    return known


def accepted(key: str, file: str) -> tuple[Secret, ...]:
    """All of a file that the configuration names under `key`, one at least; empty: none, for there
    is no file. Raises `ConfigError`."""
    return _read(key, file) if file else ()


def own(key: str, file: str) -> Secret | None:
    """The only one of a file; None: there is no file. Raises `ConfigError`."""
    secrets = accepted(key, file)
    if len(secrets) > 1:
        raise ConfigError(f"{key} = {file!r}: wanted one line, not {len(secrets)}")
    return secrets[0] if secrets else None


def private(key: str, file: str) -> None:
    """Raises `ConfigError` if a file is none, or if everybody may read it."""
    try:
        mode = Path(file).stat().st_mode
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{key} = {file!r}: cannot be read: {why}") from error
    if not stat.S_ISREG(mode):  # One that is no file may have no end.
        raise ConfigError(f"{key} = {file!r}: wanted a file")
    if mode & stat.S_IROTH:
        raise ConfigError(f"{key} = {file!r}: everybody may read it: chmod o-rwx")


def _read(key: str, file: str) -> tuple[Secret, ...]:
    if not file.startswith(("/", "./", "../")):
        raise ConfigError(f"{key}: wanted the path of a file, /… or ./…, not what it holds")
    private(key, file)
    try:
        with Path(file).open("rb") as opened:
            text = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{key} = {file!r}: cannot be read: {error.strerror}") from error
    if len(text) > MOST_BYTES:
        raise ConfigError(f"{key} = {file!r}: wanted {MOST_BYTES} bytes or less")
    secrets = []
    for number, line in enumerate(text.splitlines(), 1):
        said = line.strip()
        if not said:
            continue
        if len(said) < LEAST or not _SECRET.fullmatch(said):
            wanted = f"wanted {LEAST} characters of ASCII or more, without spaces"
            raise ConfigError(f"{key} = {file!r}: line {number}: {wanted}")
        secrets.append(Secret(said.decode()))
    if not secrets:
        raise ConfigError(f"{key} = {file!r}: is empty: wanted a secret")
    return tuple(secrets)
