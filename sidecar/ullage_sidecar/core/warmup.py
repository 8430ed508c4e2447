"""A fresh server looks empty and is slow: its score is held back until it has warmed up.

An empty KV cache scores near 1, so every router would flood a replica whose kernels are not
compiled yet (mission S6). The sidecar therefore sends each new *incarnation* of an engine rounds of
dummy requests (`dummies`, `warmer`), all rounds alike, until one is no faster than the one before:

    phase      when                                                  state     factor
    untried    it is up for `ramp_until_s`, or has generated at      serving   1
               least what a warm-up does: it was serving already
    untried    else                                                  warming   0
    running    begun, at most `limit_s` ago                          warming   0
    warm       for `ramp_s` from then on                             ramping   `ramp`
    warm       later                                                 serving   1
    given up   refused, or running for longer than `limit_s`         by uptime, at most `ramp`

    by uptime: up < zero_until_s → 0, warming;  up < ramp_until_s → ramp_factor, ramping;  else 1

By uptime is also the rule without dummies (`rounds = 0`). The `ramp`, t seconds after the end of
the warm-up, is one of

    step     ramp_factor
    linear   ramp_factor + (1 - ramp_factor) · t / ramp_s
    envoy    max(ramp_factor, (t / ramp_s) ^ (1 / ramp_aggression))     Envoy's slow start

A restarted sidecar does not zero an engine that has served for hours; a restarted vLLM warms up
again. What this sidecar cannot do (a missing API key, a server that takes no dummy of ours) never
keeps an engine out for good: it gives up, says so in the reason, and the uptime decides.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from ullage_shared.snapshot import State

SETTLED: Final = 0.8
"""A round that took at least this share of the one before is no faster."""
LEAST_ROUNDS: Final = 2
"""One round alone is not faster or slower than anything."""


class WarmUpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table `[warm_up]`."""

    rounds: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="Least rounds of dummy requests for a fresh server; they go on until one "
            "is no faster than the one before. 0: none, its uptime decides.",
        ),
    ] = 3
    concurrency: Annotated[
        int, Meta(ge=1, le=16, description="Dummy requests of a round, sent at once.")
    ] = 4
    longest_prompt: Annotated[
        float,
        Meta(
            gt=0.0,
            le=0.9,
            description="The longest dummy prompt as a share of `max_model_len`, and at most what "
            "the server computes in one step. The others have a quarter and a sixteenth of it.",
        ),
    ] = 0.25
    generated_tokens: Annotated[
        int, Meta(ge=1, le=1024, description="Tokens that a dummy request asks for.")
    ] = 16
    limit_s: Annotated[
        float, Meta(gt=0.0, le=3600.0, description="Seconds after which a warm-up is given up.")
    ] = 120.0
    ramp: Annotated[
        Literal["step", "linear", "envoy"],
        Meta(
            description="How the score comes back: `step`, times `ramp_factor`; `linear`, from it "
            "to 1; `envoy`, its slow-start curve."
        ),
    ] = "step"
    ramp_s: Annotated[float, Meta(ge=0.0, le=3600.0, description="Seconds that takes.")] = 10.0
    ramp_factor: Annotated[
        float, Meta(ge=0.0, le=1.0, description="The discount: the score is multiplied by this.")
    ] = 0.5
    ramp_aggression: Annotated[
        float, Meta(gt=0.0, le=10.0, description="Of `envoy`: above 1 comes back sooner.")
    ] = 1.0
    zero_until_s: Annotated[
        float,
        Meta(
            ge=0.0,
            le=86_400.0,
            description="By uptime: seconds after its start that a server scores 0.",
        ),
    ] = 30.0
    ramp_until_s: Annotated[
        float,
        Meta(
            ge=0.0,
            le=86_400.0,
            description="By uptime: seconds that it is discounted. Who is up for longer when the "
            "sidecar first hears of it is warm already.",
        ),
    ] = 60.0

    @property
    def tokens(self) -> int:
        """What all dummies of the least warm-up generate."""
        return self.rounds * self.concurrency * self.generated_tokens


class Phase(StrEnum):
    """How far the warm-up of one incarnation is."""

    UNTRIED = "untried"
    RUNNING = "running"
    WARM = "warm"
    GIVEN_UP = "given up"


class WarmUp(NamedTuple):
    """The warm-up of one incarnation."""

    phase: Phase = Phase.UNTRIED
    since_s: float = 0.0
    """When the phase began, on the monotonic clock."""
    fault: str = ""
    """What went wrong with the latest round; free of figures that move."""


class Progress(NamedTuple):
    """Event: the warm-up of the incarnation `boot_id` has come to `phase`, or met a `fault`."""

    boot_id: str
    phase: Phase
    fault: str = ""


class Warmth(NamedTuple):
    """What a warm-up means for routers: a state, the factor (0..1) on the score, and why."""

    state: State
    factor: float
    reason: str = ""


def after(warm_up: WarmUp, progress: Progress, now_s: float) -> WarmUp:
    """The warm-up after an event. One that has ended stays so."""
    if warm_up.phase in (Phase.WARM, Phase.GIVEN_UP):
        return warm_up
    same = progress.phase is warm_up.phase
    return WarmUp(progress.phase, warm_up.since_s if same else now_s, progress.fault)


def settled(rounds_s: Sequence[float], settings: WarmUpSettings) -> bool:
    """Are these rounds, by the seconds that each took, enough?"""
    if len(rounds_s) < max(LEAST_ROUNDS, settings.rounds):
        return False
    return rounds_s[-1] >= SETTLED * rounds_s[-2]


def is_due(warm_up: WarmUp, up_s: float, generated: int, settings: WarmUpSettings) -> bool:
    """Is an incarnation to be sent dummies? `generated`: tokens, since it started."""
    return (
        warm_up.phase is Phase.UNTRIED
        and settings.rounds > 0
        and up_s < settings.ramp_until_s
        and generated < settings.tokens
    )


def judge(
    warm_up: WarmUp, up_s: float, generated: int, settings: WarmUpSettings, now_s: float
) -> Warmth:
    """How warm an incarnation is that began to serve `up_s` seconds ago."""
    for_s = max(0.0, now_s - warm_up.since_s)
    if settings.rounds == 0:
        return _by_uptime(up_s, settings)
    if warm_up.phase is Phase.UNTRIED:
        if is_due(warm_up, up_s, generated, settings):
            return Warmth(State.WARMING, 0.0, "its warm-up has not begun")
        return Warmth(State.SERVING, 1.0)
    if warm_up.phase is Phase.RUNNING and for_s <= settings.limit_s:
        fault = f"; {warm_up.fault}" if warm_up.fault else ""
        return Warmth(State.WARMING, 0.0, f"dummy requests are sent to it{fault}")
    if warm_up.phase is Phase.WARM:
        return _ramp(for_s, settings)
    if warm_up.phase is Phase.GIVEN_UP:
        return _given_up(warm_up.fault, for_s, up_s, settings)
    fault = warm_up.fault or "its dummy requests grow faster still"
    why = f"not done within {settings.limit_s:g} s: {fault}"
    return _given_up(why, for_s - settings.limit_s, up_s, settings)


def _given_up(why: str, for_s: float, up_s: float, settings: WarmUpSettings) -> Warmth:
    least = min(_by_uptime(up_s, settings), _ramp(for_s, settings), key=lambda it: it.factor)
    return least._replace(reason=f"warm-up given up: {why}")


def _by_uptime(up_s: float, settings: WarmUpSettings) -> Warmth:
    if up_s < settings.zero_until_s:
        return Warmth(State.WARMING, 0.0, f"up for less than {settings.zero_until_s:g} s")
    if up_s < settings.ramp_until_s:
        reason = f"up for less than {settings.ramp_until_s:g} s"
        return Warmth(State.RAMPING, settings.ramp_factor, reason)
    return Warmth(State.SERVING, 1.0)


def _ramp(for_s: float, settings: WarmUpSettings) -> Warmth:
    if for_s >= settings.ramp_s:
        return Warmth(State.SERVING, 1.0)
    share, least = for_s / settings.ramp_s, settings.ramp_factor
    if settings.ramp == "step":
        factor = least
    elif settings.ramp == "linear":
        factor = least + (1.0 - least) * share
    else:
        factor = max(least, share ** (1.0 / settings.ramp_aggression))
    return Warmth(State.RAMPING, factor, f"warmed up less than {settings.ramp_s:g} s ago")
