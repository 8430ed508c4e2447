"""Generated mixes of requests, each a function of rate, number and seed.

* The first m of n requests are those that one gets for m.
* Instants and contents have dice of their own: a request is the same at any rate, only earlier.
  (Not so in `chat` and `agents`, where turns wait for answers and people, whatever the rate.)

Where figures come from: "asked" are those that the workloads were asked for with; "reported" are
the source's that is named; the rest are ours, chosen round.
"""

from collections.abc import Iterator
from itertools import accumulate, count
from random import Random
from typing import Final

from ullage_tune.arrivals import Piece, arrivals, on_off, steady
from ullage_tune.conversations import Manners, converse, interleave
from ullage_tune.dice import Dice
from ullage_tune.draws import Draw, Exponential, LogNormal, LogUniform, Uniform, tokens
from ullage_tune.workload import Request, Segment, Workload

BRIEF: Final = LogNormal(median=300.0, sigma=0.6, least=16.0, most=2_000.0)
"""Most prompts of mixed traffic: a median between 200 and 400 tokens (asked)."""
LENGTHY: Final = LogNormal(median=2_500.0, sigma=1.0, least=500.0, most=30_000.0)
"""The others: prompts of up to 30,000 tokens are reported by those who asked for the router."""
SPOKEN: Final = LogNormal(median=120.0, sigma=1.0, least=5.0, most=2_000.0)
"""Answers of mixed traffic: 5 to 2,000 tokens (reported by the same)."""
BRIEF_SHARE: Final = 0.7
"""Of mixed traffic (asked)."""

TIMES: Final = 5.0
"""A burst's rate over the calm rate (asked)."""
ON_S: Final = 10.0
OFF_S: Final = 30.0

SYSTEMS: Final = 50
"""System prompts, of 1,000 to 3,000 tokens each (asked), the k-th with weight 1/k (Zipf)."""
HOT_SHARE: Final = 0.4
"""Of all traffic under one system prompt (asked)."""

CHAT: Final = Manners(
    turns=Uniform(4, 10),
    opening=LogNormal(median=150.0, sigma=1.0, least=10.0, most=5_000.0),
    message=LogNormal(median=50.0, sigma=0.9, least=4.0, most=1_000.0),
    answer=LogNormal(median=160.0, sigma=0.8, least=5.0, most=1_500.0),
    pause_s=Exponential(20.0),
    most_tokens=32_000,
    warm_in_s=400.0,
)
"""Means of message and answer near LMSYS-Chat-1M's (70 and 215 tokens, arXiv 2309.11998); more
turns than its 2, about as many as vLLM's multi-turn benchmark has (6 to 9): histories are to grow.
The pause is far below the two minutes that Mooncake's users take, so that a run of minutes sees
whole conversations."""
CHAT_SYSTEM_TOKENS: Final = 500
"""One for all, as in vLLM's multi-turn benchmark."""

AGENTS: Final = Manners(
    turns=Uniform(10, 50),
    opening=LogNormal(median=600.0, sigma=0.8, least=50.0, most=6_000.0),
    message=LogUniform(200.0, 4_000.0),
    answer=LogNormal(median=120.0, sigma=0.8, least=10.0, most=1_000.0),
    pause_s=LogNormal(median=2.0, sigma=1.0, least=0.1, most=60.0),
    most_tokens=120_000,
    warm_in_s=600.0,
)
"""About 30 calls a session, as reported for coding agents (AzurePublicDataset, GitHub Copilot 2026:
3.95 turns of 7.8 calls); a tool's result is 200 to 4,000 tokens (asked)."""
AGENT_SYSTEMS: Final = (8_000, 5_000, 3_000)
"""System prompt and tools of each kind of agent, in tokens; the k-th kind with weight 1/k."""


def short(rate_per_s: float, n: int, seed: int) -> Workload:
    """Prompts and answers of 20 to 200 tokens (asked)."""
    dice = Dice("short", rate_per_s, n, seed)
    return _alone(dice, steady(rate_per_s), Uniform(20, 200), Uniform(20, 200))


def long(rate_per_s: float, n: int, seed: int) -> Workload:
    """Prompts of 1,000 to 8,000 tokens (asked), answers of 50 to 400."""
    dice = Dice("long", rate_per_s, n, seed)
    return _alone(dice, steady(rate_per_s), Uniform(1_000, 8_000), Uniform(50, 400))


def mixed(rate_per_s: float, n: int, seed: int) -> Workload:
    """70 % brief prompts, 30 % with a long tail."""
    dice = Dice("mixed", rate_per_s, n, seed)
    return _alone(dice, steady(rate_per_s), _mixed_prompt, SPOKEN)


def bursts(rate_per_s: float, n: int, seed: int) -> Workload:
    """`mixed`, in bursts of five times the calm rate: 10 s of them, 30 s between, in the mean."""
    dice = Dice("bursts", rate_per_s, n, seed)
    return _alone(dice, on_off(rate_per_s, TIMES, ON_S, OFF_S, dice.when), _mixed_prompt, SPOKEN)


def system(rate_per_s: float, n: int, seed: int) -> Workload:
    """A brief question under one of 50 system prompts, by Zipf."""
    return _under_systems("system", None, rate_per_s, n, seed)


def system_hot(rate_per_s: float, n: int, seed: int) -> Workload:
    """The same with one system prompt at 40 % of the traffic."""
    return _under_systems("system-hot", HOT_SHARE, rate_per_s, n, seed)


def chat(rate_per_s: float, n: int, seed: int) -> Workload:
    """People who talk: each turn's prompt is all that was said, and a new message."""
    return _talking("chat", CHAT, (CHAT_SYSTEM_TOKENS,), rate_per_s, n, seed)


def agents(rate_per_s: float, n: int, seed: int) -> Workload:
    """Loops: many turns, little pause, tools' results, brief answers, long contexts."""
    return _talking("agents", AGENTS, AGENT_SYSTEMS, rate_per_s, n, seed)


def _alone(dice: Dice, pieces: Iterator[Piece], prompt: Draw, output: Draw) -> Workload:
    """Requests that share nothing."""
    coming = arrivals(pieces, dice.when)
    requests = []
    for text in range(dice.n):
        length = tokens(prompt, dice.what)
        asked = (Segment(text, length),)
        requests.append(Request(next(coming), asked, tokens(output, dice.what)))
    return dice.workload(tuple(requests))


def _mixed_prompt(rng: Random) -> float:
    return BRIEF(rng) if rng.random() < BRIEF_SHARE else LENGTHY(rng)


def _zipf(kinds: int, hot_share: float | None = None) -> list[float]:
    """Cumulative shares of the first, second, … kind."""
    weights = [1.0 / k for k in range(1, kinds + 1)]
    if hot_share is not None:
        rest = sum(weights[1:])
        weights = [hot_share, *((1.0 - hot_share) * weight / rest for weight in weights[1:])]
    return list(accumulate(weights))


def _under_systems(
    name: str, hot_share: float | None, rate_per_s: float, n: int, seed: int
) -> Workload:
    dice = Dice(name, rate_per_s, n, seed)
    coming = arrivals(steady(rate_per_s), dice.when)
    systems = [Segment(k, tokens(Uniform(1_000, 3_000), dice.what)) for k in range(SYSTEMS)]
    shares = _zipf(SYSTEMS, hot_share)
    requests = []
    for text in range(SYSTEMS, SYSTEMS + n):
        (under,) = dice.what.choices(systems, cum_weights=shares)
        asked = Segment(text, tokens(BRIEF, dice.what))
        requests.append(Request(next(coming), (under, asked), tokens(SPOKEN, dice.what)))
    return dice.workload(tuple(requests))


def _talking(
    name: str,
    manners: Manners,
    system_tokens: tuple[int, ...],
    rate_per_s: float,
    n: int,
    seed: int,
) -> Workload:
    dice = Dice(name, rate_per_s, n, seed)
    pieces = steady(rate_per_s / manners.turns.mean)
    starts = arrivals(pieces, dice.when, since_s=-manners.warm_in_s)
    systems = [Segment(k, size) for k, size in enumerate(system_tokens)]
    shares = _zipf(len(systems))
    texts = count(len(systems))

    def begin(number: int, at_s: float) -> Iterator[Request]:
        (under,) = dice.what.choices(systems, cum_weights=shares)
        return converse(number, at_s, under, manners, texts, dice.what)

    return dice.workload(interleave(starts, begin, n))
