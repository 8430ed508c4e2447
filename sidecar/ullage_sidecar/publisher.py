"""The document of one node as it was last rendered, and the next one.

It is rendered when somebody asks and the last one is older than `RENDER_EVERY_S`, or is called old.
Its number, and that of each replica in it, grows with every change, and over restarts too.

An engine that has moved, or of which anything but steps was heard (see `core.change`), is judged
anew for it; any other one every `JUDGE_EVERY_S`, and its `age_s` says how long ago it was.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final, NamedTuple

import msgspec

from ullage_shared.snapshot import SCHEMA, Document, Snapshot, encode
from ullage_shared.watch import RENDER_EVERY_S
from ullage_sidecar.config import Config
from ullage_sidecar.core.assess import assess
from ullage_sidecar.core.change import has_only_stepped
from ullage_sidecar.core.engine import Engine
from ullage_sidecar.core.render import label, render, sequenced
from ullage_sidecar.told import Told

JUDGE_EVERY_S: Final = 0.1
"""More is cheaper: while one of many engines is restless, a document is rendered every 20 ms."""


class Judged(NamedTuple):
    """One engine, and what was made of it."""

    engine: Engine
    at_s: float
    snapshot: Snapshot
    """As of then."""


@dataclass(frozen=True, slots=True)
class Published:
    """The document as last rendered."""

    at_s: float
    seq: int
    """Grows with every change of the document's content, over restarts too."""
    replicas: tuple[Snapshot, ...]
    body: bytes
    judged: Mapping[tuple[str, int], Judged] = field(default_factory=dict)
    """What is in it, by name and rank."""


class Publisher:
    """Renders, and says in the log how engines' standing changes."""

    def __init__(self, config: Config) -> None:
        self.renders = 0
        self._config = config
        self._urls = {entry.name: entry.url for entry in config.engine}
        self._last: Published | None = None
        self._told = Told()

    def latest(self, now_s: float) -> Published | None:
        """The last document, if it is young enough to be that of now."""
        last = self._last
        return last if last is not None and 0.0 <= now_s - last.at_s < RENDER_EVERY_S else None

    def expire(self) -> None:
        """What has just been decided is to be seen at once."""
        if self._last is not None:
            self._last = replace(self._last, at_s=-inf)

    def render(self, engines: Iterable[Engine], now_s: float, wall_s: float) -> Published:
        """The document of these engines, in this order."""
        last = self._last
        before = last.judged if last is not None else {}
        judged: dict[tuple[str, int], Judged] = {}
        for engine in engines:
            key = engine.name, engine.rank
            judged[key] = self._judged(engine, before.get(key), now_s, wall_s)
        replicas = tuple(_aged(each, now_s) for each in judged.values())
        seq = max(0, int(now_s * 1000.0))
        if last is not None:
            seq = last.seq if _same(last.replicas, replicas) else max(seq, last.seq + 1)
        body = encode(Document(schema=SCHEMA, node=self._config.node, replicas=replicas))
        self.renders += 1
        self._last = Published(now_s, seq, replicas, body, judged)
        return self._last

    def _judged(self, engine: Engine, last: Judged | None, now_s: float, wall_s: float) -> Judged:
        if (
            last is not None
            and 0.0 <= now_s - last.at_s < JUDGE_EVERY_S
            and has_only_stepped(last.engine, engine)
        ):
            return last
        fresh = render(
            engine,
            assess(engine, self._config, now_s),
            node=self._config.node,
            url=self._urls[engine.name],
            wall_s=wall_s,
        )
        self._told.tell(label(engine), fresh.state, fresh.reason, now_s)
        return Judged(engine, now_s, sequenced(fresh, last.snapshot if last else None, now_s))


def _aged(judged: Judged, now_s: float) -> Snapshot:
    age_s = now_s - judged.at_s
    if age_s <= 0.0:
        return judged.snapshot
    return msgspec.structs.replace(judged.snapshot, age_s=round(age_s, 3))


def _same(left: tuple[Snapshot, ...], right: tuple[Snapshot, ...]) -> bool:
    """Are these the same replicas, unchanged? Their `seq` tells."""
    return [(one.id, one.boot_id, one.seq) for one in left] == [
        (one.id, one.boot_id, one.seq) for one in right
    ]
