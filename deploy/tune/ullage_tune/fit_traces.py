"""Measures in a trace what its stand-in is drawn from.

    python -m ullage_tune.fit_traces TRACES/mooncake_conversation.jsonl > mooncake.json
    python -m ullage_tune.fit_traces TRACES/azure2023_conv.csv > azure.json

in this folder gives what `standins` reads, and says on stderr how close the stand-in comes. Which
of the two models: the one with conversations if any request goes on from an earlier one.

* Lengths, gaps, messages: their quantiles. Answers: quantiles for each eighth of the prompts.
* Who follows whom: `shape.links`. A later turn continues if it holds all whole blocks of the prompt
  before but at most one; else it branches.
* **Cut off**: a trace ends while conversations go on, and began while they did. So first prompts,
  and whether a turn is followed, are taken from the middle half only: a quarter of the trace lies
  before, in which its conversation would have been seen, and one behind, to be followed in.
  Conversations per second are requests per second over the mean number of turns.
* Arrivals: `fit_arrivals`.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from ullage_tune.draws import LEVELS, Quantiles
from ullage_tune.fit_arrivals import TICKED_S, WINDOWS_S, figures, swings
from ullage_tune.likeness import compare
from ullage_tune.shape import Link, links
from ullage_tune.standins import Answers, Chained, Independent, Starts
from ullage_tune.traces import BLOCK, read_trace
from ullage_tune.workload import Request, Workload

LEAST: Final = 1000
LEAST_S: Final = 2.0 * max(*WINDOWS_S, *TICKED_S)
"""Requests, and time, from which quantiles and swings mean something."""
CLASSES: Final = 8
SEEDS: Final = 5
MESSAGES: Final = 3
"""And the tokens of a message."""
TURNS: Final = 8
"""How many turns the probability of going on is told apart for."""


def fit_azure(trace: Workload) -> Independent:
    """Parameters of requests that share nothing. `ValueError`: too few of them."""
    requests = _enough(trace)
    instants_s = [request.at_s for request in requests]
    per_s = len(requests) / trace.duration_s
    return Independent(
        requests=Starts(figures(per_s), swings(instants_s, WINDOWS_S)),
        prompt=_quantiles(request.prompt_tokens for request in requests),
        answers=_answers(requests),
    )


def fit_mooncake(trace: Workload) -> Chained:
    """Parameters of conversations in blocks. `ValueError`: too few of them."""
    requests = _enough(trace)
    chain = links(requests)
    followed = {link.follows for link in chain if link.follows is not None}
    later = [
        (requests[link.follows], request, link)
        for request, link in zip(requests, chain, strict=True)
        if link.follows is not None
    ]
    quarter_s = trace.duration_s / 4.0
    began = [
        (place, request)
        for place, (request, link) in enumerate(zip(requests, chain, strict=True))
        if link.follows is None and request.at_s >= quarter_s
    ]
    first = [
        (request.prompt_tokens, place in followed)
        for place, request in began
        if request.at_s < 3.0 * quarter_s
    ]
    goes_on = _goes_on(requests, chain, quarter_s)
    per_s = len(requests) / trace.duration_s
    answers = _answers(requests)
    turn = _turn_of(chain)
    on = [
        (turn[link.follows], now.prompt_tokens - last.prompt_tokens - last.output_tokens)
        for last, now, link in later
        if link.follows is not None and _continues(last, link)
    ]
    off = [(last, now, link) for last, now, link in later if not _continues(last, link)]
    return Chained(
        conversations=Starts(
            figures(per_s / _turns(goes_on)),
            swings([request.at_s for request in requests], TICKED_S),
        ),
        per_s=figures(per_s),
        single=_quantiles(length for length, goes_on in first if not goes_on),
        several=_quantiles(length for length, goes_on in first if goes_on),
        goes_on=goes_on,
        gap_s=_quantiles(now.at_s - last.at_s for last, now, _ in later),
        message=tuple(
            _quantiles(tokens for k, tokens in on if min(k, MESSAGES - 1) == wanted)
            for wanted in range(MESSAGES)
        ),
        branches=_branches(answers, later),
        kept=_quantiles(link.shared / (last.prompt_tokens // BLOCK) for last, _, link in off),
        grown=_quantiles(now.prompt_tokens / last.prompt_tokens for last, now, _ in off),
        answers=answers,
    )


def _enough(trace: Workload) -> tuple[Request, ...]:
    if len(trace.requests) < LEAST or trace.duration_s < LEAST_S:
        raise ValueError(
            f"{trace.name}: {len(trace.requests)} requests in {trace.duration_s:.0f} s, "
            f"wanted at least {LEAST} in {LEAST_S:.0f} s to fit anything to"
        )
    return trace.requests


def _branches(
    answers: Answers, later: Sequence[tuple[Request, Request, Link]]
) -> tuple[float, ...]:
    asked = [0] * len(answers.tokens)
    yes = [0] * len(answers.tokens)
    for last, _, link in later:
        place = answers.place(last.prompt_tokens)
        asked[place] += 1
        yes[place] += not _continues(last, link)
    return _shares(yes, asked)


def _continues(last: Request, link: Link) -> bool:
    return link.shared >= last.prompt_tokens // BLOCK - 1


def _goes_on(
    requests: Sequence[Request], chain: Sequence[Link], quarter_s: float
) -> tuple[float, ...]:
    followed = {link.follows for link in chain}
    turn = _turn_of(chain)
    asked = [0] * TURNS
    yes = [0] * TURNS
    for place, request in enumerate(requests):
        if quarter_s <= request.at_s < 3.0 * quarter_s:
            k = min(turn[place], TURNS - 1)
            asked[k] += 1
            yes[k] += place in followed
    return _shares(yes, asked)


def _shares(yes: Sequence[int], asked: Sequence[int]) -> tuple[float, ...]:
    """None of none is none."""
    return tuple(figures(y / max(1, a)) for y, a in zip(yes, asked, strict=True))


def _turn_of(chain: Sequence[Link]) -> list[int]:
    """Which turn of its conversation each request is, from 0 on."""
    turn: list[int] = []
    for link in chain:
        turn.append(0 if link.follows is None else turn[link.follows] + 1)
    return turn


def _turns(goes_on: Sequence[float]) -> float:
    """The mean that these probabilities give: 1 + p₁ + p₁p₂ + …, the last one for ever."""
    reached = 1.0
    mean = 1.0
    for p in goes_on[:-1]:
        reached *= p
        mean += reached
    if goes_on[-1] == 1.0:
        raise ValueError("the trace is too short: its conversations do not end")
    return mean + reached * goes_on[-1] / (1.0 - goes_on[-1])


def _answers(requests: Sequence[Request]) -> Answers:
    prompts = np.array([request.prompt_tokens for request in requests], dtype=float)
    inner = np.quantile(prompts, [k / CLASSES for k in range(1, CLASSES)])
    up_to = tuple(sorted({float(round(bound)) for bound in inner}))
    places = np.searchsorted(np.array(up_to), prompts, side="left")
    return Answers(
        up_to,
        tuple(
            _quantiles(r.output_tokens for r, p in zip(requests, places, strict=True) if p == k)
            for k in range(len(up_to) + 1)
        ),
    )


def _quantiles(values: Iterable[float]) -> Quantiles:
    sample = np.array(list(values), dtype=float)
    if not sample.size:
        raise ValueError("the trace has too few conversations to fit anything to")
    found = np.quantile(sample, LEVELS)
    return Quantiles(tuple(figures(float(value)) for value in found))


def main() -> None:
    """Print the parameters of the trace that is named, and how like it the stand-in is."""
    asked = argparse.ArgumentParser(prog="python -m ullage_tune.fit_traces", description=_SAYS)
    asked.add_argument("trace", type=Path)
    trace = read_trace(asked.parse_args().trace)
    fit: Chained | Independent
    if any(link.follows is not None for link in links(trace.requests)):
        fit = fit_mooncake(trace)
    else:
        fit = fit_azure(trace)
    sys.stdout.write(written(fit))
    for row in compare(trace, fit, SEEDS):
        sys.stderr.write("{:22} {:46} {}\n".format(*row))


_SAYS: Final = "Fit a stand-in to a trace: parameters to stdout, likeness to stderr."


def written(fit: Chained | Independent) -> str:
    """As JSON, one parameter a line."""
    fields = msgspec.to_builtins(fit)
    lines = (
        f"{msgspec.json.encode(k).decode()}: {msgspec.json.encode(v).decode()}"
        for k, v in fields.items()
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    main()
