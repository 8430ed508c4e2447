"""Tokens, certificates and keys as files that only their owner may read."""

from pathlib import Path

from certificates import Authority
from ullage_router.config import Tls

TOKEN = "an-everyday-token-of-ours-and-nobody-elses"
HEADER = f"Bearer {TOKEN}"


def token_file(folder: Path, *tokens: str, name: str = "token") -> str:
    """They, one to a line; by default ours."""
    file = folder / name
    file.touch(0o600)
    file.chmod(0o600)
    file.write_text("".join(f"{token}\n" for token in tokens or (TOKEN,)))
    return str(file)


def issued(authority: Authority, folder: Path) -> Tls:
    """A certificate for the loopback, and its key, private."""
    tls = authority.issue(folder)
    Path(tls.key).chmod(0o600)
    return tls
