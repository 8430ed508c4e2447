"""Is what an engine says now worth telling at once to those who know what was rendered last?

    running    moved by 5 % of max_num_seqs or more, and by 1 at least
    waiting    moved by a quarter of what was rendered or more, and by 1 at least: the first in a
               queue matters, the forty-first does not
    free       share of the KV blocks, moved by 0.02 or more
    any step from known to unknown or back; another incarnation, health, warm-up or wish of
    the operator

It is asked at every step of every engine, so it compares the raw values: no mean, no judgement.
What time alone changes (a ramp that ends, a silence, a hang), and what smoothing brings later, is
told by those who tell something at intervals anyway.
"""

from typing import Final, NamedTuple

from ullage_sidecar.core.engine import Engine
from ullage_sidecar.core.health import Health
from ullage_sidecar.core.warmup import WarmUp

RUNNING_SHARE: Final = 0.05
WAITING_SHARE: Final = 0.25
FREE: Final = 0.02


class Mark(NamedTuple):
    """An engine as it was when it was rendered. `None`: unknown."""

    boot_id: str | None
    drained: bool
    health: Health
    running: float | None
    waiting: float | None
    free: float | None
    """Share of the KV blocks, 0..1."""
    least_running: float
    """Requests by which `running` must move."""
    warm_up: WarmUp


def mark(engine: Engine) -> Mark:
    """What to compare with later."""
    hello, signals = engine.hello, engine.signals
    return Mark(
        hello.boot_id if hello else None,
        engine.drain is not None,
        engine.health,
        signals.running.value,
        signals.waiting.value,
        signals.free.value,
        max(1.0, RUNNING_SHARE * (engine.max_num_seqs or 0)),
        engine.warm_up,
    )


def moved(then: Mark, engine: Engine) -> bool:
    """Has the engine moved far enough since `then`?"""
    boot_id, drained, health, running, waiting, free, least_running, warm_up = then
    hello, signals = engine.hello, engine.signals
    value = signals.running.value
    if value != running and _far(running, value, least_running):
        return True
    value = signals.waiting.value
    if value != waiting and _far(waiting, value, max(1.0, WAITING_SHARE * (waiting or 0.0))):
        return True
    value = signals.free.value
    if value != free and _far(free, value, FREE):
        return True
    return (
        (health is not engine.health and _told(health) != _told(engine.health))
        or (warm_up is not engine.warm_up and warm_up != engine.warm_up)
        or drained != (engine.drain is not None)
        or boot_id != (None if hello is None else hello.boot_id)
    )


def _told(health: Health) -> tuple[bool, str | None, bool]:
    """What of it shows: not when, but what."""
    return health.answered, health.fault, health.certain


def _far(then: float | None, now: float | None, least: float) -> bool:
    """Has it moved by `least`? The two differ."""
    return then is None or now is None or abs(now - then) >= least
