"""Where an engine stands in its life. The first row that applies decides:

    state      factor   when
    starting   0        it has never answered
    down       0        it answered before, and its present fault is believed (see health)
    draining   0        its operator has taken it out of service
    hung       0        it has work, its sender lives, and no step came for `hung_after_s`
    serving    1        nothing was heard from its plugin: how long it is up is unknown
    warming    0        up for less than `zero_until_s`
    ramping    ramp     up for less than `ramp_until_s`
    serving    1        else

Silence after "0 running, 0 waiting" is idleness. Silence after work is a hang only while heartbeats
come: without them nothing is known of its steps.
"""

from dataclasses import dataclass

from ullage_shared.snapshot import State
from ullage_sidecar.core import warmup
from ullage_sidecar.core.engine import Engine
from ullage_sidecar.core.settings import Settings


@dataclass(frozen=True, slots=True)
class Life:
    """A state, the factor (0..1) that it puts on the score, and why it is not `serving`."""

    state: State
    factor: float
    reason: str


def is_silent(engine: Engine, settings: Settings, now_s: float) -> bool:
    """Was nothing heard of it for too long, or never?"""
    return engine.heard_s is None or engine.age_s(now_s) > settings.health.signs_of_life_s


def judge(engine: Engine, settings: Settings, now_s: float) -> Life:
    """The state at `now_s`. No reason holds a figure that moves: it is part of the snapshot."""
    health, limits = engine.health, settings.health
    stepped_at_s = engine.signals.stepped_at_s
    fault = health.fault or "no answer yet"
    if not health.answered:
        return Life(State.STARTING, 0.0, f"/health: {fault}")
    if health.is_down(stepped_at_s, limits.signs_of_life_s, now_s):
        return Life(State.DOWN, 0.0, f"/health: {fault}")
    if engine.drain is not None:
        return Life(State.DRAINING, 0.0, "drained by its operator")
    if _makes_no_step(engine, settings, now_s):
        return Life(
            State.HUNG, 0.0, f"has work, made no step for more than {limits.hung_after_s:g} s"
        )
    if engine.hello is None:
        return Life(State.SERVING, 1.0, "")
    warm = warmup.by_uptime(now_s - engine.started_s, settings.warm_up)
    limit_s = settings.warm_up.zero_until_s
    if warm.state is State.RAMPING:
        limit_s = settings.warm_up.ramp_until_s
    reason = "" if warm.state is State.SERVING else f"up for less than {limit_s:g} s"
    return Life(warm.state, warm.factor, reason)


def _makes_no_step(engine: Engine, settings: Settings, now_s: float) -> bool:
    signals = engine.signals
    if signals.stepped_at_s is None or not signals.has_work() or is_silent(engine, settings, now_s):
        return False
    return now_s - signals.stepped_at_s > settings.health.hung_after_s
