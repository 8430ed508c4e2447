"""What must hold for peers that never end: any beginning, then any fragment over and over.

* Memory stays within a few times the limits and what comes at once, however much is sent.
* The cost of a byte does not grow with what came before (nothing is quadratic).
"""

import time
import tracemalloc
from collections.abc import Callable
from random import Random
from typing import Final

import grammar
import mutate
import readers

SENT_BYTES: Final = 4_000_000
LIMITS_BYTES: Final = readers.MAX_HEAD_BYTES + readers.MAX_BODY_BYTES
_TIMES: Final = 30
"""What a field of a few bytes weighs as Python objects."""


def check_request(rng: Random) -> None:
    """A client that does not end. Raises `AssertionError`."""
    beginning, fragment = _endless(grammar.requests, rng)
    reader = readers.request_reader()

    def feed(piece: bytes) -> bool:
        readers.feed(reader, piece)
        return reader.refusal is None

    _feed(feed, beginning, fragment, rng, limits_bytes=LIMITS_BYTES)
    reader.close()


def check_response(rng: Random) -> None:
    """A replica that does not end. Raises `AssertionError`."""
    beginning, fragment = _endless(grammar.response, rng)
    reader = readers.response_reader()
    reader.begin(bodiless=rng.random() < 0.2, dechunk=rng.random() < 0.3)

    def feed(piece: bytes) -> bool:
        try:
            reader.feed(piece)
        except readers.InvalidResponseError:
            return False
        # A field of a trailer is held until it ends: that is llhttp's, and the replica's own fault.
        endless_trailer = reader.head is not None and b"\n" not in piece
        return not reader.whole and not endless_trailer

    _feed(feed, beginning, fragment, rng, limits_bytes=readers.MAX_ANSWER_HEAD_BYTES // 4)


def _endless(make: Callable[[Random], bytes], rng: Random) -> tuple[bytes, bytes]:
    wire = make(rng)
    if rng.random() < 0.5:
        wire = mutate.mutated(wire, lambda: make(rng), rng)
    at = rng.randrange(len(wire) + 1)
    fragment = wire[at : at + rng.choice([1, 2, 7, 40, 3000])] or b"\r\n"
    return wire[: at if rng.random() < 0.7 else rng.randrange(len(wire) + 1)], fragment


def _feed(
    feed: Callable[[bytes], bool],
    beginning: bytes,
    fragment: bytes,
    rng: Random,
    *,
    limits_bytes: int,
) -> None:
    """Feed until the peer is refused or `SENT_BYTES` are through."""
    size = rng.choice([1, 100, 4096, 65_536])
    piece = fragment * max(1, size // len(fragment))
    pieces = min(SENT_BYTES // len(piece), 20_000) + 1
    halves_s = []
    tracemalloc.start()
    try:
        going = feed(beginning)
        for _ in range(2):
            began_s = time.process_time()
            for _ in range(pieces // 2 if going else 0):
                if not (going := feed(piece)):
                    break
            halves_s.append(time.process_time() - began_s)
        _, held = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    first_s, second_s = halves_s
    assert second_s < 2.5 * first_s + 0.5, ("slower and slower", halves_s, beginning, fragment)
    most = _TIMES * (limits_bytes + len(piece))
    assert held < most, ("held", held, beginning[:300], fragment, len(piece))
