"""One engine as the sidecar knows it: a value, and the events that change it (see `fold`).

The values made anew for every step are named tuples, or structs (windows, signals, counts): to make
a frozen dataclass takes four times as long as the first, and that three times as long as the other.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ullage_sidecar.core.counts import Counts
from ullage_sidecar.core.health import Health, Probe
from ullage_sidecar.core.reading import Hello, Reading
from ullage_sidecar.core.signals import Signals
from ullage_sidecar.core.speeds import Speeds
from ullage_sidecar.core.warmup import Progress, WarmUp


class Drain(NamedTuple):
    """The operator takes the engine out of service."""

    boot_id: str | None = None
    """The incarnation that is meant. `None`: the present one, or the first one to speak."""
    alias: str | None = None
    """What another source calls that incarnation."""
    heard_s: float | None = None
    """An instant at which that incarnation was heard of. `None`: not told."""


class Undrain(NamedTuple):
    """The operator wants it back."""


class Woken(NamedTuple):
    """This sidecar was away, stopped perhaps, and runs again: what it knew may be over."""


class Unread(NamedTuple):
    """Its `/metrics` could not be read."""

    why: str
    """Free of figures that change from time to time."""


Event = Hello | Reading | Unread | Probe | Drain | Undrain | Progress | Woken


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
    warm_up: WarmUp = WarmUp()
    """Of the present incarnation."""
    rival: Rival | None = None
    """Of several the one that was there first, as long as it speaks."""
    woke_s: float | None = None
    """When this sidecar last came back from an absence; `None`: it has watched all along."""
    speeds: Speeds = Speeds()
    unread: str = ""
    """Why its `/metrics`, which is asked while its plugin is silent, tells nothing; else empty."""
    alias: str | None = None
    """What the other source calls the present incarnation."""
    handed_over: bool = False
    """Another source spoke for the present incarnation before."""
    learned_seqs: int | None = None
    """Estimate of `max_num_seqs`, as long as nobody tells it."""
    generated_before: int = 0
    """Tokens of the present incarnation that another source has told of."""

    @property
    def watched_s(self) -> float:
        """Since when this sidecar has watched it without a break."""
        return self.since_s if self.woke_s is None else self.woke_s

    @property
    def max_num_seqs(self) -> int | None:
        """Most sequences that it runs at once: as told, else as learned."""
        told = self.hello.max_num_seqs if self.hello else None
        return self.learned_seqs if told is None else told

    @property
    def estimates_seqs(self) -> bool:
        """Is `max_num_seqs` an estimate?"""
        told = self.hello.max_num_seqs if self.hello else None
        return told is None and self.learned_seqs is not None

    @property
    def hides_steps(self) -> bool:
        """Did its senders hear of tokens, and none of them ever of a step?"""
        senders = self.senders.values()
        return any(s.unstepped for s in senders) and not any(s.step for s in senders)

    @property
    def generated(self) -> int:
        """Tokens that the present incarnation has generated, as far as is known."""
        steps = (sender.step for sender in self.senders.values())
        told = sum(step.generated_tokens or 0 for step in steps if step)
        return max(told, self.generated_before)

    def age_s(self, now_s: float) -> float:
        """Seconds since its last sign of life, or since we began to wait for the first."""
        return max(0.0, now_s - (self.since_s if self.heard_s is None else self.heard_s))
