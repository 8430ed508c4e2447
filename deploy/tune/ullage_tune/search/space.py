"""What is searched: keys of the sidecar's and the router's configuration, and values for each.

The values of a key are steps that an operator would write, neighbours alike, the default among
them. Finer ones could not be told apart: around the best, tail latency is flat, and less than the
noise of some runs.

    way of choosing      searched
    every                who has room: `window.span_s`, `penalty.form` and `.threshold`,
                         `depletion.ahead_s` (0: nothing is foreseen)
    weighted, highest    and how much: the weights of each class of request that comes
    weighted             and `choose.exponent`
    least_wait           and `choose.temperature`

The other ways look at the score only to find who has room. The penalty decides that, hardly the
weights: whoever has no queue has room as long as `waiting_weight` alone exceeds `choose.floor`.

The three weights of a class sum to 1, so they are two coordinates, in twentieths: that of the free
blocks, and the share of the rest that the free sequences get (a stick, broken twice).

A class with less than `LEAST_SHARE` of the requests has no part in a p99, and is left as it is.
`choose.floor` is not searched: it says when to refuse, which is no question of being fast.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, Final, NamedTuple

from ullage_router.config import Config as RouterConfig
from ullage_router.core.policy import Way
from ullage_shared.snapshot import RequestClass, class_of
from ullage_sidecar.core.penalty import Form
from ullage_sidecar.core.settings import Settings
from ullage_tune.search.setting import Setting

LEAST_SHARE: Final = 0.01
PARTS: Final = 20
"""Of a weight: it is a multiple of a twentieth."""

Point = Mapping[str, int]
"""For each coordinate, which of its values."""


class Ladder(NamedTuple):
    """A key, and what is tried for it."""

    key: str
    values: tuple[float | str, ...]


ROOM: Final = (
    Ladder("window.span_s", (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0)),
    Ladder("penalty.form", (Form.RECIPROCAL.value, Form.HALVE.value)),
    Ladder("penalty.threshold", (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0)),
    Ladder("depletion.ahead_s", (0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0)),
)
"""Of the sidecar, for every way."""
SCORED: Final = (Way.WEIGHTED, Way.HIGHEST)
"""Ways by which a higher score is more likely chosen."""
OWN: Final[Mapping[Way, Ladder]] = {
    Way.WEIGHTED: Ladder("choose.exponent", (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)),
    Way.LEAST_WAIT: Ladder("choose.temperature", (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)),
}
"""Of the router."""
TABLES: Final = {
    RequestClass.SHORT: "score.short",
    RequestClass.MIXED: "score",
    RequestClass.LONG: "score.long",
}
"""Where a class has its weights."""
WEIGHTS: Final = ("free_weight", "running_weight", "waiting_weight")


def classes_in(prompts: Iterable[int]) -> tuple[RequestClass, ...]:
    """The classes that matter among prompts of so many tokens."""
    seen = Counter(map(class_of, prompts))
    return tuple(c for c in RequestClass if seen[c] and seen[c] >= LEAST_SHARE * seen.total())


class Space:
    """All settings that are worth trying for a way of choosing and for classes of requests."""

    def __init__(self, way: Way, classes: Iterable[RequestClass]) -> None:
        self.way = way
        self._weights = [TABLES[c] for c in classes] if way in SCORED else []
        self._own = [OWN[way]] if way in OWN else []

    @property
    def default_name(self) -> str:
        """What the default setting is called in a sentence."""
        shipped = _shipped("choose.way")
        if self.way == shipped:
            return "the default"
        return f"{self.way} as it is by default (what ships is {shipped})"

    @property
    def sizes(self) -> Mapping[str, int]:
        """How many values each coordinate has."""
        sizes = {}
        for table in self._weights:
            for weight in WEIGHTS[:2]:
                sizes[f"{table}.{weight}"] = PARTS + 1
        for ladder in (*ROOM, *self._own):
            sizes[ladder.key] = len(ladder.values)
        return sizes

    @property
    def default(self) -> Point:
        """What ships."""
        point = {}
        for table in self._weights:
            free, running, _ = (round(PARTS * weight) for weight in _shipped_weights(table))
            point[f"{table}.free_weight"] = free
            point[f"{table}.running_weight"] = round(PARTS * running / max(1, PARTS - free))
        for ladder in (*ROOM, *self._own):
            point[ladder.key] = ladder.values.index(_shipped(ladder.key))
        return point

    def values(self, point: Point) -> Mapping[str, float | str]:
        """What each key is there; the three weights of a class, too."""
        values: dict[str, float | str] = {}
        for table in self._weights:
            free = point[f"{table}.free_weight"]
            rest = PARTS - free
            running = round(rest * point[f"{table}.running_weight"] / PARTS)
            for weight, parts in zip(WEIGHTS, (free, running, rest - running), strict=True):
                values[f"{table}.{weight}"] = parts / PARTS
        for ladder in (*ROOM, *self._own):
            values[ladder.key] = ladder.values[point[ladder.key]]
        return values

    def setting(self, point: Point) -> Setting:
        """What of it differs from the default. Weights of a class that do are there all three."""
        sidecar: dict[str, Any] = {}
        router: dict[str, Any] = {}
        if self.way != _shipped("choose.way"):
            _put(router, "choose.way", self.way.value)
        values = self.values(point)
        moved = {
            table
            for table in self._weights
            if tuple(values[f"{table}.{weight}"] for weight in WEIGHTS) != _shipped_weights(table)
        }
        for key, value in values.items():
            table, _, name = key.rpartition(".")
            if table in moved if name in WEIGHTS else value != _shipped(key):
                _put(router if table == "choose" else sidecar, key, value)
        return Setting(sidecar, router)


def _shipped(key: str) -> Any:
    of = RouterConfig() if key.startswith("choose.") else Settings()
    return attrgetter(key)(of)


def _shipped_weights(table: str) -> tuple[float, ...]:
    return tuple(_shipped(f"{table}.{weight}") for weight in WEIGHTS)


def _put(tables: dict[str, Any], key: str, value: float | str) -> None:
    *parents, name = key.split(".")
    for parent in parents:
        tables = tables.setdefault(parent, {})
    tables[name] = value
