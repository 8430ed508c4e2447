"""`python3 deploy/rolling`, and `python3 -m rolling` where `deploy` is on the path."""

import sys
from pathlib import Path

if not __package__:  # The path begins with this folder, and is to begin with the one above.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from rolling.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
