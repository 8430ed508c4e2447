"""Requests that wait because no replica has headroom: in which order, how many, for how long.

    order     by (priority, arrival): the lower number first, as vLLM has it; among equals, FIFO
    bounds    max_requests and max_bytes, both of them, at every moment
    wait      until now_s - since_s = max_wait_s

Without a bound on each of the three, a router that waits for headroom dies of memory, and its
clients of old age (mission R3: at most 2 s; rather a fast refusal than a pile-up).

One that finds no place takes that of the worst (the highest number, of those the latest to come),
if its own number is lower, and of as many of these as its bytes need: all of that, or nothing.
Two of a kind never change places, so nobody gains by asking again.

A clock set back: what seems to have come in the future has waited long enough.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Annotated, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

T = TypeVar("T")


class QueuePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[queue]` in the configuration: requests that wait for a replica with headroom."""

    max_requests: Annotated[
        int,
        Meta(
            ge=0,
            le=4096,
            description="Most requests of one worker that wait; a further one gets 503 at once. "
            "Higher refuses fewer in a burst, and lets more of them wait in vain. 0: nobody waits.",
        ),
    ] = 256
    max_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Most bytes of their bodies. One whose body alone is larger never waits. "
            "Higher holds more memory in an overload.",
        ),
    ] = 67_108_864
    max_wait_s: Annotated[
        float,
        Meta(
            gt=0.0,
            le=2.0,
            description="How long, in seconds, a request waits at most; then 503. "
            "Higher rides out longer bursts, and tells clients later that there is no room.",
        ),
    ] = 2.0


class Ticket(NamedTuple, Generic[T]):
    """A place in the queue. They sort as they are served."""

    priority: int
    """Lower is served earlier."""
    arrival: int
    """Which one it was to come; no two are alike."""
    lane: Hashable
    """What it waits for: those of one lane need the same."""
    size_bytes: int
    since_s: float
    item: T


class Outcome(NamedTuple, Generic[T]):
    """What came of a wish to wait."""

    ticket: Ticket[T] | None
    """None: there is no place."""
    displaced: tuple[Ticket[T], ...] = ()
    """Those that had to give up their places, the worst first."""


class WaitingLine(Generic[T]):
    """The queue. Sorted at every moment: at its size, moving pointers is cheaper than a heap."""

    __slots__ = ("_arrivals", "_bytes", "_lanes", "_line", "policy")

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        """May be replaced at any time. Those that wait keep their places under narrower bounds."""
        self._line: list[Ticket[T]] = []
        self._lanes: Counter[Hashable] = Counter()
        self._bytes = 0
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Ticket[T]]:
        """In order. Not to be changed meanwhile."""
        return iter(self._line)

    @property
    def size_bytes(self) -> int:
        """Bytes of all that wait."""
        return self._bytes

    def waits(self, lane: Hashable) -> bool:
        """Does any wait in that lane?"""
        return lane in self._lanes

    def put(
        self, item: T, now_s: float, *, priority: int, size_bytes: int, lane: Hashable = None
    ) -> Outcome[T]:
        """Let `item` wait, if there is a place or a worse one has to go. O(log n), and moves."""
        line, policy = self._line, self.policy
        stay, held_bytes = len(line), self._bytes + size_bytes
        while stay >= policy.max_requests or held_bytes > policy.max_bytes:
            if not stay or line[stay - 1].priority <= priority:
                return Outcome(None)
            stay -= 1
            held_bytes -= line[stay].size_bytes
        displaced = tuple(reversed(line[stay:]))
        for ticket in displaced:
            self.remove(ticket)
        self._arrivals += 1
        placed = Ticket(priority, self._arrivals, lane, size_bytes, now_s, item)
        insort(line, placed)
        self._lanes[lane] += 1
        self._bytes += size_bytes
        return Outcome(placed, displaced)

    def remove(self, ticket: Ticket[T]) -> bool:
        """Take it out, wherever it stands. Was it there?"""
        at = bisect_left(self._line, ticket)
        if at == len(self._line) or self._line[at] is not ticket:
            return False
        del self._line[at]
        self._bytes -= ticket.size_bytes
        if self._lanes[ticket.lane] > 1:
            self._lanes[ticket.lane] -= 1
        else:
            del self._lanes[ticket.lane]  # Clients make up names of models.
        return True

    def expired(self, now_s: float) -> list[Ticket[T]]:
        """Those that have waited long enough, in order; they stay until they are removed."""
        max_wait_s = self.policy.max_wait_s
        return [t for t in self._line if not 0.0 <= now_s - t.since_s < max_wait_s]

    def __repr__(self) -> str:
        return f"WaitingLine({len(self._line)}: {self._bytes} bytes)"
