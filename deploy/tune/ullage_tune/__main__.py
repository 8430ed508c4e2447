"""`ullage-tune`."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from ullage_tune.fit.command import add_fit
from ullage_tune.fit.record_command import add_record
from ullage_tune.replay.command import add_replay
from ullage_tune.run_command import add_run, add_show
from ullage_tune.search.command import add_search


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    flags = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="ullage-tune",
        description="Measures routing policies on your traffic, without a GPU.",
    )
    flags.add_argument("--version", action="version", version=f"%(prog)s {version('ullage')}")
    commands = flags.add_subparsers(required=True, metavar="COMMAND")
    for add in (add_run, add_show, add_search, add_record, add_fit, add_replay):
        add(commands)
    arguments = flags.parse_args(argv)
    try:
        status = arguments.go(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # Whoever read has had enough, as `head` has.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    raise SystemExit(status)


if __name__ == "__main__":
    main()
