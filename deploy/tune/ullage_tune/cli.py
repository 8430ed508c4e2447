"""The command line of `ullage-tune`."""

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


def main(words: Sequence[str]) -> int:
    """Run a command. Returns the exit status."""
    flags = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="ullage-tune",
        description="Measures routing policies on your traffic, without a GPU.",
        epilog="examples:\n"
        "  ullage-tune run --workload chat --load 0.7,0.85 --report out\n"
        "  ullage-tune replay --url http://router:8080 --workload trace.jsonl --rate 2\n"
        "  ullage-tune record --sidecar http://gpu-01:9400 steps.ulg\n"
        "  ullage-tune fit steps.ulg > my-gpu.toml\n"
        "each command has its own --help\n"
        "exit status: 0 done, 1 it cannot be done here, 2 wrong arguments or file, 130 Ctrl-C",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument("--version", action="version", version=f"%(prog)s {version('ullage')}")
    commands = flags.add_subparsers(required=True, metavar="COMMAND")
    for add in (add_run, add_show, add_search, add_record, add_fit, add_replay):
        add(commands)
    arguments = flags.parse_args(words)
    try:
        status: int = arguments.go(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # Whoever read has had enough, as `head` has.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    return status
