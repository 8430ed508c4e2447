"""How each event changes what is known of an engine.

Events: `Hello` and `Reading` from the plugin or from a scrape (see handover.py), `Unread` when a
scrape fails, `Probe` from `/health`, `Drain` and `Undrain` from the operator, `Progress` of its
warm-up, `Woken` from the sidecar's own clock. Rules

* A new `boot_id` is a new incarnation: everything but the counters starts afresh. An incarnation
  that began earlier is ignored as long as the newer one still speaks, and remembered as its rival.
* A sender counts only after its hello; senders of a former incarnation are strangers again.
* Nothing comes from the future: instants beyond `now_s` are taken as `now_s`.
* A word is as old as it is: what lay in a queue is a sign of life of when it was said. An older
  plugin does not tell when; then it is when it came.
* A sender repeats hello and last step every second. One that repeats its hello alone has made no
  step yet, so an engine none of whose senders ever told a step has been idle since it started;
  unless one of them was told of tokens. Then vLLM hides the steps, and the signals are unknown.
* Steps are ordered by when API processes recorded them, and one may be late (it was answering a
  scrape): then the last step, that of the idle engine, seems older than the one before. So work is
  not believed of an engine that has made no step since, when one of its processes saw it idle last,
  less than `LATE_S` before: an engine with work goes on.
* A drain ends with the incarnation that it was meant for: a server that starts anew is wanted. Of
  one whose plugin never spoke, `/health` tells: it was gone, and it answers.
* A drain outlives the sidecar, and knows its incarnation by every name it had, and by when it was
  heard of: what began to serve before that is the same one, under a name that nobody has told us.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, nextafter
from typing import Final

from ullage_sidecar.core import handover, slots
from ullage_sidecar.core.counts import Counts, birth
from ullage_sidecar.core.engine import (
    Drain,
    Engine,
    Event,
    Rival,
    Sender,
    Undrain,
    Unread,
    Woken,
)
from ullage_sidecar.core.health import Health, Probe
from ullage_sidecar.core.reading import PLUGIN, Hello, Reading
from ullage_sidecar.core.signals import Signals
from ullage_sidecar.core.speeds import Speeds
from ullage_sidecar.core.warmup import Progress, WarmUp, after, broken_off

MAX_SENDERS: Final = 64
"""Of one engine. vLLM has one per API process; beyond this the longest silent one is forgotten."""
SILENT_AFTER_S: Final = 3.0
NO_STEP_AFTER_S: Final = 0.9
"""A hello repeated for this long without a step beside it: none was made."""
NOTED_EVERY_S: Final = 10.0
"""Seconds between the instants that a drain notes: each is written to a file."""
LATE_S: Final = 1.0
"""One API process may record a step this much later than another one its successor."""


def fold(engine: Engine, event: Event, now_s: float) -> Engine:
    """The engine after one event that arrived at `now_s`. Total: no event is an error."""
    if isinstance(event, Reading):
        return fold_steps(engine, (event,), now_s)
    if isinstance(event, Hello):
        return _after_hello(engine, event, now_s)
    if isinstance(event, Probe):
        return _after_probe(engine, event, now_s)
    if isinstance(event, Progress):
        is_present = engine.hello is not None and engine.hello.boot_id == event.boot_id
        return (
            engine._replace(warm_up=after(engine.warm_up, event, now_s)) if is_present else engine
        )
    if isinstance(event, Undrain):
        return engine._replace(drain=None)
    if isinstance(event, Woken):
        return engine._replace(woke_s=now_s, health=engine.health.after_absence(now_s))
    if isinstance(event, Unread):
        return engine._replace(unread=event.why)
    drain = _meant(engine, event, now_s)
    return engine._replace(drain=drain, warm_up=broken_off(engine.warm_up))


def forgotten(engine: Engine, now_s: float) -> Engine:
    """The same server as one that was never heard of: its plugin's word is of another process.

    It has started anew, so its drain has ended too.
    """
    signals = engine.signals.cleared()
    return Engine(engine.name, 0, now_s, signals, health=engine.health, counts=engine.counts)


def _after_probe(engine: Engine, probe: Probe, now_s: float) -> Engine:
    before = engine.health
    returned = engine.hello is None and before.is_gone and probe.fault is None
    return engine._replace(
        health=before.after(probe, now_s), drain=None if returned else engine.drain
    )


def _after_hello(engine: Engine, hello: Hello, now_s: float) -> Engine:
    started_s = min(hello.started_s, now_s)
    if engine.hello is not None:
        silent = engine.age_s(now_s) > SILENT_AFTER_S
        if handover.is_unheard(hello, engine.hello, silent=silent):
            return engine
        engine, hello = _under_one_name(engine, engine.hello, hello, started_s)
    if engine.hello is None or hello.boot_id != engine.hello.boot_id:
        if engine.hello is not None and _is_former(engine, started_s, now_s):
            return engine._replace(rival=_rival(engine, hello, now_s))
        engine = engine._replace(
            started_s=started_s,
            heard_s=None,
            health=engine.health if engine.hello is None else Health(),
            senders={},
            signals=engine.signals.cleared(),
            warm_up=WarmUp(),
            rival=None,
            speeds=Speeds(),
            alias=None,
            handed_over=False,
            learned_seqs=None,
            generated_before=0,
            drain=engine.drain if engine.hello is None else None,
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
    heard_s = _latest(engine.heard_s, said_s, now_s)
    engine = engine._replace(
        hello=hello,
        started_s=min(started_s, engine.started_s),
        heard_s=heard_s,
        senders=senders,
        drain=_still_meant(engine, hello.boot_id, started_s, heard_s),
        unread="",
    )
    if engine.hides_steps:
        return engine._replace(signals=engine.signals.cleared())
    if engine.signals.stepped_at_s is None and now_s - known.first_s >= NO_STEP_AFTER_S:
        idle = engine.signals.with_step(0, 0, 0.0, engine.started_s)
        return engine._replace(signals=idle)
    return engine


def _under_one_name(
    engine: Engine, present: Hello, hello: Hello, started_s: float
) -> tuple[Engine, Hello]:
    """Both, ready for one more hello of the present incarnation, if it is of that one."""
    names = (present.boot_id, engine.alias)
    if hello.source != present.source:
        if hello.boot_id not in names:
            if not handover.is_same(started_s, engine.heard_s):
                return engine, hello
            engine = engine._replace(alias=hello.boot_id)
        engine = engine._replace(senders={}, handed_over=True, generated_before=engine.generated)
    elif hello.boot_id not in names:
        return engine, hello
    if hello.boot_id != present.boot_id:
        hello = replace(hello, boot_id=present.boot_id)
    return engine, handover.completed(hello, present)


def _meant(engine: Engine, drain: Drain, now_s: float) -> Drain:
    if drain.boot_id is None and engine.hello is not None:
        return Drain(engine.hello.boot_id, engine.alias, engine.heard_s)
    return drain if drain.heard_s is None else drain._replace(heard_s=min(drain.heard_s, now_s))


def _still_meant(engine: Engine, boot_id: str, started_s: float, heard_s: float) -> Drain | None:
    """Its drain, if that is for the incarnation that speaks; with what else it knows it by now."""
    drain = engine.drain
    if drain is None:
        return None
    known = drain.boot_id is None or boot_id in (drain.boot_id, drain.alias)
    if not known and not handover.is_same(started_s, drain.heard_s):
        return None
    other = drain.boot_id if drain.boot_id != boot_id else drain.alias
    is_fresh = drain.heard_s is not None and heard_s - drain.heard_s < NOTED_EVERY_S
    return Drain(boot_id, engine.alias or other, drain.heard_s if is_fresh else heard_s)


def _latest(heard_s: float | None, said_s: float, now_s: float) -> float:
    return min(now_s, said_s if heard_s is None else max(heard_s, said_s))


def _rival(engine: Engine, hello: Hello, now_s: float) -> Rival | None:
    known = engine.rival
    if known is not None and now_s - known.heard_s <= SILENT_AFTER_S:
        return known._replace(heard_s=now_s) if known.pid == hello.pid else known
    return Rival(hello.pid, engine.hello.pid, now_s) if engine.hello else known


def _is_former(engine: Engine, started_s: float, now_s: float) -> bool:
    return started_s <= engine.started_s and engine.age_s(now_s) <= SILENT_AFTER_S


def fold_steps(engine: Engine, readings: Sequence[Reading], now_s: float) -> Engine:
    """The engine after readings of one sender that arrived together: as after each in turn."""
    sender = engine.senders.get(readings[0].sender) if readings else None
    if sender is None:
        return engine
    before, heard_s = sender.step, engine.heard_s
    counts, signals, speeds = engine.counts, engine.signals, engine.speeds
    learned, hello = engine.learned_seqs, engine.hello
    learns = hello is not None and hello.max_num_seqs is None
    for reading in readings:
        at_s = reading.at_s
        if before is None:
            before = _baseline(engine, reading)
        if reading.seq > before.seq:
            counts = counts.with_step(before, reading)
            speeds = _sped(engine, speeds, signals, before, reading, counts)
            said_s = at_s
        elif reading.seq == before.seq:
            counts = counts.with_heartbeat(before, reading)
            speeds = speeds.with_tokens(before, reading)
            said_s = -inf  # Its hellos speak for its repeats.
            if _was_the_last(signals, reading, now_s):
                at_s = nextafter(signals.stepped_at_s or 0.0, inf)
        else:
            continue
        signals = signals.with_step(
            reading.running, reading.waiting, reading.kv_usage, min(at_s, now_s)
        )
        heard_s = _latest(heard_s, said_s if sender.dates else now_s, now_s)
        if learns:
            learned = slots.learned(learned, reading.running, reading.waiting)
        before = reading
    if before is None or counts is engine.counts:
        return engine  # They were older than what is known.
    health = engine.health
    if not health.answered and before.seq > 0:
        health = replace(health, answered=True)
    teller = Sender(sender.first_s, now_s, before, sender.unstepped, sender.dropped, sender.dates)
    return Engine(
        engine.name,
        engine.rank,
        engine.since_s,
        signals,
        hello,
        engine.started_s,
        heard_s,
        health,
        {**engine.senders, readings[0].sender: teller},
        counts,
        engine.drain,
        engine.warm_up,
        engine.rival,
        engine.woke_s,
        speeds,
        engine.unread,
        engine.alias,
        engine.handed_over,
        learned,
        engine.generated_before,
    )


def _sped(
    engine: Engine, speeds: Speeds, last: Signals, before: Reading, step: Reading, counts: Counts
) -> Speeds:
    if len(engine.senders) == 1:
        return speeds.with_step(before, step, counts)
    blocks = engine.hello.total_blocks if engine.hello else None
    return speeds.with_shared_step(before, step, last, blocks)


def _was_the_last(signals: Signals, repeated: Reading, now_s: float) -> bool:
    """Is this the engine's last step, though another one was recorded later?"""
    stepped_at_s = signals.stepped_at_s
    return (
        stepped_at_s is not None
        and now_s - stepped_at_s >= NO_STEP_AFTER_S
        and signals.has_work()
        and repeated.running == repeated.waiting == 0
        and stepped_at_s - repeated.at_s <= LATE_S
    )


def _baseline(engine: Engine, reading: Reading) -> Reading:
    told = engine.hello.source if engine.hello else PLUGIN
    heard_all = (reading.seq == 1 and told == PLUGIN) or engine.started_s > engine.since_s
    return birth(reading.sender) if heard_all and not engine.handed_over else reading
