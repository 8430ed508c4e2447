"""What a queue costs beyond its share of the score: a factor multiplied onto it.

    reciprocal    depth < threshold: 1    else max(floor, 1 / (1 + depth))
    halve         depth < threshold: 1    else 0.5

Reciprocal, because delay grows like an avalanche: the first in the queue waits some 50 ms, the
tenth some 2 s. The floor keeps a queueing replica distinguishable from a dead one.
"""

from enum import StrEnum
from typing import Annotated, assert_never

import msgspec
from msgspec import Meta


class Form(StrEnum):
    """Shape of the factor."""

    RECIPROCAL = "reciprocal"
    HALVE = "halve"


class PenaltySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table `[penalty]`."""

    form: Annotated[
        Form, Meta(description="`reciprocal`: 1/(1+depth). `halve`: one half, however deep.")
    ] = Form.RECIPROCAL
    threshold: Annotated[
        float,
        Meta(ge=0.0, le=1e6, description="Smoothed waiting requests from which it applies."),
    ] = 2.0
    floor: Annotated[
        float,
        Meta(ge=0.0, le=1.0, description="Least factor of `reciprocal`; more forgives queues."),
    ] = 0.2


def factor(waiting_depth: float, settings: PenaltySettings) -> float:
    """The factor for a smoothed depth >= 0: 0..1, and 1 below the threshold."""
    if waiting_depth < settings.threshold:
        return 1.0
    match settings.form:
        case Form.RECIPROCAL:
            return max(settings.floor, 1.0 / (1.0 + waiting_depth))
        case Form.HALVE:
            return 0.5
        case _:
            assert_never(settings.form)
