"""One engine as the sidecar knows it: a value, and how each event changes it.

Events: `Hello` and `Reading` from the plugin, `Probe` from `/health`, `Drain` and `Undrain` from
the operator, `Woken` from the sidecar's own clock. Rules

* A new `boot_id` is a new incarnation: everything but the counters starts afresh. An incarnation
  that began earlier is ignored as long as the newer one still speaks, and remembered as its rival.
* A sender counts only after its hello; senders of a former incarnation are strangers again.
* Nothing comes from the future: instants beyond `now_s` are taken as `now_s`.
* A word is as old as it is: what lay in a queue is a sign of life of when it was said. An older
  plugin does not tell when; then it is when it came.
* A sender repeats hello and last step every second. One that repeats its hello alone has made no
  step yet, so an engine none of whose senders ever told a step has been idle since it started;
  unless one of them was told of tokens. Then vLLM hides the steps, and the signals are unknown.
* A drain ends with the incarnation that it was meant for: a server that starts anew is wanted. Of
  one whose plugin never spoke, `/health` tells: it was gone, and it answers.

The values made anew for every step are named tuples: a frozen dataclass takes four times as long.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from types import MappingProxyType
from typing import Final, NamedTuple

from ullage_sidecar.core.counts import Counts, birth
from ullage_sidecar.core.health import Health, Probe
from ullage_sidecar.core.reading import Hello, Reading
from ullage_sidecar.core.signals import Signals


class Drain(NamedTuple):
    """The operator takes the engine out of service."""

    boot_id: str | None = None
    """The incarnation that is meant. `None`: the present one, or the first one to speak."""


class Undrain(NamedTuple):
    """The operator wants it back."""


class Woken(NamedTuple):
    """This sidecar was away, stopped perhaps, and runs again: what it knew may be over."""


Event = Hello | Reading | Probe | Drain | Undrain | Woken

MAX_SENDERS: Final = 64
"""Of one engine. vLLM has one per API process; beyond this the longest silent one is forgotten."""
SILENT_AFTER_S: Final = 3.0
NO_STEP_AFTER_S: Final = 0.9
"""A hello repeated for this long without a step beside it: none was made."""


class Sender(NamedTuple):
    """One API process that speaks for the engine."""

    first_s: float
    heard_s: float
    step: Reading | None = None
    unstepped: int = 0
    """Steps that it knows of by their tokens alone."""
    dropped: int = 0
    """Datagrams it could not hand over, by its own count."""
    dates: bool = False
    """Do its hellos tell when they were said?"""


class Rival(NamedTuple):
    """A second server that goes by the engine's name, and is not heard."""

    pid: int
    heard_pid: int
    """That of the one that is heard."""
    heard_s: float


class Engine(NamedTuple):
    """One (name, data-parallel rank) over its incarnations. All instants are monotonic."""

    name: str
    rank: int
    since_s: float
    """Since when this sidecar has watched it."""
    signals: Signals
    hello: Hello | None = None
    """The newest hello of the present incarnation; `None`: never heard of."""
    started_s: float = 0.0
    """When the present incarnation began to serve."""
    heard_s: float | None = None
    """When its latest sign of life was given."""
    health: Health = Health()
    senders: Mapping[int, Sender] = MappingProxyType({})
    counts: Counts = Counts()
    drain: Drain | None = None
    """`None`: it is in service."""
    rival: Rival | None = None
    """Of several the one that was there first, as long as it speaks."""
    woke_s: float | None = None
    """When this sidecar last came back from an absence; `None`: it has watched all along."""

    @property
    def watched_s(self) -> float:
        """Since when this sidecar has watched it without a break."""
        return self.since_s if self.woke_s is None else self.woke_s

    @property
    def hides_steps(self) -> bool:
        """Did its senders hear of tokens, and none of them ever of a step?"""
        senders = self.senders.values()
        return any(s.unstepped for s in senders) and not any(s.step for s in senders)

    def age_s(self, now_s: float) -> float:
        """Seconds since its last sign of life, or since we began to wait for the first."""
        return max(0.0, now_s - (self.since_s if self.heard_s is None else self.heard_s))


def fold(engine: Engine, event: Event, now_s: float) -> Engine:
    """The engine after one event that arrived at `now_s`. Total: no event is an error."""
    if isinstance(event, Reading):
        return _after_reading(engine, event, now_s)
    if isinstance(event, Hello):
        return _after_hello(engine, event, now_s)
    if isinstance(event, Probe):
        return _after_probe(engine, event, now_s)
    if isinstance(event, Undrain):
        return engine._replace(drain=None)
    if isinstance(event, Woken):
        return engine._replace(woke_s=now_s, health=engine.health.after_absence(now_s))
    present = engine.hello.boot_id if engine.hello else None
    return engine._replace(drain=Drain(event.boot_id or present))


def forgotten(engine: Engine, now_s: float) -> Engine:
    """The same server as one that was never heard of: its plugin's word is of another process.

    It has started anew, so its drain has ended too.
    """
    signals = engine.signals.cleared()
    return Engine(engine.name, 0, now_s, signals, health=engine.health, counts=engine.counts)


def _after_probe(engine: Engine, probe: Probe, now_s: float) -> Engine:
    before = engine.health
    returned = engine.hello is None and before.certain and probe.fault is None
    return engine._replace(
        health=before.after(probe, now_s), drain=None if returned else engine.drain
    )


def _after_hello(engine: Engine, hello: Hello, now_s: float) -> Engine:
    started_s = min(hello.started_s, now_s)
    if engine.hello is None or hello.boot_id != engine.hello.boot_id:
        if engine.hello is not None and _is_former(engine, started_s, now_s):
            return engine._replace(rival=_rival(engine, hello, now_s))
        engine = engine._replace(
            started_s=started_s,
            heard_s=None,
            health=engine.health if engine.hello is None else Health(),
            senders={},
            signals=engine.signals.cleared(),
            rival=None,
        )
    said_s = now_s if hello.said_s is None else hello.said_s
    known = engine.senders.get(hello.sender, Sender(now_s, now_s))
    senders = {
        **engine.senders,
        hello.sender: known._replace(
            heard_s=now_s,
            unstepped=hello.unstepped,
            dropped=hello.dropped,
            dates=hello.said_s is not None,
        ),
    }
    if len(senders) > MAX_SENDERS:
        del senders[min(senders, key=lambda sender: senders[sender].heard_s)]
    engine = engine._replace(
        hello=hello,
        started_s=min(started_s, engine.started_s),
        heard_s=_latest(engine.heard_s, said_s, now_s),
        senders=senders,
        drain=_still_meant(engine.drain, hello),
    )
    if engine.hides_steps:
        return engine._replace(signals=engine.signals.cleared())
    if engine.signals.stepped_at_s is None and now_s - known.first_s >= NO_STEP_AFTER_S:
        idle = engine.signals.with_step(0, 0, 0.0, engine.started_s)
        return engine._replace(signals=idle)
    return engine


def _still_meant(drain: Drain | None, hello: Hello) -> Drain | None:
    if drain is None or drain.boot_id not in (None, hello.boot_id):
        return None
    return Drain(hello.boot_id)


def _latest(heard_s: float | None, said_s: float, now_s: float) -> float:
    return min(now_s, said_s if heard_s is None else max(heard_s, said_s))


def _rival(engine: Engine, hello: Hello, now_s: float) -> Rival | None:
    known = engine.rival
    if known is not None and now_s - known.heard_s <= SILENT_AFTER_S:
        return known._replace(heard_s=now_s) if known.pid == hello.pid else known
    return Rival(hello.pid, engine.hello.pid, now_s) if engine.hello else known


def _is_former(engine: Engine, started_s: float, now_s: float) -> bool:
    return started_s <= engine.started_s and engine.age_s(now_s) <= SILENT_AFTER_S


def _after_reading(engine: Engine, reading: Reading, now_s: float) -> Engine:
    sender = engine.senders.get(reading.sender)
    if sender is None:
        return engine
    before, counts, health = sender.step, engine.counts, engine.health
    if before is None:
        before = _baseline(engine, reading)
    if reading.seq > before.seq:
        counts = counts.with_step(before, reading)
    elif reading.seq == before.seq:
        counts = counts.with_heartbeat(before, reading)
    else:
        return engine
    said_s = now_s
    if sender.dates:  # Its hellos speak for its repeats.
        said_s = reading.at_s if reading.seq > before.seq else -inf
    if not health.answered and reading.seq > 0:
        health = replace(health, answered=True)
    return Engine(
        engine.name,
        engine.rank,
        engine.since_s,
        engine.signals.with_step(
            reading.running, reading.waiting, reading.kv_usage, min(reading.at_s, now_s)
        ),
        engine.hello,
        engine.started_s,
        _latest(engine.heard_s, said_s, now_s),
        health,
        {**engine.senders, reading.sender: sender._replace(heard_s=now_s, step=reading)},
        counts,
        engine.drain,
        engine.rival,
        engine.woke_s,
    )


def _baseline(engine: Engine, reading: Reading) -> Reading:
    heard_all = reading.seq == 1 or engine.started_s > engine.since_s
    return birth(reading.sender) if heard_all else reading
