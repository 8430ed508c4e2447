"""What it costs to find what a request asks for, by the body's size and shape.

    .venv/bin/python tests/bench/bench_ask.py [--seconds 0.3]

Prompts have quotes, line ends and letters beyond ASCII in them, as prompts have. Beside `ask_of`:
the least that reading a body can cost, "model only", where msgspec checks all of it and builds
nothing but its model; and `orjson.loads`, which builds everything. They take turns, so that noise
hits all. Medians in µs of calls that are timed one by one; the clock's own cost, some 0.1 µs, is in
them.

Below: what it costs to find `usage` at an answer's end, and to estimate and learn tokens.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import orjson

from ullage_router.core.ask import ask_of
from ullage_router.core.tokens import TokenRatio
from ullage_router.core.usage import prompt_tokens_in

SENTENCE: Final = 'Say "hello world" to the café, and then some more of it: ½ of 16 tokens.\n'
CHAT: Final = b"/v1/chat/completions"
TURNS: Final = 5
LEAST_CALLS: Final = 5
"""In a turn."""


class Model(msgspec.Struct):
    """What the baseline reads of a body."""

    model: str | None = None


model_only: Final = msgspec.json.Decoder(Model).decode


def text(size_bytes: int) -> str:
    """Make a text that takes about so many bytes in JSON."""
    sentence_bytes = len(json.dumps(SENTENCE, ensure_ascii=False).encode()) - 2
    return SENTENCE * max(1, round(size_bytes / sentence_bytes))


def body(**read: Any) -> bytes:
    """Make the body of a request to read this."""
    whole = {"model": "tiny", **read, "max_tokens": 64, "stream": True}
    return json.dumps(whole, ensure_ascii=False).encode()


def talk(size_bytes: int, messages: int) -> list[dict[str, str]]:
    """Make a system prompt and so many messages less one, of equal sizes."""
    roles = ["system", *["user", "assistant"] * messages][:messages]
    content = text(size_bytes // messages - 40)
    return [{"role": role, "content": content} for role in roles]


def cases() -> dict[str, tuple[bytes, bytes]]:
    """Name targets and bodies."""
    of = {
        f"chat, {name}, {messages} messages": (CHAT, body(messages=talk(size, messages)))
        for name, size, messages in (
            ("1 KB", 1_000, 3),
            ("10 KB", 10_000, 5),
            ("220 KB", 220_000, 2),
            ("220 KB", 220_000, 200),
            ("1 MB", 1_000_000, 5),
        )
    }
    of["completions, 1 KB"] = b"/v1/completions", body(prompt=text(1_000))
    of["completions, 220 KB"] = b"/v1/completions", body(prompt=text(220_000))
    of["responses, 1 KB, 3 items"] = b"/v1/responses", body(input=talk(1_000, 3))
    of["responses, 1 KB, a text"] = b"/v1/responses", body(input=text(1_000))
    of["embeddings, 1 KB"] = b"/v1/embeddings", body(input=text(1_000))
    return of


def medians_us(calls: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """Time each of `calls` for that long, in turns."""
    took_ns: list[list[int]] = [[] for _ in calls]
    for _ in range(TURNS):
        for call, took in zip(calls, took_ns, strict=True):
            took += time_turn(call, seconds / TURNS)
    return [statistics.median(took) / 1e3 for took in took_ns]


def time_turn(call: Callable[[], object], seconds: float) -> list[int]:
    """Return the nanoseconds of each call."""
    took_ns: list[int] = []
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s or len(took_ns) < LEAST_CALLS:
        began_ns = time.perf_counter_ns()
        call()
        took_ns.append(time.perf_counter_ns() - began_ns)
    return took_ns


def stream(size_bytes: int, *, usage: bool) -> bytes:
    """Make the last bytes of a stream, in chunks."""
    delta = {"choices": [{"index": 0, "delta": {"content": " usage"}, "finish_reason": None}]}
    event = b"data: " + json.dumps(delta, separators=(",", ":")).encode() + b"\n\n"
    last = b'data: {"choices":[],"usage":{"prompt_tokens":1234,"total_tokens":1300}}\n\n'
    chunk = b"%x\r\n%b\r\n"
    end = (chunk % (len(last), last) if usage else b"") + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
    return (chunk % (len(event), event)) * (size_bytes // len(event)) + end


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.3, help="per figure; default 0.3")
    seconds = parser.parse_args().seconds
    print(f"µs per call, median; Python {sys.version.split()[0]}")
    print(f"{'body':<28}{'ask_of':>9}{'model only':>12}{'orjson.loads':>14}{'ask/model':>11}")
    for name, (target, data) in cases().items():
        asked = ask_of(target, data)
        assert asked.model == "tiny"
        assert asked.prompt_bytes > len(data) * 0.8
        baselines = partial(model_only, data), partial(orjson.loads, data)
        calls = partial(ask_of, target, data), *baselines
        ours, least, theirs = medians_us(calls, seconds)
        print(f"{name:<28}{ours:>9.1f}{least:>12.1f}{theirs:>14.1f}{ours / least:>11.2f}")
    print()
    ratio = TokenRatio()
    others = {
        "usage in 64 KB of a stream": partial(prompt_tokens_in, stream(65_536, usage=True)),
        "no usage in 64 KB of one": partial(prompt_tokens_in, stream(65_536, usage=False)),
        "no usage in 4 KB of one": partial(prompt_tokens_in, stream(4096, usage=False)),
        "TokenRatio.learn": partial(ratio.learn, "tiny", 4000, 1000),
        "TokenRatio.estimate": partial(ratio.estimate, "tiny", 4000),
    }
    for name, took_us in zip(others, medians_us([*others.values()], seconds), strict=True):
        print(f"{name:<28}{took_us:>9.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
