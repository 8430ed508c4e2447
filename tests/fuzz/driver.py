"""Dice for as long as one likes: a seed makes an input, a side checks it, a fault is made small.

Rule: an input is nothing but the bytes on the wire. How they are cut, and all else, follows from
them: so the bytes alone reproduce a finding.
"""

import hashlib
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import Final

import grammar
import mutate
import request_side
import response_side

ONE_INPUT_S: Final = 10.0
"""An input that takes longer is a finding: a reader that hangs."""
_SMALLER_S: Final = 20.0
FOLDER: Final = Path(".build/fuzz")


@dataclass(frozen=True)
class Side:
    """One of the two directions."""

    name: str
    make: Callable[[Random], bytes]
    check: Callable[[bytes], None]
    check_valid: Callable[[bytes], None]


SIDES: Final = {
    "requests": Side("requests", grammar.requests, request_side.check, request_side.check_valid),
    "responses": Side(
        "responses",
        grammar.response,
        response_side.check,
        lambda wire: response_side.check(wire, valid=True),
    ),
}


class FoundError(AssertionError):
    """An input for which something does not hold, and how to see that again."""


def wire_of(side: Side, rng: Random) -> tuple[bytes, bool]:
    """An input, and whether it is valid: one in four is."""
    wire = side.make(rng)
    if rng.random() < 0.25:
        return wire, True
    return mutate.mutated(wire, lambda: side.make(rng), rng), False


def run(side: Side, seed: int, *, seconds: float, most: int | None = None) -> int:
    """Check inputs for `seconds`, or `most` of them; how many. Raises `FoundError`."""
    end_s = time.monotonic() + seconds
    count = 0
    while count != most and time.monotonic() < end_s:
        wire, valid = wire_of(side, Random(f"{seed}/{count}"))
        try_one(side, wire, valid=valid, how=f"seed {seed}, input {count}")
        count += 1
    return count


def try_one(side: Side, wire: bytes, *, valid: bool, how: str) -> None:
    """Check one input. Raises `FoundError`, with the smallest input that shows it in a file."""
    check = side.check_valid if valid else side.check
    problem = problem_of(check, wire)
    if problem is None:
        return
    if not valid:  # What is taken away from a valid one makes it another.
        wire = smaller(check, wire)
        problem = problem_of(check, wire) or problem
    file = save(side, wire, valid=valid)
    raise FoundError(
        f"{side.name} ({how}): {wire!r}\n{problem}\nagain: python tests/fuzz/run.py --replay {file}"
    )


def problem_of(check: Callable[[bytes], None], wire: bytes) -> str | None:
    """What does not hold for `wire`; None: all does."""
    try:
        with in_time(ONE_INPUT_S):
            check(wire)
    except Exception as problem:  # noqa: BLE001 -- any at all is a finding
        return f"{type(problem).__name__}: {problem}"[:2000]
    return None


def smaller(check: Callable[[bytes], None], wire: bytes) -> bytes:
    """A part of `wire` with a problem of the same kind, as small as can be had soon."""
    kind = _kind(problem_of(check, wire))
    end_s = time.monotonic() + _SMALLER_S
    size = len(wire) // 2
    while size:
        at = 0
        while at < len(wire) and time.monotonic() < end_s:
            less = wire[:at] + wire[at + size :]
            if _kind(problem_of(check, less)) == kind:
                wire = less
            else:
                at += size
        size //= 2
    return wire


def _kind(problem: str | None) -> str | None:
    return problem if problem is None else problem[:32]


def save(side: Side, wire: bytes, *, valid: bool) -> Path:
    """Write a finding's bytes to a file, whose name says how it is checked."""
    folder = FOLDER / "findings"
    folder.mkdir(parents=True, exist_ok=True)
    kind = "valid" if valid else "any"
    file = folder / f"{side.name}-{kind}-{hash_of(wire)}"
    file.write_bytes(wire)
    return file


def replay(file: Path) -> None:
    """Check the bytes of a file that `save` wrote. Raises what was found then."""
    name, kind, _ = file.name.split("-")
    side = SIDES[name]
    (side.check_valid if kind == "valid" else side.check)(file.read_bytes())


def hash_of(wire: bytes) -> str:
    """A short name for bytes."""
    return hashlib.sha256(wire).hexdigest()[:12]


@contextmanager
def in_time(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in what takes longer (main thread only). pytest's own timer goes on."""

    def stop(_: int, __: FrameType | None) -> None:
        raise TimeoutError(f"it took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    others_s, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    end_s = time.monotonic() + others_s
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if others_s:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, end_s - time.monotonic()))
