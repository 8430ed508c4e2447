"""What a recording tells of an engine, or what it lacks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ullage_tune.engine_file import LEAST
from ullage_tune.fit.recording import Said
from ullage_tune.fit.regression import LEAST_ROWS, Solution, solve
from ullage_tune.fit.rows import Row, Rows, rows
from ullage_tune.fit.steps import Steps, Why, runs_ahead, several_each
from ullage_tune.gpu import Engine

WANTED: Final = {
    "base_s": "steps of few tokens beside steps of many",
    "per_token_s": "prompts of many lengths, not found in the prefix cache",
    "per_sequence_s": "now few, now many requests at a time",
    "per_context_token_s": "now short, now long prompts and answers",
}
"""What traffic tells a parameter."""


FEW: Final = 0.1
"""Of the steps may be of another kind: a request that is aborted makes one."""


class FitError(Exception):
    """The recording does not tell enough. The message says what is missing."""


class Fitted(NamedTuple):
    """What it tells."""

    engine: Engine
    """Its steps' parameters; those in `solution.untold` are worth nothing."""
    solution: Solution
    rows: int
    """Those that are no outliers."""
    steps: int
    """In them."""
    dropped: Mapping[Why, int]
    """Steps, by why they are in none."""
    ahead: bool
    """Was it asynchronous scheduling?"""
    found: float
    """Of the prompts' tokens, the share that was in the cache, 0..1."""
    spans: Mapping[str, tuple[float, float]]
    """The least and the most of a step, in the mean of a row."""


def fit(said: Said, flags: Mapping[str, int], fixed: Mapping[str, float]) -> Fitted:
    """Fit one engine.

    `flags`: what it was started with, where the recording does not tell, or instead of what it
    tells; `fixed`: parameters of the model that are known, in seconds. Raises `FitError`.
    """
    started = _started(said, flags)
    room = (started["blocks"] - 1) * started["block_size"]
    senders = [Steps.of(steps, room) for steps in said.senders.values()]
    ahead = runs_ahead(senders)
    made = Rows()
    for steps in senders:
        made = made.plus(rows(steps, int(ahead), started["block_size"]))
    others = max(made.dropped.get(Why.NOT_ONE_EACH, 0), sum(map(several_each, senders)))
    if others > FEW * said.steps:
        raise FitError(
            f"{Why.NOT_ONE_EACH} in {others} of {said.steps} steps: wanted an engine without "
            "speculative decoding and pipeline parallelism"
        )
    if len(made.rows) < LEAST_ROWS:
        raise FitError(_too_few(made, said.steps))
    solution = solve(made.rows, fixed)
    kept = [row for row, is_kept in zip(made.rows, solution.kept, strict=True) if is_kept]
    steps_kept = sum(row.steps for row in kept)
    outliers = sum(row.steps for row in made.rows) - steps_kept
    return Fitted(
        Engine(solution.model, **started),
        solution,
        len(kept),
        steps_kept,
        Counter(made.dropped) + Counter({Why.OUTLIER: outliers}),
        ahead,
        _found(senders),
        _spans(kept),
    )


def _started(said: Said, flags: Mapping[str, int]) -> dict[str, int]:
    """What the engine was started with."""
    hello = said.hello
    told = {
        "blocks": hello.total_blocks,
        "block_size": hello.block_size,
        "max_num_seqs": hello.max_num_seqs,
        "max_num_batched_tokens": hello.max_num_batched_tokens,
        "max_model_len": hello.max_model_len,
    }
    started = {}
    for name, least in LEAST.items():
        value = flags.get(name, told[name])
        flag = f"--{name.replace('_', '-')}"
        if value is None:
            raise FitError(f"{name}: this vLLM does not tell it; wanted {flag} N")
        if value < least:
            raise FitError(f"{name} = {value}: wanted {least} or more; {flag} N corrects it")
        started[name] = value
    return started


def _too_few(made: Rows, steps: int) -> str:
    text = f"{len(made.rows)} stretches of steps that can be used, wanted {LEAST_ROWS}"
    if not steps:
        return f"{text}: nothing ran while it was recorded; wanted requests"
    if made.dropped:
        why, count = Counter(made.dropped).most_common(1)[0]
        text += f"; of {steps} steps {sum(made.dropped.values())} are of no use, "
        text += f"{count} of them because: {why}"
    return f"{text}. Wanted a longer recording, with several requests at a time"


def _found(senders: Sequence[Steps]) -> float:
    grown = [(s.known[-1], s.known[0]) for s in senders if s.known and s.looks_up]
    looked_up = sum(last.looked_up - first.looked_up for last, first in grown)
    return sum(last.found - first.found for last, first in grown) / max(looked_up, 1)


def _spans(kept: Sequence[Row]) -> Mapping[str, tuple[float, float]]:
    each = {
        "seconds": [row.seconds / row.steps for row in kept],
        "tokens": [row.tokens / row.steps for row in kept],
        "sequences": [row.sequences / row.steps for row in kept],
        "tokens of context": [row.context / row.steps for row in kept],
    }
    return {name: (min(values), max(values)) for name, values in each.items()}
