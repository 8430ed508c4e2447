"""What the sidecars said last, and the document that is made of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ullage_shared.aggregator.gather import Heard, Key, gather, same, standing
from ullage_shared.snapshot import SCHEMA, Document, Snapshot, encode

RENDER_EVERY_S: Final = 0.1
"""However many ask, a document of a thousand replicas, which takes some ms, is rendered ten times a
second at most. Its ages are late by that, which nobody counts: see `gather.SAME_AGE_S`."""


@dataclass(frozen=True, slots=True)
class Published:
    """The document as last rendered."""

    at_s: float
    seq: int
    """Grows with every change of the document's content, over restarts too."""
    replicas: tuple[Snapshot, ...]
    body: bytes
    standings: int
    """How often who is there, or its state, had changed by then."""


class Table:
    """The words of all sources. Watched as a node is: see `watch.Watchable`."""

    def __init__(self, node: str) -> None:
        self.tell: Callable[[], None] | None = None
        self.shown: Published | None = None
        self.renders = 0
        self.disputed: tuple[str, ...] = ()
        """As of the last document: see `gather`."""
        self._node = node
        self._heard: dict[str, Heard] = {}
        self._speakers: dict[Key, str] = {}
        self._standings = 0
        self._last: Published | None = None

    def hear(self, source: str, document: Document, now_s: float) -> None:
        """`source` says this. What it said before no longer counts."""
        before = self._heard.get(source)
        self._heard[source] = Heard(document, now_s)
        if before is None or standing(before.document) != standing(document):
            self._moved()

    def vouch(self, source: str, now_s: float) -> None:
        """What `source` said last is true now."""
        before = self._heard.get(source)
        if before is not None:
            self._heard[source] = Heard(before.document, now_s)

    def forget(self, source: str) -> None:
        """`source` is no longer asked: as if it had said nothing."""
        if self._heard.pop(source, None) is not None:
            self._moved()

    def _moved(self) -> None:
        self._standings += 1
        if self.tell is not None:
            self.tell()

    def moved(self, since: Published) -> bool:
        """Has anybody come, gone, or changed its state since?"""
        return since.standings != self._standings

    def published(self, now_s: float, wall_s: float) -> Published:
        """The document of now, or of `RENDER_EVERY_S` ago at most."""
        del wall_s  # No `ts` is ours.
        last = self._last
        if last is not None and 0.0 <= now_s - last.at_s < RENDER_EVERY_S:
            return last
        replicas, speakers, self.disputed = gather(self._heard, self._speakers, now_s)
        self._speakers = dict(speakers)
        seq = max(0, int(now_s * 1000.0))
        if last is not None:
            seq = last.seq if same(last.replicas, replicas) else max(seq, last.seq + 1)
        body = encode(Document(schema=SCHEMA, node=self._node, replicas=replicas))
        self.renders += 1
        self._last = Published(now_s, seq, replicas, body, self._standings)
        return self._last
