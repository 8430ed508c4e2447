"""What choosing is asked, what it looks at, and what comes of it."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from ullage_router.core.affinity import STAY, Known, Move
from ullage_router.core.fleet import Replica
from ullage_router.core.lineup import Seat
from ullage_shared.snapshot import RequestClass


class Why(StrEnum):
    """The rule that settled a decision."""

    __hash__ = str.__hash__  # Enum's own is written in Python, and each decision is counted by it.

    SCORE = "score"
    """No key settles it: chosen among those with headroom, by `choose.way`."""
    OWN_COUNTS = "own_counts"
    """No sidecar speaks for any candidate: chosen by this router's requests in flight."""
    AFFINITY = "affinity"
    """It goes where what it begins with is known."""
    AFFINITY_BY_CHANCE = "affinity_by_chance"
    """Its key's replica has little room, and keeps this request by `affinity.stay_chance`."""
    NEW_KEY = "new_key"
    """Nobody is known to know how it begins: chosen as the key prefers."""
    WAIT = "wait"
    """Nobody knows how it begins, or only who has more to do: where the least wait is expected."""
    KEY_MOVED = "key_moved"
    """Its key's replica is full or gone: balanced, and the key moves along."""
    KEY_SPILLED = "key_spilled"
    """Its key's replica has little room, or none but the key has moved a moment ago: balanced, and
    the key stays."""
    HOT_KEY = "hot_key"
    """Its key comes so often that several replicas share it."""
    FULL = "full"
    """Refused, after it has waited or at once: replicas serve, and none has headroom."""
    NO_REPLICA = "no_replica"
    """Refused: no replica is serving."""


class Need(msgspec.Struct, frozen=True, gc=False):
    """What choosing needs to know of a request."""

    model: str | None = None
    """None: it names none, or all replicas serve the same."""
    size: RequestClass = RequestClass.MIXED
    keys: tuple[int, ...] = ()
    """Its cache keys, of 64 bits, the shortest beginning first."""
    prompt_tokens: int = 0
    """Estimated."""
    shares: tuple[float, ...] = ()
    """How much of the prompt each key covers, 0..1."""


class Waits(msgspec.Struct, frozen=True, gc=False):
    """What was expected of those that were looked at."""

    places: Sequence[int]
    """Which of those that could be chosen, in the order of the seats."""
    waits_s: Sequence[float]
    uncached: Sequence[int]
    """Tokens of the prompt that were to be computed there."""
    weights: Sequence[float]
    tokens: int
    """Of the prompt."""

    def by_place(self) -> dict[int, tuple[float, int, float]]:
        """Wait, uncached tokens and weight of each that was looked at."""
        told = zip(self.waits_s, self.uncached, self.weights, strict=True)
        return dict(zip(self.places, told, strict=True))


class Look(msgspec.Struct, frozen=True, gc=False):
    """What was looked at, so that it can be told."""

    seats: tuple[Seat, ...]
    """The candidates."""
    exponent: float
    scores: tuple[float, ...]
    """What each that could be chosen was worth by then, in the order of the seats."""
    full: Mapping[str, float]
    """The same of those whom this router had filled, by key."""
    waits: Waits | None = None
    """By `least_wait`: what was expected of them."""


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Where a request goes, and why. `replica` None: it is refused."""

    replica: Replica | None
    why: Why
    score: float | None = None
    """The replica's capacity score at that moment; None: it was silent."""
    known: Known | None = None
    """The longest of its keys that had a home."""
    move: Move = STAY
    look: Look | None = None
    uncached: int = 0
    """About how many tokens of the prompt the replica has yet to compute."""
    ttft_s: float | None = None
    """By `least_wait`: in how many seconds its first token is expected."""
