"""`ullage-router key NAME`: a new API key for a client, and the line for the file of `access.keys`.

The key is printed to standard output and nowhere kept; the line, which only has its hash, to
standard error, or with `--append FILE` it is added to that file.

Exit status: 0 done; 1 the file cannot be written; 2 wrong usage.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ullage_router.http.access import made

_NAME: Final = re.compile(r"[^\s#]{1,100}")
_PRIVATE: Final = 0o640


def main(words: Sequence[str]) -> int:
    """Make one. Returns the exit status."""
    options = _parser().parse_args(words)
    key, line = made(options.name)
    if options.append is None:
        sys.stderr.write(f"{line}\n")
    else:
        try:
            _append(options.append, line)
        except OSError as error:
            why = f"--append {options.append}: {error.strerror}"
            sys.stderr.write(f"ullage-router key: {why}\n")
            return 1
    sys.stdout.write(f"{key}\n")
    return 0


def _append(file: Path, line: str) -> None:
    """Behind what is there, on a line of its own; a file that is new is not for everybody."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, _PRIVATE)
    with os.fdopen(descriptor, "rb+") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(0, size - 1))
        ended = opened.read(1) in (b"", b"\n")
        opened.write(("" if ended else "\n").encode() + line.encode() + b"\n")


def _parser() -> argparse.ArgumentParser:
    command = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="ullage-router key",
        description="Makes an API key for a client: it is printed once and kept nowhere. What the "
        "file of access.keys gets is its name and its hash.",
        epilog="exit status: 0 done, 1 the file cannot be written, 2 wrong usage",
    )
    command.add_argument("name", type=_name, metavar="NAME", help="whose it is")
    command.add_argument("--append", type=Path, metavar="FILE", help="add the line to this file")
    return command


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: wanted up to 100 characters, no space, no #")
    return text
