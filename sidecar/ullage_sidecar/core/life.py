"""Where an engine stands in its life. The first row that applies decides:

    state      factor   when
    starting   0        it has never answered
    down       0        it answered before, and its present fault is believed (see health)
    starting   0        nobody listened there, it answers now, and nothing has been heard of it
                        since, for `signs_of_life_s` at most
    draining   0        its operator has taken it out of service
    hung       0        it has work, its sender lives, and no step came for `hung_after_s`
    serving    1        nothing was heard from its plugin: how long it is up is unknown
    warming    0        it is to be warmed up, or being so (for this and the next, see warmup)
    ramping    ramp     it was warmed up a moment ago
    serving    1        else

A drained engine that is also hung says so in its reason. One that serves, and has work without a
step for `signs_of_life_s`, says that: it may be on its way to `hung`.

Silence after "0 running, 0 waiting" is idleness. Silence after work is a hang only while heartbeats
come: without them nothing is known of its steps; and only once this sidecar has itself watched for
`signs_of_life_s`: before, it may not have heard all of the engine's API processes.

What may happen, what it ends in, and within how many seconds. By default: health, the time between
two questions and the time for an answer, 1 + 1; life, `signs_of_life_s`, 3; beat, the plugin's, 1.
"Serving" is whatever state its age gives it. Unknown is the score: routers go by their own counts.

    a worker or the engine core dies      down      "status 503", then "Connection refused": health
    the whole server dies                 down      "Connection refused": health
    it starts anew on the same port       starting  from its plugin's first word on, as a fresh one
      and answers before its plugin       starting  "answers since a moment": until that speaks
      and its plugin is off now           serving   unknown, as one never heard of: after life
    it refuses for a moment and lives     down      then serving, with its next good answer and a
                                                    word of its plugin: health + beat
    it says for a moment that it is ill   down      then serving, with its next good answer: health
    all its processes are stopped         serving   unknown, "its plugin is silent": life + beat
      and stay so                         down      "no answer in time": health + life
    its engine core is stopped with work  hung      `hung_after_s`; without work it looks idle
    what was stopped goes on              serving   no warm-up again: beat, or its first step
    a hung engine's work is aborted       serving   at its next step
    its plugin falls silent, with work    serving   unknown, "its plugin is silent": life + beat
    two servers go by one name            serving   unknown, "two servers go by this name": beat;
                                                    until one is silent for life
    this sidecar is stopped, goes on      as before unknown, "this sidecar was away itself": beat
    the host is suspended, goes on        as before its monotonic clock was suspended too
    a wall clock is set                   as before nothing here asks one
"""

from dataclasses import dataclass

from ullage_shared.snapshot import State
from ullage_sidecar.core import warmup
from ullage_sidecar.core.engine import Engine
from ullage_sidecar.core.settings import Settings


@dataclass(frozen=True, slots=True)
class Life:
    """A state, the factor (0..1) that it puts on the score, and why it is not `serving`, or what
    else there is to say of it."""

    state: State
    factor: float
    reason: str
    stalled: bool = False
    """It serves, and has work without a step for `signs_of_life_s`."""


def is_silent(engine: Engine, settings: Settings, now_s: float) -> bool:
    """Was nothing heard of it for too long, or since we were away, or never?"""
    if engine.heard_s is None or is_unheard_since_woken(engine, now_s):
        return True
    return engine.age_s(now_s) > settings.health.signs_of_life_s


def silent_after_death_s(engine: Engine, now_s: float) -> float | None:
    """How long it has answered where nobody listened while nothing was heard of it: ≥ 0. `None`:
    there is no such doubt about who answers."""
    health, heard_s = engine.health, engine.heard_s
    if health.died_s is None or health.fault is not None:
        return None
    if heard_s is not None and heard_s > health.died_s:
        return None
    return max(0.0, now_s - health.answers_since_s)


def is_unheard_since_woken(engine: Engine, now_s: float) -> bool:
    """Has this sidecar been away, and not heard the plugin since?"""
    if engine.woke_s is None or engine.heard_s is None:
        return False
    return engine.heard_s < min(engine.woke_s, now_s)


def judge(engine: Engine, settings: Settings, now_s: float) -> Life:
    """The state at `now_s`. No reason holds a figure that moves: it is part of the snapshot."""
    health, limits = engine.health, settings.health
    stepped_at_s = engine.signals.stepped_at_s
    fault = health.fault or "no answer yet"
    if not health.answered:
        return Life(State.STARTING, 0.0, f"/health: {fault}")
    if health.is_down(stepped_at_s, limits.signs_of_life_s, now_s):
        return Life(State.DOWN, 0.0, f"/health: {fault}")
    silent_s = silent_after_death_s(engine, now_s)
    if silent_s is not None and silent_s <= limits.signs_of_life_s:
        return Life(State.STARTING, 0.0, "answers since a moment, and has not been heard of yet")
    if engine.drain is not None:
        hung = _no_step_for(limits.hung_after_s, engine, settings, now_s)
        return Life(State.DRAINING, 0.0, _both("drained by its operator", hung))
    if hung := _no_step_for(limits.hung_after_s, engine, settings, now_s):
        return Life(State.HUNG, 0.0, hung)
    if engine.hello is None:
        return Life(State.SERVING, 1.0, "")
    past = _past(engine, settings, now_s)
    warmth = warmup.judge(engine.warm_up, past, settings.warm_up, now_s)
    if warmth.state is not State.SERVING:
        return Life(warmth.state, warmth.factor, warmth.reason)
    late = _no_step_for(limits.signs_of_life_s, engine, settings, now_s)
    return Life(State.SERVING, warmth.factor, _both(warmth.reason, late), bool(late))


def is_cold(engine: Engine, settings: Settings, now_s: float) -> bool:
    """Is it time to send it dummy requests? Not before it is known what it has done already."""
    if engine.signals.stepped_at_s is None and not engine.hides_steps:
        return False
    return (
        warmup.is_due(engine.warm_up, _past(engine, settings, now_s), settings.warm_up)
        and not is_silent(engine, settings, now_s)
        and judge(engine, settings, now_s).state is State.WARMING
    )


def _past(engine: Engine, settings: Settings, now_s: float) -> warmup.Past:
    seen = engine.started_s >= engine.watched_s and not is_silent(engine, settings, now_s)
    return warmup.Past(now_s - engine.started_s, engine.generated, seen)


def _no_step_for(for_s: float, engine: Engine, settings: Settings, now_s: float) -> str:
    """That it has work, and has made no step for longer than that; empty: that is not so."""
    signals, limits = engine.signals, settings.health
    if signals.stepped_at_s is None or not signals.has_work() or is_silent(engine, settings, now_s):
        return ""
    if now_s - engine.watched_s < limits.signs_of_life_s or now_s - signals.stepped_at_s <= for_s:
        return ""
    return f"has work, made no step for more than {for_s:g} s"


def _both(one: str, other: str) -> str:
    return "; ".join(filter(None, (one, other)))
