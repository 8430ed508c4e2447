"""A fresh server looks empty and is slow: its score is held back until it has warmed up.

    up < zero_until_s        factor 0            warming
    up < ramp_until_s        factor ramp_factor  ramping
    else                     factor 1            serving

An empty KV cache scores near 1, so every router would flood a replica whose graphs do not exist
yet. Rule: `up_s` is the age of the engine's *incarnation*, told by vLLM. A restarted sidecar does
not zero an engine that has served for hours; a restarted vLLM warms up again.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from ullage_shared.snapshot import State


class WarmUpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table `[warm_up]`."""

    zero_until_s: Annotated[
        float,
        Meta(ge=0.0, le=86_400.0, description="Seconds after its start that a server scores 0."),
    ] = 30.0
    ramp_until_s: Annotated[
        float,
        Meta(ge=0.0, le=86_400.0, description="Seconds after its start that it is discounted."),
    ] = 60.0
    ramp_factor: Annotated[
        float, Meta(ge=0.0, le=1.0, description="The discount: its score is multiplied by this.")
    ] = 0.5


@dataclass(frozen=True, slots=True)
class WarmUp:
    """How warm an engine is: its state, and the factor (0..1) on its score."""

    state: State
    factor: float


def by_uptime(up_s: float, settings: WarmUpSettings) -> WarmUp:
    """Judge an incarnation that began to serve `up_s` seconds ago."""
    if up_s < settings.zero_until_s:
        return WarmUp(State.WARMING, 0.0)
    if up_s < settings.ramp_until_s:
        return WarmUp(State.RAMPING, settings.ramp_factor)
    return WarmUp(State.SERVING, 1.0)
