"""Sources that are files, looked at again and again.

Rules
* A file is read when its identity, size or times have become others, and have stood still for a
  look: of one that is being written nothing is taken. At the first look it is read at once, and one
  that never stands still, after `MOST_LOOKS`.
* One that cannot be read keeps its last list, and costs no other file of its pattern.
* A file that is gone takes its list along while another matches the pattern; the last one does not.
"""

import glob
from collections import Counter
from pathlib import Path
from typing import Final

from ullage_shared.discovery.known import Known, after, brief, together
from ullage_shared.discovery.listed import ListError, listed

LOOK_EVERY_S: Final = 1.0
MOST_LOOKS: Final = 5

_Print = tuple[int, ...]
"""What differs as soon as a file is another one, or has been written."""


class Files:
    """Those that match a pattern. Each look blocks: it belongs into a thread."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._known: dict[str, Known] = {}
        self._read: dict[str, _Print] = {}
        """As each was when it was read."""
        self._seen: dict[str, _Print] = {}
        """As each was at the last look."""
        self._moving: Counter[str] = Counter()
        """At how many looks in a row each was another one."""
        self._first = True

    def look(self) -> Known:
        """Look, and say what is known now. Whatever is wrong with a file, nothing is raised."""
        prints = {path: _print_of(path) for path in sorted(glob.glob(self._pattern))}  # noqa: PTH207
        there = {path: each for path, each in prints.items() if each is not None}
        if not there:
            self._read.clear()
            return after(together(self._known.values()), f"{self._pattern}: no such file")
        self._known = {path: self._known.get(path, Known()) for path in there}
        for path, each in there.items():
            if self._read.get(path) != each and self._is_whole(path, each):
                self._known[path], well = _read(self._known[path], path)
                if well:  # Else again: the disk may be back, or the right to read it.
                    self._read[path] = each
        self._seen, self._first = there, False
        return together(self._known.values())

    def _is_whole(self, path: str, now: _Print) -> bool:
        """May it be read, or is somebody writing it?"""
        if self._first or self._seen.get(path) == now:
            return True
        self._moving[path] = (self._moving[path] + 1) % MOST_LOOKS
        return self._moving[path] == 0


def _read(known: Known, path: str) -> tuple[Known, bool]:
    """What is known after reading it, and whether it could be read."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        return after(known, f"{path}: cannot be read: {error.strerror}"), False
    try:
        return after(known, listed(content, yaml=not path.endswith(".json"))), True
    except ListError as error:
        return after(known, f"{path}: {brief(str(error))}"), True


def _print_of(path: str) -> _Print | None:
    """None: it is gone."""
    try:
        now = Path(path).stat()
    except OSError:
        return None
    return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns
