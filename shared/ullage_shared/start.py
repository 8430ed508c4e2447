"""How a command starts: what it needs is imported here, where its absence can be told in a line.

Rules
* Of standard input, output and error, those that are closed are opened, on nothing: else the next
  socket or file got their numbers, and what is said its contents.
* Nothing is imported before `run` but the standard library: a bare install has no more.
* Ctrl-C while it starts, or while a subcommand works, is no fault: status 130, and no traceback.

Exit status: the subcommand's; 1 if a package is missing; 130 after Ctrl-C.
"""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Final, cast

MISSING: Final = 1
WRONG_USAGE: Final = 2
INTERRUPTED: Final = 130
_OURS: Final = "ullage"


def run(command: str, extra: str, module: str, words: Sequence[str]) -> int:
    """`main(words)` of `module`. `extra`: what has to be installed for `command`."""
    _open_closed()
    try:
        main = cast(Callable[[Sequence[str]], int], import_module(module).main)
        return main(words)
    except ModuleNotFoundError as error:
        name = error.name or str(error)
        if name.startswith(_OURS):  # A fault of ours, and no missing package.
            raise
        sys.stderr.write(f'{command}: {name} is not installed: pip install "{_OURS}[{extra}]"\n')
        return MISSING
    except KeyboardInterrupt:
        return INTERRUPTED


def no_such(command: str, word: str, known: Iterable[str]) -> int:
    """Say that it has no such subcommand; the exit status."""
    names = list(known)
    alike = get_close_matches(word, names, n=1)
    hint = f"did you mean {alike[0]}?" if alike else f"wanted one of: {', '.join(names)}"
    sys.stderr.write(f"{command}: there is no command {word!r}; {hint}\n")
    return WRONG_USAGE


def unread(error: OSError) -> bool:
    """Standard output takes no more: say nothing more there. Had whoever read it seen enough?"""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return isinstance(error, BrokenPipeError)


def _open_closed() -> None:
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            lowest_free = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(lowest_free, True)  # noqa: FBT003 -- it takes no name
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, "w" if fd else "r", closefd=False))
