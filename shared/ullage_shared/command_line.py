"""How the command lines of router, sidecar and aggregator begin: alike.

No flag may be abbreviated: a script that does breaks with the next flag. Epilogues are laid out by
hand and printed as they are.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from ullage_shared.log import add_log_flags
from ullage_shared.version import VERSION

AddKeys = Callable[[argparse.ArgumentParser], None]
"""Adds the flags that are keys of the configuration."""


def plain_parser(
    prog: str, description: str, epilog: str, usage: str | None = None
) -> argparse.ArgumentParser:
    """A parser without flags."""
    return argparse.ArgumentParser(
        allow_abbrev=False,
        prog=prog,
        usage=usage,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def daemon_parser(
    prog: str, subcommands: str, description: str, epilog: str, add_keys: AddKeys
) -> argparse.ArgumentParser:
    """The command line of a process that serves, without a subcommand. A flag beats the same key in
    the file."""
    usage = f"%(prog)s [flags]   or   %(prog)s {subcommands} [flags]"
    command = plain_parser(prog, description, epilog, usage)
    command.add_argument("--config", type=Path, metavar="FILE", help="TOML file")
    add_keys(command)
    add_log_flags(command)
    command.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    return command
