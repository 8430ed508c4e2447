"""The one owner of all that changes: the engines of this node.

Every event comes through here, on one thread; the engines themselves are frozen values that the
core folds. Nothing here knows sockets, HTTP or clocks.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from typing import Final

from ullage_shared.log import Seldom, line
from ullage_sidecar.channel import DatagramError, decode_all
from ullage_sidecar.config import Config
from ullage_sidecar.core.assess import Assessment, assess
from ullage_sidecar.core.change import may_move, moved
from ullage_sidecar.core.engine import Drain, Engine, Undrain, Unread, Woken
from ullage_sidecar.core.fold import SILENT_AFTER_S, fold, fold_steps, forgotten
from ullage_sidecar.core.health import Probe
from ullage_sidecar.core.life import is_cold, silent_after_death_s
from ullage_sidecar.core.reading import SCRAPE, Hello, Reading
from ullage_sidecar.core.render import label
from ullage_sidecar.core.signals import Signals
from ullage_sidecar.core.warmup import Progress
from ullage_sidecar.publisher import Published, Publisher
from ullage_sidecar.strays import Strays

BATCH_BYTES: Final = 6_144
"""Readings folded at once: 64 steps. A process woken for a single one spends most of its time
fetching its own code into the caches; more would keep the loop from answering."""
PULSE_S: Final = 0.25
AWAY_S: Final = 1.0
"""A pulse that comes so much after the last one: this process was stopped in between, or starved.
Less than what a plugin's silence is believed after, less its heartbeat."""
MAX_RANKS: Final = 1024
"""Data-parallel engines of one server: a hello that claims more is no hello."""

_log = logging.getLogger("ullage.sidecar")

Key = tuple[str, int]
"""An engine: its server's name and its index."""
Heard = Hello | Reading | DatagramError
"""What a datagram holds."""


@dataclass(slots=True)
class Probes:
    """How often a server's `/health` was asked, and how often in vain."""

    asked: int = 0
    failed: int = 0


@dataclass(slots=True)
class Scrapes:
    """How often a server's `/metrics` was asked for, how often in vain, and what the last took."""

    made: int = 0
    failed: int = 0
    last_s: float | None = None


class Node:
    """The engines of one node."""

    def __init__(self, config: Config, now_s: float) -> None:
        self.config = config
        self.strays = Strays()
        self.probes = {entry.name: Probes() for entry in config.engine}
        self.dummies: dict[str, Counter[str]] = {entry.name: Counter() for entry in config.engine}
        """Dummy requests of each server's warm-ups, by how they ended."""
        self.scrapes = {entry.name: Scrapes() for entry in config.engine}
        self.publisher = Publisher(config)
        self.tell: Callable[[], None] | None = None
        """Called whenever something has come in that may be a change. May be set at any time."""
        self.shown: Published | None = None
        """The document that those who are told have: steps that leave all in it as good as it was
        are not told. `None`: everything is."""
        self.fetch: Callable[[], None] | None = None
        """Has us hear what lies unheard. Not asked while `tell` is set: then nothing lies long."""
        self._since_s = now_s
        self._places = {entry.name: place for place, entry in enumerate(config.engine)}
        self._engines: dict[Key, Engine] = {}
        for entry in config.engine:
            self._engines[entry.name, 0] = self._unheard(entry.name, 0)
        self._sizes: dict[str, int] = {}
        """How many ranks each server has named in its last hello, of whichever rank."""
        self._speakers: dict[int, Key] = {}
        self._heard: list[tuple[tuple[Heard, ...], float]] = []
        self._heard_bytes = 0
        self._pulse_s = inf  # Who has no pulse cannot miss one.
        self._away = Seldom()

    def pulse(self, now_s: float) -> None:
        """Say that this process runs: every `PULSE_S`, from the start on or never.

        Whoever comes first after an absence, pulse, probe or question, finds it. What was heard
        just before lay in the queue: it is folded as of before.
        """
        self._notice_absence(now_s)
        self._pulse_s = now_s

    def _notice_absence(self, now_s: float) -> None:
        away_s = now_s - self._pulse_s
        if away_s <= AWAY_S:
            return
        self._pulse_s = now_s
        self._fold()
        for key, engine in self._engines.items():
            self._engines[key] = fold(engine, Woken(), now_s)
        self._published_is_old()
        if self._away.allows(now_s):
            why, kept_back = "stopped, or starved", self._away.kept_back
            _log.warning(line("was_away", why=why, seconds=round(away_s, 1), kept_back=kept_back))

    def hear(self, datagrams: bytes, now_s: float) -> None:
        """Take in datagrams of one plugin. Whatever they hold, nothing is raised.

        They are folded with others of their batch, at the latest before anybody looks.
        """
        events = tuple(decode_all(datagrams))
        self._heard.append((events, now_s))
        self._heard_bytes += len(datagrams)
        if self._heard_bytes >= BATCH_BYTES:
            self._fold()
        if self.tell is not None and self._may_move(events):
            self.tell()

    def _may_move(self, events: Sequence[Heard]) -> bool:
        """May they change what is shown? Nothing is folded to find that out."""
        judged = self.shown.judged if self.shown else {}
        for event in events:
            if not isinstance(event, Reading):
                return True
            key = self._speakers.get(event.sender)
            then = judged.get(key) if key else None
            if then is None or may_move(then.engine, event):
                return True
        return False

    def plugin_speaks(self, name: str, now_s: float) -> bool:
        """Was the plugin of a server heard lately, or may it still be heard for the first time?"""
        self._settle()
        patience_s = max(self.config.health.signs_of_life_s, SILENT_AFTER_S)
        return any(
            (engine.hello is None or engine.hello.source != SCRAPE)
            and engine.age_s(now_s) <= patience_s
            for key, engine in self._engines.items()
            if key[0] == name
        )

    def has_plugin(self, name: str) -> bool:
        """Was the plugin of a server the last to speak of it?"""
        return any(
            engine.hello is not None and engine.hello.source != SCRAPE
            for key, engine in self._engines.items()
            if key[0] == name
        )

    def told(self, event: Hello | Reading, now_s: float) -> None:
        """Take in what a server's `/metrics` says of one engine: a hello, then a reading."""
        self._settle()
        if isinstance(event, Reading):
            self._hear_readings((event,), now_s)
        else:
            self._hear_hello(event, now_s)
        self._tell()

    def unread(self, name: str, why: str, now_s: float) -> None:
        """Take in that a server's `/metrics` cannot be read."""
        self._settle()
        for key, engine in self._engines.items():
            if key[0] == name:
                self._engines[key] = fold(engine, Unread(why), now_s)
        self._tell()

    def probed(self, name: str, probe: Probe, now_s: float) -> None:
        """Take in what `/health` of one server said: it concerns all its engines."""
        self._notice_absence(now_s)
        self._settle()
        self.probes[name].asked += 1
        self.probes[name].failed += probe.fault is not None
        for key, engine in self._engines.items():
            if key[0] == name:
                self._engines[key] = fold(engine, probe, now_s)
        self._forget_former(name, now_s)
        self._tell()

    def _forget_former(self, name: str, now_s: float) -> None:
        """Of a server that was gone, and answers again without its plugin, nothing is known: not
        even how many engines it has."""
        limit_s = self.config.health.signs_of_life_s
        ranks = {key: engine for key, engine in self._engines.items() if key[0] == name}
        former = [
            key
            for key, engine in ranks.items()
            if engine.hello is not None
            and (silent_s := silent_after_death_s(engine, now_s)) is not None
            and silent_s > limit_s
        ]
        for key in former:
            del self._engines[key]
        if former and len(former) == len(ranks):
            self._sizes.pop(name, None)
            self._engines[name, 0] = forgotten(ranks[min(former)], now_s)

    def drain(self, name: str | None, now_s: float) -> None:
        """Take one server's engines out of service, or all. Raises `KeyError`: unknown."""
        self._command(name, Drain(), now_s)

    def undrain(self, name: str | None, now_s: float) -> None:
        """Take them back. Raises `KeyError`: unknown."""
        self._command(name, Undrain(), now_s)

    def cold(self, now_s: float) -> dict[Key, Engine]:
        """The engines that dummy requests are to be sent to."""
        self._settle()
        engines = self._engines.items()
        return {key: engine for key, engine in engines if is_cold(engine, self.config, now_s)}

    def warming(self, key: Key, progress: Progress, now_s: float) -> bool:
        """Take in how the warm-up of one engine stands. False: it is not wanted any more."""
        self._settle()
        if not self.is_wanted(key, progress.boot_id):
            return False
        self._engines[key] = fold(self._engines[key], progress, now_s)
        self._published_is_old()
        return True

    def is_wanted(self, key: Key, boot_id: str) -> bool:
        """Is this incarnation still there, and in service?"""
        engine = self._engines.get(key)
        present = engine.hello if engine and engine.drain is None else None
        return present is not None and present.boot_id == boot_id

    @property
    def drains(self) -> dict[Key, Drain]:
        """What is out of service: to be kept over restarts of the sidecar."""
        return {key: engine.drain for key, engine in self._engines.items() if engine.drain}

    def resume(self, drains: Mapping[Key, Drain], now_s: float) -> None:
        """Go on with what a former sidecar's `drains` were. What no engine of this node can be is
        left out.

        Before anything is heard.
        """
        for key, drain in drains.items():
            if key[0] in self._places and 0 <= key[1] < MAX_RANKS:
                engine = self._engines.get(key) or self._unheard(*key)
                self._engines[key] = fold(engine, drain, now_s)
                first = self._engines[key[0], 0]
                if first.drain is None:  # The file may have been written before it was heard.
                    self._engines[key[0], 0] = fold(first, drain, now_s)

    def _command(self, name: str | None, event: Drain | Undrain, now_s: float) -> None:
        if name is not None and name not in self._places:
            raise KeyError(name)
        self._notice_absence(now_s)
        self._settle()
        for key, engine in self._engines.items():
            if name in (None, key[0]):
                self._engines[key] = fold(engine, event, now_s)
        self._published_is_old()

    def _published_is_old(self) -> None:
        self.publisher.expire()
        self._tell()

    def _tell(self) -> None:
        if self.tell is not None:
            self.tell()

    def published(self, now_s: float, wall_s: float) -> Published:
        """The document of now, or the last one if that is younger than `RENDER_EVERY_S`."""
        latest = self.publisher.latest(now_s)
        return latest or self.publisher.render(self._in_order(now_s), now_s, wall_s)

    def moved(self, since: Published) -> bool:
        """Do the engines say anything that those who have this document should know at once?"""
        self._fold()
        engines, judged = self._engines, since.judged
        return engines.keys() != judged.keys() or any(
            moved(then.engine, engines[key]) for key, then in judged.items()
        )

    def assessed(self, now_s: float) -> Iterator[tuple[Engine, Assessment]]:
        """Every engine and its judgement."""
        for engine in self._in_order(now_s):
            yield engine, assess(engine, self.config, now_s)

    def _in_order(self, now_s: float) -> list[Engine]:
        """Every engine as it is now, by place in the configuration, then by rank."""
        self._notice_absence(now_s)
        self._settle()
        keys = sorted(self._engines, key=lambda key: (self._places[key[0]], key[1]))
        return [self._engines[key] for key in keys]

    def _settle(self) -> None:
        """Be up to date."""
        if self.tell is None and self.fetch is not None:
            self.fetch()
        self._fold()

    def _fold(self) -> None:
        """Fold what was heard, in order, each as of its arrival."""
        heard, self._heard, self._heard_bytes = self._heard, [], 0
        for events, now_s in heard:
            for sender, said in groupby(events, _teller):
                if sender is not None:
                    self._hear_readings([e for e in said if isinstance(e, Reading)], now_s)
                    continue
                for event in said:
                    if isinstance(event, Hello):
                        self._hear_hello(event, now_s)
                    elif isinstance(event, DatagramError):
                        self.strays.refuse(event, now_s)

    def _hear_readings(self, readings: Sequence[Reading], now_s: float) -> None:
        """Of one sender."""
        key = self._speakers.get(readings[0].sender)
        engine = self._engines.get(key) if key else None
        if key is None or engine is None:  # It has not said hello, or its rank is gone.
            self.strays.early += len(readings)
            return
        self._engines[key] = fold_steps(engine, readings, now_s)

    def _hear_hello(self, hello: Hello, now_s: float) -> None:
        if hello.name not in self._places:
            self.strays.turn_away(hello, self._places, now_s)
            return
        if not hello.first_rank <= hello.engine_index < hello.data_parallel_size <= MAX_RANKS:
            fault = f"rank {hello.engine_index} of {hello.data_parallel_size}"
            fault += f", from {hello.first_rank} on" if hello.first_rank else ""
            self.strays.refuse(DatagramError(f"hello: {fault}"), now_s)
            return
        key = (hello.name, hello.engine_index)
        before = self._engines.get(key) or self._unheard(*key)
        engine = fold(before, hello, now_s)
        self._engines[key] = engine
        present = engine.hello
        if present is not None and present.sender == hello.sender:
            self._forget_ranks(present)
            self._say_source(before, engine)
        elif present is not None and hello.source != SCRAPE:
            self.strays.name_rivals(present, hello, now_s)
        if self._speakers.get(hello.sender) != key:
            self._speakers = {
                sender: key for key, engine in self._engines.items() for sender in engine.senders
            }

    def _unheard(self, name: str, index: int) -> Engine:
        fresh = Engine(name, index, self._since_s, Signals.of(self.config))
        siblings = [engine for key, engine in self._engines.items() if key[0] == name]
        if not siblings:
            return fresh
        # What it was meant for is in it: a server that has started anew ends it with its hello.
        drain = next((engine.drain for engine in siblings if engine.drain), None)
        return fresh._replace(health=siblings[0].health, drain=drain)

    def _forget_ranks(self, hello: Hello) -> None:
        """Drop a placeholder once a rank of its server has spoken, and ranks of a larger past.

        There are none as long as a server names the same number of ranks as in its last word: each
        hello is of a rank below the number that it names.
        """
        if self._sizes.get(hello.name) == hello.data_parallel_size:
            return
        self._sizes[hello.name] = hello.data_parallel_size
        for key, engine in tuple(self._engines.items()):
            is_other = key[0] == hello.name and key[1] != hello.engine_index
            if is_other and (engine.hello is None or key[1] >= hello.data_parallel_size):
                del self._engines[key]

    def _say_source(self, before: Engine, now: Engine) -> None:
        was, source = (engine.hello and engine.hello.source for engine in (before, now))
        if source != was:
            _log.info(line("source", engine=label(now), was=was or "-", now=source))


def _teller(event: Heard) -> int | None:
    """Whose step it is; `None`: it is none."""
    return event.sender if isinstance(event, Reading) else None
