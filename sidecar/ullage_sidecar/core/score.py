"""Headroom as one number for each class of request.

    score = free_weight · free_ratio
          + running_weight · (1 - running / max_num_seqs)
          + waiting_weight · (1 - waiting / max_waiting)

0 is full, 1 is empty. Each term is clamped to 0..1 and the weights sum to 1, so the score is in
0..1 and monotone in each signal: more free blocks never lower it, more running or waiting requests
never raise it.

Only the weights differ by class (mission S8). Mixed traffic does best with free_weight at 0.5 to
0.6, all-short traffic with running_weight up to 0.5 (mission S2): short prompts run out of
sequences first, long ones out of blocks. The weights for long prompts are ours.

    class    free   running   waiting
    short    0.3    0.5       0.2
    mixed    0.5    0.3       0.2
    long     0.65   0.15      0.2

So a replica with fewer blocks free than sequence slots scores long < mixed < short, and one with
fewer slots free than blocks the other way round.
"""

from dataclasses import dataclass
from typing import Annotated, assert_never

import msgspec
from msgspec import Meta

from ullage_shared.snapshot import LONG_FROM_TOKENS, SHORT_UP_TO_TOKENS, RequestClass

Weight = Annotated[float, Meta(ge=0.0, le=1.0)]


class Weights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The three weights of one class. They sum to 1."""

    free_weight: Annotated[
        Weight,
        Meta(
            description="Weight of the free KV blocks, 0..1, for prompts neither short nor long. "
            "The three weights sum to 1."
        ),
    ] = 0.5
    running_weight: Annotated[
        Weight, Meta(description="Weight of the free sequence slots, 0..1.")
    ] = 0.3
    waiting_weight: Annotated[
        Weight, Meta(description="Weight of the empty waiting queue, 0..1.")
    ] = 0.2


class ShortWeights(Weights, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table `[score.short]`."""

    free_weight: Annotated[
        Weight,
        Meta(
            description="The weight of the free KV blocks for short prompts, of at most "
            f"{SHORT_UP_TO_TOKENS:,} tokens. These three sum to 1 as well."
        ),
    ] = 0.3
    running_weight: Annotated[
        Weight, Meta(description="That of the free sequence slots for short prompts.")
    ] = 0.5
    waiting_weight: Annotated[
        Weight, Meta(description="That of the empty waiting queue for short prompts.")
    ] = 0.2


class LongWeights(Weights, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table `[score.long]`."""

    free_weight: Annotated[
        Weight,
        Meta(
            description="The weight of the free KV blocks for long prompts, of at least "
            f"{LONG_FROM_TOKENS:,} tokens. These three sum to 1 as well."
        ),
    ] = 0.65
    running_weight: Annotated[
        Weight, Meta(description="That of the free sequence slots for long prompts.")
    ] = 0.15
    waiting_weight: Annotated[
        Weight, Meta(description="That of the empty waiting queue for long prompts.")
    ] = 0.2


class ScoreSettings(Weights, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table `[score]`. Its own weights are the mixed class's."""

    max_waiting: Annotated[
        float,
        Meta(gt=0.0, le=1e6, description="Waiting requests at which the queue's term reaches 0."),
    ] = 10.0
    short: ShortWeights = ShortWeights()
    long: LongWeights = LongWeights()

    def weights(self, cls: RequestClass) -> Weights:
        """The weights of a class."""
        match cls:
            case RequestClass.SHORT:
                return self.short
            case RequestClass.MIXED:
                return self
            case RequestClass.LONG:
                return self.long
            case _:
                assert_never(cls)


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


def score(of: ScoreTerms, weights: Weights) -> float:
    """The weighted sum, 0..1."""
    added = weighted(of, weights)
    return _clamp(added.free + added.running + added.waiting)


def weighted(of: ScoreTerms, weights: Weights) -> ScoreTerms:
    """What each term adds to the score, 0..1."""
    return ScoreTerms(
        free=weights.free_weight * of.free,
        running=weights.running_weight * of.running,
        waiting=weights.waiting_weight * of.waiting,
    )


def _clamp(ratio: float) -> float:
    return min(1.0, max(0.0, ratio))
