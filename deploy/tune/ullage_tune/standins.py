"""Stand-ins for recorded traces: requests drawn from what `fit_traces` measured in one.

* **Independent** (Azure's): instants from a wandering Poisson rate; prompts from their quantiles;
  answers from the quantiles of the prompts in the same eighth. That keeps any correlation, also the
  one that rises and falls again, as here. No prompt shares anything.
* **Chained** (Mooncake's): conversations begin by such a rate. Whether one goes on depends on how
  many turns it had; the first prompt's length on whether it goes on at all. The next turn comes
  after a gap (arrival to arrival) and either

      continues: all whole blocks of the last prompt, its answer and a message (whose tokens may be
                 negative: an answer may be cut before it comes back), or
      branches:  a share of the last prompt's whole blocks, then other text: a message was edited, a
                 document asked about again, a history cut short.

  Prompts are in blocks of 512 tokens as in the trace, the last one partial; a partial block is
  never shared. All begin with one and the same block.

A stand-in begins in mid-traffic as a trace does: conversations that began before 0 come with a
history that nobody has seen. Other rates than the fitted one are reached by scaling time, gaps
included, as traces are scaled (`Workload.at_rate`).
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import count
from random import Random
from typing import Final, TypeVar

import msgspec

from ullage_tune.arrivals import Swing, arrivals, swinging
from ullage_tune.conversations import interleave
from ullage_tune.draws import Quantiles, tokens
from ullage_tune.traces import BLOCK, MOST_TOKENS
from ullage_tune.workload import Request, Segment

T = TypeVar("T")

WARM_IN_S: Final = 3600.0
"""Conversations begin this long before 0; nearly all that began earlier are over."""

_PLACE: Final = resources.files("ullage_tune")


@dataclass(frozen=True, slots=True)
class Starts:
    """How requests, or conversations, begin."""

    per_s: float
    swings: tuple[Swing, ...]


@dataclass(frozen=True, slots=True)
class Answers:
    """Tokens of answers, by the prompt's length."""

    up_to: tuple[float, ...]
    """Prompt tokens, rising: a class for each, and one above the last."""
    tokens: tuple[Quantiles, ...]
    """One more than `up_to`."""

    def place(self, prompt_tokens: float) -> int:
        """The class of such a prompt, from 0 on."""
        return bisect_left(self.up_to, prompt_tokens)

    def draw(self, prompt_tokens: int, rng: Random) -> int:
        """An answer to such a prompt."""
        return tokens(self.tokens[self.place(prompt_tokens)], rng)


@dataclass(frozen=True, slots=True)
class Independent:
    """Requests that share nothing."""

    requests: Starts
    prompt: Quantiles
    answers: Answers


@dataclass(frozen=True, slots=True)
class Chained:
    """Conversations in blocks."""

    conversations: Starts
    per_s: float
    """Requests per second in the trace."""
    single: Quantiles
    """Tokens of the prompts that nothing follows."""
    several: Quantiles
    """Of the first prompts that something follows."""
    goes_on: tuple[float, ...]
    """Probability of another turn behind the first, second, …; the last one is for all later."""
    gap_s: Quantiles
    """From one turn to the next."""
    message: tuple[Quantiles, ...]
    """Tokens that a continuing prompt has beyond the last prompt and its answer: in the second
    turn, the third, …; the last one is for all later. (Who talks long sends little at a time.)"""
    branches: tuple[float, ...]
    """Share of later turns that branch, 0..1, by the last prompt's class (`Answers.place`)."""
    kept: Quantiles
    """Of the last prompt's whole blocks, in a branch, 0..1."""
    grown: Quantiles
    """A branch's tokens over the last prompt's."""
    answers: Answers


def mooncake() -> Chained:
    """Fitted to Mooncake's conversation trace (kvcache-ai/Mooncake, FAST'25, Apache-2.0)."""
    return msgspec.json.decode(_PLACE.joinpath("mooncake.json").read_bytes(), type=Chained)


def azure() -> Independent:
    """Fitted to Azure's conversation trace of 2023 (Azure/AzurePublicDataset, CC-BY)."""
    return msgspec.json.decode(_PLACE.joinpath("azure.json").read_bytes(), type=Independent)


def stand_in(fit: Chained | Independent, n: int, rng: Random) -> tuple[Request, ...]:
    """The first `n` requests, at the trace's own rate."""
    return chained(fit, n, rng) if isinstance(fit, Chained) else independent(fit, n, rng)


def independent(fit: Independent, n: int, rng: Random) -> tuple[Request, ...]:
    """The first `n` requests."""
    coming = arrivals(swinging(fit.requests.per_s, fit.requests.swings, rng), rng)
    requests = []
    for text in range(n):
        length = tokens(fit.prompt, rng)
        prompt = (Segment(text, length),)
        requests.append(Request(next(coming), prompt, fit.answers.draw(length, rng)))
    return tuple(requests)


def chained(fit: Chained, n: int, rng: Random) -> tuple[Request, ...]:
    """The first `n` requests from 0 on."""
    texts = count(1)
    pieces = swinging(fit.conversations.per_s, fit.conversations.swings, rng)
    starts = arrivals(pieces, rng, since_s=-WARM_IN_S)
    return interleave(starts, lambda number, at_s: _talk(fit, number, at_s, texts, rng), n)


def _talk(
    fit: Chained, number: int, at_s: float, texts: Iterator[int], rng: Random
) -> Iterator[Request]:
    goes_on = rng.random() < fit.goes_on[0]
    length = tokens(fit.several if goes_on else fit.single, rng)
    prompt: tuple[Segment, ...] = (Segment(0, BLOCK),)
    whole = 1
    for turn in count(1):
        answer = fit.answers.draw(length, rng)
        if length + answer > MOST_TOKENS:
            return
        if at_s >= 0.0:  # nobody sees what came before
            prompt = _blocks(prompt[:whole], length, texts)
        yield Request(at_s, prompt, answer, number)
        if not goes_on:
            return
        at_s += fit.gap_s(rng)
        whole = length // BLOCK
        if rng.random() < fit.branches[fit.answers.place(length)]:
            length = max(BLOCK, round(length * fit.grown(rng)))
            whole = min(max(2, round(whole * fit.kept(rng))), length // BLOCK)
        else:
            length = max(length, length + answer + round(_of(fit.message, turn)(rng)))
        goes_on = rng.random() < _of(fit.goes_on, turn + 1)


def _of(by_turn: Sequence[T], turn: int) -> T:
    """What holds for this turn, the first being 1."""
    return by_turn[min(turn, len(by_turn)) - 1]


def _blocks(kept: tuple[Segment, ...], length: int, texts: Iterator[int]) -> tuple[Segment, ...]:
    """A prompt of that length, which begins with these whole blocks as far as they fit."""
    whole, rest = divmod(length, BLOCK)
    new = (Segment(next(texts), BLOCK) for _ in range(whole - len(kept)))
    partial = (Segment(next(texts), rest),) if rest else ()
    return (*kept[:whole], *new, *partial)
