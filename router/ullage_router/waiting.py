"""The waiting room: requests wait here, for a moment, while no replica has headroom.

Rules
* A request waits behind those of its lane that wait, by priority. A lane is what needs the same: a
  model whose replicas are full holds up no other, and a long prompt no short one.
* While any waits, a look every 20 ms lets them go in order, to whom the router then chooses for
  each: at most one for each replica with headroom, so that the first one that breathes again is
  not flooded before its next snapshot. Of a lane, a few for which nobody was found are passed over:
  one that wants more than there is must not hold up those that want less.
* Whoever has waited `max_wait_s`, finds no place, or loses it is refused, with a Retry-After by how
  fast requests end here. A client that has gone is out at once.
* One line says that an overload began, and one that it ended; none for each request.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Hashable
from math import inf
from typing import Final, Protocol

from ullage_router.core.decision import Why
from ullage_router.core.drain import DrainRate, retry_after_s
from ullage_router.core.gate import CALM_S, Event, State, step
from ullage_router.core.queue import QueuePolicy, Ticket, WaitingLine
from ullage_router.http.errors import NO_REPLICA, NoRoom, Refusal, no_room
from ullage_router.tally import Histogram
from ullage_shared.log import line

_log: Final = logging.getLogger("ullage.router")
_OPEN: Final = State.OPEN  # On each request's path: to look it up in the enum takes as long again.
LOOK_EVERY_S: Final = 0.02
MOST_PASSED: Final = 8
WAIT_BOUNDS: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 2.1)


class Guest(Protocol):
    """A request that may have to wait."""

    @property
    def priority(self) -> int:
        """Lower is served earlier."""

    @property
    def lane(self) -> Hashable:
        """What it needs; None: any replica will do."""

    @property
    def size_bytes(self) -> int:
        """What it holds in memory."""

    def go(self) -> Why | None:
        """Choose a replica and go there; else: why not."""

    def refuse(self, refusal: Refusal) -> None:
        """It will not be served."""


class WaitingRoom:
    """Lets requests in, holds those that find no headroom, and counts what becomes of them."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, breathing: Callable[[Hashable], int]
    ) -> None:
        """`breathing`: how many replicas have headroom now for requests of a lane; None: for any.

        It must not read 0 while a decision would find one: nobody is let go then.
        """
        self.state = State.OPEN
        self.episodes = 0
        """Overloads that have begun."""
        self.queued = 0
        """Requests that had to wait."""
        self.released = 0
        """Of these: those that then went to a replica."""
        self.left = 0
        """Of these: those whose client went first, or that the router's stop ended."""
        self.refused: Counter[NoRoom] = Counter()
        """Refused for lack of headroom, whether they waited or not."""
        self.wait_s = Histogram(WAIT_BOUNDS)
        """How long each that had to wait did so, whatever came of it."""
        self._loop = loop
        self._breathing = breathing
        self._line: WaitingLine[Guest] = WaitingLine(QueuePolicy())
        self._tickets: dict[Guest, Ticket[Guest]] = {}
        self._turned_out: dict[Guest, Refusal] = {}
        """To be told in a callback of their own: their connections may bring further requests."""
        self._drain = DrainRate()
        self._timer: asyncio.TimerHandle | None = None
        self._refused_s = -inf
        self._waited_s = -inf
        """When one was refused, and when one that waited left, for the last time."""
        self._began_s = 0.0
        self._before = (0, 0)
        """`queued`, and all that were `refused`, when the overload began."""

    @property
    def policy(self) -> QueuePolicy:
        """The bounds. May be replaced at any time."""
        return self._line.policy

    @policy.setter
    def policy(self, policy: QueuePolicy) -> None:
        self._line.policy = policy

    @property
    def waiting(self) -> int:
        """Requests that wait now."""
        return len(self._line)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of their bodies."""
        return self._line.size_bytes

    @property
    def oldest_s(self) -> float | None:
        """How long the one that has waited longest has done so; None: nobody waits."""
        if not self._line:
            return None
        return self._loop.time() - min(ticket.since_s for ticket in self._line)

    def retry_after_s(self) -> int:
        """When one that is refused now may hope for room: behind all that wait."""
        return retry_after_s(len(self._line), self._drain.per_s(self._loop.time()))

    # Called by the requests

    def arrive(self, guest: Guest) -> None:
        """Let it go to a replica, wait, or be refused."""
        if self.state is _OPEN or not self._line.waits(guest.lane):
            why_not = guest.go()
            if why_not is None:
                return
            if why_not is not Why.FULL:
                guest.refuse(NO_REPLICA)
                return
        self._let_wait(guest)

    def leave(self, guest: Guest) -> None:
        """It is not there any more, if it waited at all."""
        self._turned_out.pop(guest, None)
        if guest in self._tickets:
            self._take_out(guest)
            self.left += 1

    def ended(self) -> None:
        """A request has ended, and so made room."""
        self._drain.ended(self._loop.time())

    def second_try_refused(self) -> Refusal:
        """A replica failed, and no other has room."""
        return self._refusal(NoRoom.SECOND_TRY)

    def close(self) -> None:
        """End the timer."""
        if self._timer is not None:
            self._timer.cancel()

    # In and out

    def _let_wait(self, guest: Guest) -> None:
        now_s = self._loop.time()
        placed = self._line.put(
            guest,
            now_s,
            priority=guest.priority,
            size_bytes=guest.size_bytes,
            lane=guest.lane,
        )
        if placed.ticket is None:
            guest.refuse(self._refusal(NoRoom.FULL_QUEUE))
            return
        self._happened(Event.WAITS)
        self.queued += 1
        self._tickets[guest] = placed.ticket
        for ticket in placed.displaced:
            self._turn_out(ticket, NoRoom.DISPLACED)
        if len(self._line) == 1:
            self._look_again()

    def _take_out(self, guest: Guest) -> None:
        ticket = self._tickets.pop(guest)
        self._line.remove(ticket)
        self.wait_s.observe(self._loop.time() - ticket.since_s)
        self._waited_s = self._loop.time()

    def _turn_out(self, ticket: Ticket[Guest], how: NoRoom) -> None:
        guest = ticket.item
        self._take_out(guest)
        self._turned_out[guest] = self._refusal(how)
        self._loop.call_soon(self._tell, guest)

    def _tell(self, guest: Guest) -> None:
        refusal = self._turned_out.pop(guest, None)
        if refusal is not None:
            guest.refuse(refusal)

    def _refusal(self, how: NoRoom) -> Refusal:
        self._happened(Event.REFUSED)
        self.refused[how] += 1
        self._refused_s = self._loop.time()
        return no_room(how, self.retry_after_s())

    # The look

    def _look_again(self) -> None:
        """Set when to look next. The state is not OPEN as long as any waits."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self.state is not _OPEN:
            in_s = LOOK_EVERY_S if self._line else CALM_S / 4
            self._timer = self._loop.call_later(in_s, self._look)

    def _look(self) -> None:
        try:
            now_s = self._loop.time()
            # The last first, so that each is told to come back after those that stood before it.
            for ticket in reversed(self._line.expired(now_s)):
                self._turn_out(ticket, NoRoom.WAITED)
            self._release()
            if now_s - self._refused_s >= CALM_S:
                long_empty = not self._line and now_s - self._waited_s >= CALM_S
                calm = long_empty and self._breathing(None) > 0
                self._happened(Event.CALM if calm else Event.QUIET)
        finally:
            self._look_again()

    def _release(self) -> None:
        """Let go whom there is headroom for. O(those that wait)."""
        of_lane: dict[Hashable, int] = {}
        passed: Counter[Hashable] = Counter()
        of_all, went = self._breathing(None) if self._line else 0, 0
        for ticket in list(self._line):
            lane, guest = ticket.lane, ticket.item
            if lane not in of_lane:
                of_lane[lane] = self._breathing(lane)
                of_all = max(of_all, of_lane[lane])
            if of_lane[lane] <= 0 or went >= of_all or passed[lane] >= MOST_PASSED:
                continue
            if guest.go() is None:
                self._take_out(guest)
                self.released += 1
                of_lane[lane] -= 1
                went += 1
            else:
                passed[lane] += 1

    # The overload

    def _happened(self, event: Event) -> None:
        """To be told before it is counted."""
        was_open = self.state is _OPEN
        self.state = step(self.state, event)
        if (self.state is _OPEN) is was_open:
            return
        if was_open:
            self._begin()
        else:
            self._end()

    def _begin(self) -> None:
        self.episodes += 1
        self._began_s = self._loop.time()
        self._before = (self.queued, self.refused.total())
        _log.warning(line("overload_began"))
        self._look_again()

    def _end(self) -> None:
        queued, refused = self._before
        _log.info(
            line(
                "overload_ended",
                queued=self.queued - queued,
                refused=self.refused.total() - refused,
                lasted_s=round(self._loop.time() - self._began_s, 1),
            )
        )
