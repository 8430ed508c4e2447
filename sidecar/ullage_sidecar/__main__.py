"""`ullage-sidecar`: runs; or, with a subcommand, does something for whoever runs it."""

import sys
from collections.abc import Mapping, Sequence
from typing import Final

from ullage_shared import start

_ASK: Final = "ullage_sidecar.command"
COMMANDS: Final[Mapping[str, str]] = {
    "check": "ullage_sidecar.check",
    "drain": _ASK,
    "undrain": _ASK,
    "status": _ASK,
}
"""Where each subcommand's `main` is, which gets the whole command line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    words = sys.argv[1:] if argv is None else list(argv)
    module = COMMANDS.get(words[0]) if words else None
    if words and module is None and not words[0].startswith("-"):
        return start.no_such("ullage-sidecar", words[0], COMMANDS)
    return start.run("ullage-sidecar", "sidecar", module or "ullage_sidecar.run", words)


if __name__ == "__main__":
    sys.exit(main())
