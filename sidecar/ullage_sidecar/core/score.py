"""Headroom as one number.

    score = free_weight · free_ratio
          + running_weight · (1 - running / max_num_seqs)
          + waiting_weight · (1 - waiting / max_waiting)

0 is full, 1 is empty. Each term is clamped to 0..1 and the weights sum to 1, so the score is in
0..1 and monotone in each signal: more free blocks never lower it, more running or waiting requests
never raise it. Long prompts run out of blocks first (free_weight 0.5 to 0.6), short ones out of
sequences (running_weight up to 0.5).
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

Weight = Annotated[float, Meta(ge=0.0, le=1.0)]


class ScoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table `[score]`. The three weights sum to 1."""

    free_weight: Annotated[
        Weight,
        Meta(
            description="Weight of the free KV blocks, 0..1; raise it for long prompts. "
            "The three weights sum to 1."
        ),
    ] = 0.5
    running_weight: Annotated[
        Weight,
        Meta(description="Weight of the free sequence slots, 0..1; raise it for short prompts."),
    ] = 0.3
    waiting_weight: Annotated[
        Weight, Meta(description="Weight of the empty waiting queue, 0..1.")
    ] = 0.2
    max_waiting: Annotated[
        float,
        Meta(gt=0.0, le=1e6, description="Waiting requests at which the queue's term reaches 0."),
    ] = 10.0


@dataclass(frozen=True, slots=True)
class ScoreTerms:
    """The room each signal leaves, 0 (none) .. 1 (all), before weighting: why a score is low."""

    free: float
    running: float
    waiting: float


def terms(
    free_ratio: float, running_ratio: float, waiting_depth: float, max_waiting: float
) -> ScoreTerms:
    """Turn signals into terms. Ratios beyond 0..1 and depths beyond `max_waiting` are clamped."""
    return ScoreTerms(
        free=_clamp(free_ratio),
        running=_clamp(1.0 - running_ratio),
        waiting=_clamp(1.0 - waiting_depth / max_waiting),
    )


def score(of: ScoreTerms, settings: ScoreSettings) -> float:
    """The weighted sum, 0..1."""
    return _clamp(
        settings.free_weight * of.free
        + settings.running_weight * of.running
        + settings.waiting_weight * of.waiting
    )


def _clamp(ratio: float) -> float:
    return min(1.0, max(0.0, ratio))
