"""The document of one node as it was last rendered, and the next one.

It is rendered when somebody asks and the last one is older than `RENDER_EVERY_S`, or is called old.
Its number, and that of each replica in it, grows with every change, and over restarts too.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from ullage_shared.snapshot import SCHEMA, Document, Snapshot, encode
from ullage_sidecar.config import Config
from ullage_sidecar.core.assess import Assessment
from ullage_sidecar.core.change import Mark, mark
from ullage_sidecar.core.engine import Engine
from ullage_sidecar.core.render import label, render, sequenced
from ullage_sidecar.told import Told

RENDER_EVERY_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Published:
    """The document as last rendered."""

    at_s: float
    seq: int
    """Grows with every change of the document's content, over restarts too."""
    replicas: tuple[Snapshot, ...]
    body: bytes
    marks: Mapping[tuple[str, int], Mark] = field(default_factory=dict)
    """The engines as they were then, by name and rank."""


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

    def render(
        self, judged: Iterable[tuple[Engine, Assessment]], now_s: float, wall_s: float
    ) -> Published:
        """The document of these engines, in this order."""
        engines, last = list(judged), self._last
        replicas = tuple(self._snapshots(engines, now_s, wall_s))
        seq = max(0, int(now_s * 1000.0))
        if last is not None:
            seq = last.seq if _same(last.replicas, replicas) else max(seq, last.seq + 1)
        body = encode(Document(schema=SCHEMA, node=self._config.node, replicas=replicas))
        marks = {(engine.name, engine.rank): mark(engine) for engine, _ in engines}
        self.renders += 1
        self._last = Published(now_s, seq, replicas, body, marks)
        return self._last

    def _snapshots(
        self, judged: Iterable[tuple[Engine, Assessment]], now_s: float, wall_s: float
    ) -> Iterator[Snapshot]:
        before = {snapshot.id: snapshot for snapshot in self._last.replicas} if self._last else {}
        for engine, assessment in judged:
            fresh = render(
                engine,
                assessment,
                node=self._config.node,
                url=self._urls[engine.name],
                wall_s=wall_s,
            )
            self._told.tell(label(engine), fresh.state, fresh.reason, now_s)
            yield sequenced(fresh, before.get(fresh.id), now_s)


def _same(left: tuple[Snapshot, ...], right: tuple[Snapshot, ...]) -> bool:
    """Are these the same replicas, unchanged? Their `seq` tells."""
    return [(one.id, one.boot_id, one.seq) for one in left] == [
        (one.id, one.boot_id, one.seq) for one in right
    ]
