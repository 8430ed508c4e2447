"""Conversations: many at once, each turn's prompt the whole of what was said before, and more.

    prompt of turn k+1 = prompt of turn k + its answer + a new message
    at of turn k+1     = at of turn k + answer's tokens · SECONDS_PER_TOKEN + pause

A segment is a message (system prompt, user's message or tool's result, answer), so that turns share
their beginnings exactly. People who read and agents that wait for a tool differ in figures only.

Conversations begin before instant 0, so that there are as many at 0 as ever after, and the rate is
its mean from the first second on. What was said before 0 is forgotten: the first turn behind 0
opens its conversation anew. (Else each of them would come with a long history that no cache has
seen, all in the first seconds; a storm that real services see only when they move.)
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from ullage_tune.draws import Draw, Uniform, tokens
from ullage_tune.workload import Request, Segment

SECONDS_PER_TOKEN: Final = 0.03
"""An answer's expected pace: a step of a server under load takes 20–40 ms."""

Begin = Callable[[int, float], Iterator[Request]]
"""A conversation's requests in their order, by its number and its first instant."""


@dataclass(frozen=True, slots=True)
class Manners:
    """How one kind of conversation goes."""

    turns: Uniform
    """Requests of one conversation, both bounds included."""
    opening: Draw
    """Tokens of the first message."""
    message: Draw
    """Tokens of each later one: what a user says, or a tool returns."""
    answer: Draw
    """Tokens of each answer."""
    pause_s: Draw
    """From an answer's end to the next message."""
    most_tokens: int
    """It ends before prompt and answer exceed this."""
    warm_in_s: float
    """Longer than nearly all conversations last."""


def interleave(starts: Iterator[float], begin: Begin, n: int) -> tuple[Request, ...]:
    """The first `n` requests from instant 0 on, of conversations that start at these instants."""
    waiting: list[tuple[float, int, Request, Iterator[Request]]] = []
    requests: list[Request] = []
    number = 0
    starts_s = next(starts)
    while len(requests) < n:
        while not waiting or starts_s <= waiting[0][0]:
            _await(waiting, number, begin(number, starts_s))
            number += 1
            starts_s = next(starts)
        at_s, which, request, rest = heapq.heappop(waiting)
        if at_s >= 0.0:
            requests.append(request)
        _await(waiting, which, rest)
    return tuple(requests)


def _await(
    waiting: list[tuple[float, int, Request, Iterator[Request]]],
    number: int,
    requests: Iterator[Request],
) -> None:
    request = next(requests, None)
    if request is not None:
        heapq.heappush(waiting, (request.at_s, number, request, requests))


def converse(
    number: int,
    at_s: float,
    system: Segment,
    manners: Manners,
    texts: Iterator[int],
    rng: Random,
) -> Iterator[Request]:
    """One conversation under this system prompt. `texts` names new tokens."""
    prompt: tuple[Segment, ...] = (system, Segment(next(texts), tokens(manners.opening, rng)))
    for _ in range(rng.randint(round(manners.turns.least), round(manners.turns.most))):
        said = tokens(manners.answer, rng)
        if sum(segment.tokens for segment in prompt) + said > manners.most_tokens:
            return
        yield Request(at_s, prompt, said, number)
        if at_s >= 0.0:
            prompt += (
                Segment(next(texts), said),
                Segment(next(texts), tokens(manners.message, rng)),
            )
        at_s += said * SECONDS_PER_TOKEN + manners.pause_s(rng)
