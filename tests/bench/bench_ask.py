"""What it costs to find the model in a request's body, by the body's size and the key's place.

    .venv/bin/python tests/bench/bench_ask.py [--seconds 0.3]

The body is a chat request whose prompt has quotes, line ends and letters beyond ASCII in it, as
prompts have. Beside it: `orjson.loads`, which builds everything; the two take turns, so that noise
hits both. Medians in µs of calls that are timed one by one; the clock's own cost, some 0.1 µs, is
in them.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from ullage_router.core.ask import model_of

SIZES: Final = {"1 KB": 1_000, "10 KB": 10_000, "220 KB": 220_000, "1 MB": 1_000_000}
SENTENCE: Final = 'Say "hello world" to the café, and then some more of it: ½ of 16 tokens.\n'
TURNS: Final = 5
LEAST_CALLS: Final = 5
"""In a turn."""


def body(size: int, *, model_first: bool) -> bytes:
    """Make a request of about `size` bytes."""
    model = {"model": "tiny"}
    rest: dict[str, Any] = {"messages": [], "max_tokens": 64, "stream": True}
    room = size - len(json.dumps(model | rest))
    content = SENTENCE * max(
        1, round(room / len(json.dumps(SENTENCE, ensure_ascii=False).encode()))
    )
    rest["messages"] = [{"role": "user", "content": content}]
    whole = model | rest if model_first else rest | model
    return json.dumps(whole, ensure_ascii=False).encode()


def medians_us(
    calls: Sequence[Callable[[bytes], object]], data: bytes, seconds: float
) -> list[float]:
    """Time each of `calls` for that long, in turns."""
    took_ns: list[list[int]] = [[] for _ in calls]
    for _ in range(TURNS):
        for call, took in zip(calls, took_ns, strict=True):
            took += time_turn(call, data, seconds / TURNS)
    return [statistics.median(took) / 1e3 for took in took_ns]


def time_turn(call: Callable[[bytes], object], data: bytes, seconds: float) -> list[int]:
    """Return the nanoseconds of each call."""
    took_ns: list[int] = []
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s or len(took_ns) < LEAST_CALLS:
        began_ns = time.perf_counter_ns()
        call(data)
        took_ns.append(time.perf_counter_ns() - began_ns)
    return took_ns


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.3, help="per figure; default 0.3")
    seconds = parser.parse_args().seconds
    print(f"µs per call, median; Python {sys.version.split()[0]}")
    print(f"{'body':<8}{'model is':>10}{'model_of':>12}{'orjson.loads':>14}{'ratio':>8}")
    for size, size_bytes in SIZES.items():
        for model_first in (True, False):
            data = body(size_bytes, model_first=model_first)
            assert model_of(data) == "tiny"
            ours, theirs = medians_us((model_of, orjson.loads), data, seconds)
            where = "first" if model_first else "last"
            print(f"{size:<8}{where:>10}{ours:>12.1f}{theirs:>14.1f}{ours / theirs:>8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
