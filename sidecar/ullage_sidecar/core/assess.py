"""The whole judgement of one engine at one instant: every step from signals to capacity score.

    capacity for a class = score(terms, weights of the class) · penalty · factor of its state

* The classes of request share terms, penalty and factor. The mixed class's capacity is *the*
  capacity.
* In a state whose factor is 0 every capacity is 0, whatever the signals.
* Else an unknown signal makes every capacity unknown, and the reason names it. Unknown is neither
  idle nor full.
* An engine of which neither plugin nor scrape told for longer than `signs_of_life_s` has no known
  signal. Nor has one whose name a second server goes by: of the two one answers at the engine's
  URL, and nobody knows whether it is the one whose signals these are.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ullage_shared.snapshot import RequestClass, State
from ullage_sidecar.core import depletion, penalty, smoothing
from ullage_sidecar.core.engine import Engine
from ullage_sidecar.core.life import is_silent, is_unheard_since_woken, judge
from ullage_sidecar.core.reading import SCRAPE
from ullage_sidecar.core.score import ScoreTerms, score, terms, weighted
from ullage_sidecar.core.settings import Settings


@dataclass(frozen=True, slots=True)
class Levels:
    """The signals as they are scored. `None`: unknown."""

    free: float | None = None
    """Smoothed free ratio, 0..1."""
    predicted: float | None = None
    """The ratio expected `ahead_s` from now, 0..1."""
    running: float | None = None
    """Smoothed running sequences as a share of `max_num_seqs`, 0..1."""
    waiting: float | None = None
    """Smoothed waiting requests."""
    exhaustion_s: float | None = None
    """When the blocks will be gone; `None` also when they do not fall."""

    @property
    def effective_free(self) -> float | None:
        """The free ratio that counts: the prediction where it is worse."""
        if self.free is None or self.predicted is None:
            return None
        return depletion.effective(self.free, self.predicted)


@dataclass(frozen=True, slots=True)
class Assessment:
    """What `/v1/snapshots` says and `/metrics` explains."""

    state: State
    reason: str
    """As in the snapshot."""
    capacities: Mapping[RequestClass, float]
    """0..1 for every class; empty: unknown."""
    levels: Levels
    terms: ScoreTerms | None
    added: ScoreTerms | None
    """What each term adds to the mixed class's score, before penalty and factor."""
    penalty: float | None
    warm_up: float
    """The factor of its state, 0..1."""
    stalled: bool
    """As in the snapshot."""
    silent: bool
    """Nothing is heard of it: nothing that was heard before counts."""

    @property
    def capacity(self) -> float | None:
        """That of the mixed class, 0..1; `None`: unknown."""
        return self.capacities.get(RequestClass.MIXED)


def assess(engine: Engine, settings: Settings, now_s: float) -> Assessment:
    """Judge an engine."""
    life = judge(engine, settings, now_s)
    silent = is_silent(engine, settings, now_s)
    rival = _rival(engine, settings, now_s)
    levels = Levels() if silent or rival else _levels(engine, settings, now_s)
    free, running, waiting = levels.effective_free, levels.running, levels.waiting
    room, queue = None, None
    capacities: dict[RequestClass, float] = {}
    if free is not None and running is not None and waiting is not None:
        room = terms(free, running, waiting, settings.score.max_waiting)
        queue = penalty.factor(waiting, settings.penalty)
        for cls in RequestClass:
            worth = score(room, settings.score.weights(cls))
            capacities[cls] = worth * queue * life.factor
    unknown = _unknown(engine, settings, levels, rival, now_s)
    if life.state in (State.STARTING, State.DOWN):
        unknown = ""  # Nobody is expected to speak.
    if life.factor == 0.0:
        capacities = dict.fromkeys(RequestClass, 0.0)
    return Assessment(
        state=life.state,
        reason="; ".join(filter(None, (life.reason, unknown))),
        capacities=capacities,
        levels=levels,
        terms=room,
        added=None if room is None else weighted(room, settings.score.weights(RequestClass.MIXED)),
        penalty=queue,
        warm_up=life.factor,
        stalled=life.stalled,
        silent=silent,
    )


def _levels(engine: Engine, settings: Settings, now_s: float) -> Levels:
    signals, most = engine.signals, engine.max_num_seqs
    free = smoothing.room(signals.free, settings.window, now_s)
    running = smoothing.load(signals.running, settings.window, now_s)
    latest, slope = signals.free.value, depletion.slope_per_s(signals.trend, now_s)
    return Levels(
        free=free,
        predicted=depletion.predicted(latest, slope, settings.depletion.ahead_s),
        running=min(1.0, running / most) if running is not None and most else None,
        waiting=smoothing.load(signals.waiting, settings.window, now_s),
        exhaustion_s=depletion.exhaustion_s(latest, slope),
    )


def _rival(engine: Engine, settings: Settings, now_s: float) -> str:
    rival = engine.rival
    if rival is None or now_s - rival.heard_s > settings.health.signs_of_life_s:
        return ""
    return f"two servers go by this name: pids {rival.heard_pid} and {rival.pid}"


def _unknown(engine: Engine, settings: Settings, levels: Levels, rival: str, now_s: float) -> str:
    if is_silent(engine, settings, now_s):
        awake_s = now_s - engine.watched_s
        if is_unheard_since_woken(engine, now_s) and awake_s <= settings.health.signs_of_life_s:
            return "this sidecar was away itself, and has not heard of it since"
        return _silence(engine)
    if rival:
        return rival
    if engine.hides_steps:
        return "vLLM reports no steps: --disable-log-stats hides them from several API servers"
    signals = {
        "kv_usage": levels.free,
        "running / max_num_seqs": levels.running,
        "waiting": levels.waiting,
    }
    names = ", ".join(name for name, level in signals.items() if level is None)
    if engine.hello is not None and engine.hello.source == SCRAPE and engine.max_num_seqs is None:
        names += "; set max_num_seqs, or it is learned as requests wait"
    return f"unknown: {names}" if names else ""


def _silence(engine: Engine) -> str:
    """Why nobody tells how it stands, and what there is to do."""
    if engine.hello is None:
        why, fix = "its plugin was never heard of", "set ULLAGE_SOCKET of that vLLM"
    elif engine.hello.source == SCRAPE:
        return f"its /metrics: {engine.unread or 'not read lately'}"
    else:
        why, fix = "its plugin is silent", "see the log of that vLLM"
    if not engine.unread:
        return why
    return f"{why}, and its /metrics does not help: {engine.unread}; {fix}, or mend its /metrics"
