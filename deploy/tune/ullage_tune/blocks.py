"""The KV blocks of a prompt and its answer, named as vLLM's prefix cache wants them: by content.

A block's name is a hash of its parent's and of which tokens of which texts it holds. vLLM hashes
the tokens themselves; here texts stand for tokens, so that a prompt of 100,000 costs what its
segments cost, and once for all policies.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ullage_tune.workload import Request, Segment, Workload


class Prepared(NamedTuple):
    """A request as an engine takes it in."""

    number: int
    """Its place in the workload."""
    request: Request
    prompt_tokens: int
    names: tuple[bytes, ...]
    """Of the full blocks of prompt and answer."""


def prepared(workload: Workload, block_size: int) -> tuple[Prepared, ...]:
    """All requests of a workload."""
    answers = answers_of(workload)
    return tuple(
        Prepared(
            number,
            request,
            request.prompt_tokens,
            tuple(names((*request.prompt, answers[number]), block_size)),
        )
        for number, request in enumerate(workload.requests)
    )


def answers_of(workload: Workload) -> Mapping[int, Segment]:
    """Each request's answer, as the next turn of its session repeats it; else a text of its own."""
    taken = max((s.text for r in workload.requests for s in r.prompt), default=0)
    answers: dict[int, Segment] = {}
    last: dict[int, int] = {}
    for number, request in enumerate(workload.requests):
        answers[number] = Segment(taken + 1 + number, request.output_tokens)
        before = last.get(request.session) if request.session >= 0 else None
        last[request.session] = number
        if before is None:
            continue
        earlier = workload.requests[before]
        at = len(earlier.prompt)
        if len(request.prompt) > at and request.prompt[:at] == earlier.prompt:
            answer = request.prompt[at]
            if answer.tokens <= earlier.output_tokens:
                answers[before] = Segment(answer.text, earlier.output_tokens)
    return answers


def names(segments: Iterable[Segment], block_size: int) -> Iterator[bytes]:
    """Of each full block."""
    name, room = 0, block_size
    held: list[int] = []
    for text, tokens in segments:
        at = 0
        while tokens - at >= room:
            name = hash((name, text, at) if not held else (name, *held, text, at))
            yield name.to_bytes(8, "little", signed=True)
            at += room
            held, room = [], block_size
        if at < tokens:
            held += (text, at)
            room -= tokens - at
