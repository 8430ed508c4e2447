"""A run in figures.

Rule: nobody looks better by serving fewer. What never came counts as infinitely late (`math.inf`):
a request without a first token in TTFT, one that did not finish in E2E and in TPOT. Both miss every
SLO.

    quantile p       the least value that at least p ‰ of all values do not exceed: the one with
                     rank ceil(n·p/1000). It was measured; nothing is interpolated
    goodput          requests that finished, TTFT ≤ slo.ttft_s and TPOT ≤ slo.tpot_s ÷ all requests
    hit rate         cached ÷ prompt tokens, of the requests that had a first token
    imbalance        max ÷ mean of the replicas' busy seconds: 1 even, n: one of n did it all. One
                     that is slow, or there for half of the time, is rightly not as busy
    finished per s   ÷ all the simulated time

A one-token answer that finished has no TPOT, and keeps any bound on it. Where there is nothing to
measure (no requests, nobody busy) a figure is `None`; it is not a good one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ullage_tune.outcome import Outcome, Run

CURVE_PER_MILLE: Final = (*range(0, 1000, 10), 995, 999, 1000)
"""Where `Summary.ttft_curve_s` is taken: every whole percent, and the far end."""


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request must keep to count as good."""

    ttft_s: float = 5.0
    """At most, > 0."""
    tpot_s: float = 0.2
    """At most, > 0."""

    def __post_init__(self) -> None:
        for name, value in (("ttft_s", self.ttft_s), ("tpot_s", self.tpot_s)):
            if not value > 0.0:
                raise ValueError(f"slo.{name} = {value}: wanted a number > 0")

    def kept_by(self, outcome: Outcome) -> bool:
        """Whether the request was good."""
        ttft_s, tpot_s = outcome.ttft_s, outcome.tpot_s
        if ttft_s is None or outcome.finished_s is None:
            return False
        return ttft_s <= self.ttft_s and (tpot_s is None or tpot_s <= self.tpot_s)


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in figures. Seconds may be `math.inf`: never."""

    requests: int
    refused: int
    """Sent nowhere."""
    failed: int
    """Sent to a replica, and not finished."""
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    e2e_p50_s: float | None
    e2e_p99_s: float | None
    goodput: float | None
    """Share of all requests that kept the SLO, 0..1."""
    hit_rate: float | None
    """Share of the prompts' tokens that were in the cache, 0..1."""
    imbalance: float | None
    """The busiest replica's seconds ÷ their mean, ≥ 1."""
    finished_per_s: float
    ttft_curve_s: tuple[float, ...]
    """TTFT at each of `CURVE_PER_MILLE`; empty: there were no requests."""
    busy_s: tuple[float, ...]
    """Of each replica, as in the run."""
    simulated_s: float
    wall_s: float


def quantile(ordered: Sequence[float], per_mille: int) -> float | None:
    """The value with rank ceil(n·per_mille/1000) of ascending values; at 0 the first.

    The inverse of the empirical distribution: Hyndman and Fan (1996), definition 1.
    """
    if not ordered:
        return None
    return ordered[max(0, -(-len(ordered) * per_mille // 1000) - 1)]


def summarise(run: Run, slo: Slo) -> Summary:
    """The figures of one run."""
    outcomes = run.outcomes
    ttft_s = sorted(math.inf if o.ttft_s is None else o.ttft_s for o in outcomes)
    e2e_s = sorted(math.inf if o.e2e_s is None else o.e2e_s for o in outcomes)
    tpot_s = sorted(_tpots(outcomes))
    finished = sum(o.finished_s is not None for o in outcomes)
    refused = sum(o.replica is None for o in outcomes)
    served = [o for o in outcomes if o.first_token_s is not None]
    return Summary(
        requests=len(outcomes),
        refused=refused,
        failed=sum(o.replica is not None and o.finished_s is None for o in outcomes),
        ttft_p50_s=quantile(ttft_s, 500),
        ttft_p90_s=quantile(ttft_s, 900),
        ttft_p99_s=quantile(ttft_s, 990),
        tpot_p50_s=quantile(tpot_s, 500),
        tpot_p99_s=quantile(tpot_s, 990),
        e2e_p50_s=quantile(e2e_s, 500),
        e2e_p99_s=quantile(e2e_s, 990),
        goodput=_ratio(sum(map(slo.kept_by, outcomes)), len(outcomes)),
        hit_rate=_ratio(sum(o.cached_tokens for o in served), sum(o.prompt_tokens for o in served)),
        imbalance=_ratio(max(run.busy_s, default=0.0) * len(run.busy_s), math.fsum(run.busy_s)),
        finished_per_s=_ratio(finished, run.simulated_s) or 0.0,
        ttft_curve_s=tuple(
            value for p in CURVE_PER_MILLE if (value := quantile(ttft_s, p)) is not None
        ),
        busy_s=run.busy_s,
        simulated_s=run.simulated_s,
        wall_s=run.wall_s,
    )


def _tpots(outcomes: Sequence[Outcome]) -> list[float]:
    values = [math.inf if o.finished_s is None else o.tpot_s for o in outcomes]
    return [value for value in values if value is not None]


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
