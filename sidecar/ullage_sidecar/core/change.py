"""Is what an engine says now worth telling at once to those who know what was rendered last?

    running    moved by 5 % of max_num_seqs or more, and by 1 at least
    waiting    moved by a quarter of what was rendered or more, and by 1 at least: the first in a
               queue matters, the forty-first does not
    free       share of the KV blocks, moved by 0.02 or more
    any step from known to unknown or back; another incarnation, health, warm-up or wish of
    the operator

It is asked at every step of every engine, so it compares the raw values: no mean, no judgement, and
of a step that has only come (`may_move`) not even what it makes of the engine.
What time alone changes (a ramp that ends, a silence, a hang), and what smoothing brings later, is
told by those who tell something at intervals anyway.
"""

from typing import Final

from ullage_sidecar.core.engine import Engine
from ullage_sidecar.core.health import Health
from ullage_sidecar.core.reading import Reading

RUNNING_SHARE: Final = 0.05
WAITING_SHARE: Final = 0.25
FREE: Final = 0.02


def moved(then: Engine, now: Engine) -> bool:
    """Has the engine moved far enough since `then`?"""
    signals = now.signals
    return (
        _gauges_moved(then, signals.running.value, signals.waiting.value, signals.free.value)
        or (then.health is not now.health and _told(then.health) != _told(now.health))
        or (then.warm_up is not now.warm_up and then.warm_up != now.warm_up)
        or (then.drain is None) != (now.drain is None)
        or _boot_id(then) != _boot_id(now)
    )


def may_move(then: Engine, step: Reading) -> bool:
    """May an engine that had not moved since `then` have done so with this step?

    False: it has not, whichever of its senders made the step, and whatever else they told.
    """
    free = None if step.kv_usage is None else 1.0 - step.kv_usage
    return not then.health.answered or _gauges_moved(then, step.running, step.waiting, free)


def has_only_stepped(then: Engine, now: Engine) -> bool:
    """Have only steps come since `then`, and none that moved it? Then a judgement of `then` will do
    for a moment."""
    signals = now.signals
    return (
        then.hello is now.hello
        and then.health is now.health
        and then.warm_up is now.warm_up
        and then.drain is now.drain
        and then.rival is now.rival
        and then.woke_s == now.woke_s
        and then.unread == now.unread
        and then.learned_seqs == now.learned_seqs
        and not _gauges_moved(
            then, signals.running.value, signals.waiting.value, signals.free.value
        )
    )


def _gauges_moved(
    then: Engine, running: float | None, waiting: float | None, free: float | None
) -> bool:
    was = then.signals.running.value
    if running != was and _far(was, running, max(1.0, RUNNING_SHARE * (then.max_num_seqs or 0))):
        return True
    was = then.signals.waiting.value
    if waiting != was and _far(was, waiting, max(1.0, WAITING_SHARE * (was or 0.0))):
        return True
    was = then.signals.free.value
    return free != was and _far(was, free, FREE)


def _boot_id(engine: Engine) -> str | None:
    return None if engine.hello is None else engine.hello.boot_id


def _told(health: Health) -> tuple[bool, str | None, bool]:
    """What of it shows: not when, but what."""
    return health.answered, health.fault, health.certain


def _far(then: float | None, now: float | None, least: float) -> bool:
    """Has it moved by `least`? The two differ."""
    return then is None or now is None or abs(now - then) >= least
