"""`ullage-router`: serves; or, with a subcommand, does something for whoever runs it."""

import sys
from collections.abc import Mapping, Sequence
from typing import Final

from ullage_shared import start

COMMANDS: Final[Mapping[str, str]] = {
    "check": "ullage_router.check",
    "explain": "ullage_router.explain_command",
    "key": "ullage_router.key_command",
    "top": "ullage_router.top",
}
"""Where each subcommand's `main` is. It gets the words behind the subcommand."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    words = sys.argv[1:] if argv is None else list(argv)
    module = COMMANDS.get(words[0]) if words else None
    if words and module is None and not words[0].startswith("-"):
        return start.no_such("ullage-router", words[0], COMMANDS)
    if module is not None:
        return start.run("ullage-router", "router", module, words[1:])
    return start.run("ullage-router", "router", "ullage_router.run", words)


if __name__ == "__main__":
    sys.exit(main())
