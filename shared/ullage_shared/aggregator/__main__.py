"""`ullage-aggregator`: runs; or, with a subcommand, does something for whoever runs it."""

import sys
from collections.abc import Mapping, Sequence
from typing import Final

from ullage_shared import start

COMMANDS: Final[Mapping[str, str]] = {"check": "ullage_shared.aggregator.check"}
"""Where each subcommand's `main` is, which gets the whole command line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    words = sys.argv[1:] if argv is None else list(argv)
    module = COMMANDS.get(words[0]) if words else None
    run = "ullage_shared.aggregator.run"
    return start.run("ullage-aggregator", "aggregator", module or run, words)


if __name__ == "__main__":
    sys.exit(main())
