"""`ullage-tune`."""

import sys
from collections.abc import Sequence

from ullage_shared import start


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    words = sys.argv[1:] if argv is None else argv
    raise SystemExit(start.run("ullage-tune", "tune", "ullage_tune.cli", words))


if __name__ == "__main__":
    main()
