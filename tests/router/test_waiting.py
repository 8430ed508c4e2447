"""The waiting room by itself: who waits, in which order, how long, and who is refused.

Its clock is moved by hand; its place in the data plane is tested on real sockets, in `http`.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from ullage_router.core.decision import Why
from ullage_router.core.drain import retry_after_s
from ullage_router.core.gate import State
from ullage_router.core.queue import QueuePolicy
from ullage_router.http.errors import NoRoom, Refusal
from ullage_router.waiting import LOOK_EVERY_S, MOST_PASSED, WaitingRoom

LOOK_S = LOOK_EVERY_S + 0.001


class ByHand:
    """An event loop as far as the room needs one, whose clock a test moves."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_soon(self, call: Callable[..., None], *args: object) -> asyncio.TimerHandle:
        return self.call_later(0.0, call, *args)

    def call_later(self, in_s: float, call: Callable[..., None], *args: object) -> Any:
        due = (self.now_s + in_s, lambda: call(*args))
        self.due.append(due)
        return _Handle(self, due)

    def go_on(self, for_s: float = 0.0) -> None:
        """Let time pass, and what is due happen."""
        end_s = self.now_s + for_s
        while self.due and min(self.due, key=lambda due: due[0])[0] <= end_s:
            due = min(self.due, key=lambda due: due[0])
            self.due.remove(due)
            self.now_s = max(self.now_s, due[0])
            due[1]()
        self.now_s = end_s


@dataclass
class _Handle:
    loop: ByHand
    due: tuple[float, Callable[[], None]]

    def cancel(self) -> None:
        if self.due in self.loop.due:
            self.loop.due.remove(self.due)


@dataclass
class Room:
    """A waiting room, and replicas that have as much headroom as is said."""

    loop: ByHand = field(default_factory=ByHand)
    headroom: dict[Hashable, int] = field(default_factory=dict)
    """Replicas that breathe, by lane. They never get full by themselves."""
    asked: int = 0
    """How often a replica was to be chosen."""

    def __post_init__(self) -> None:
        self.it = WaitingRoom(cast(asyncio.AbstractEventLoop, self.loop), self._breathing)

    def _breathing(self, lane: Hashable) -> int:
        return sum(self.headroom.values()) if lane is None else self.headroom.get(lane, 0)

    def guests(self, number: int, priority: int = 0, **options: Any) -> "list[Guest]":
        """So many arrive."""
        guests = [Guest(self, priority, **options) for _ in range(number)]
        for guest in guests:
            self.it.arrive(guest)
        return guests


@dataclass(eq=False)
class Guest:
    room: Room
    priority: int = 0
    lane: Hashable = "m"
    size_bytes: int = 0
    why_not: Why = Why.FULL
    brings: "Guest | None" = None
    """Arrives when this one is refused: its connection's next request."""
    went: bool = False
    refusal: Refusal | None = None

    def go(self) -> Why | None:
        assert not self.went
        assert self.refusal is None
        self.room.asked += 1
        if self.room.headroom.get(self.lane, 0) <= 0:
            return self.why_not
        self.went = True
        return None

    def refuse(self, refusal: Refusal) -> None:
        assert not self.went
        assert self.refusal is None
        self.refusal = refusal
        if self.brings is not None:
            self.room.it.arrive(self.brings)

    @property
    def fate(self) -> str:
        if self.went:
            return "went"
        return "waits" if self.refusal is None else self.refusal.code


def fates(guests: list[Guest]) -> list[str]:
    return [guest.fate for guest in guests]


# The room


def test_with_headroom_nobody_waits_and_nothing_is_counted() -> None:
    room = Room(headroom={"m": 1})
    assert fates(room.guests(50)) == ["went"] * 50
    assert (room.it.state, room.it.queued, room.it.episodes, room.loop.due) == (
        *(State.OPEN, 0, 0),
        [],
    )


def test_how_long_the_first_has_waited_is_told_whoever_stands_before_it() -> None:
    room = Room()
    assert room.it.oldest_s is None
    room.guests(1)
    room.loop.go_on(0.25)
    room.guests(1, priority=-1)
    assert room.it.oldest_s == 0.25
    room.loop.go_on(2.0 + LOOK_S)
    assert room.it.oldest_s is None


@pytest.mark.parametrize("breathing", [1, 2, 8])
def test_at_each_look_at_most_one_goes_for_each_replica_that_breathes(breathing: int) -> None:
    room = Room()
    guests = room.guests(20)
    room.headroom = {"m": breathing}
    for look in range(1, 4):
        room.loop.go_on(LOOK_S)
        went = min(20, look * breathing)
        assert fates(guests) == ["went"] * went + ["waits"] * (20 - went)


def test_while_nobody_breathes_no_replica_is_chosen_in_vain() -> None:
    room = Room()
    room.guests(20)
    room.loop.go_on(1.0)
    assert room.asked == 1


def test_whoever_comes_while_others_wait_stands_behind_them() -> None:
    room = Room()
    (first,) = room.guests(1)
    room.headroom = {"m": 5}
    (second,) = room.guests(1)
    assert fates([first, second]) == ["waits", "waits"]
    room.headroom = {"m": 1}
    room.loop.go_on(LOOK_S)
    assert fates([first, second]) == ["went", "waits"]


def test_a_better_priority_overtakes_and_equals_do_not() -> None:
    room = Room()
    late, early, soon = room.guests(1, 5)[0], room.guests(1)[0], room.guests(1, -1)[0]
    behind = room.guests(1)[0]
    room.headroom = {"m": 1}
    order = [soon, early, behind, late]
    for n in range(1, 5):
        room.loop.go_on(LOOK_S)
        assert fates(order) == ["went"] * n + ["waits"] * (4 - n)


def test_it_waits_two_seconds_to_the_look_and_no_longer() -> None:
    room = Room()
    (guest,) = room.guests(1)
    room.loop.go_on(1.999)
    assert guest.fate == "waits"
    room.loop.go_on(LOOK_S)
    assert guest.fate == "no_capacity"
    assert room.it.refused == {NoRoom.WAITED: 1}


def test_those_that_waited_in_vain_are_told_to_come_back_one_after_the_other() -> None:
    room = Room()
    for _ in range(10):
        room.it.ended()
        room.loop.go_on(0.5)
    guests = room.guests(20)
    room.loop.go_on(2.1)
    said = [guest.refusal.retry_after_s for guest in guests if guest.refusal]
    assert said == sorted(said)
    per_s = room.it._drain.per_s(room.loop.now_s)
    assert said[0] == retry_after_s(0, per_s)
    assert said[-1] == retry_after_s(19, per_s)


def test_the_retry_after_of_a_full_queue_is_by_all_that_wait_and_by_how_fast_requests_end() -> None:
    room = Room()
    for _ in range(100):
        room.it.ended()
        room.loop.go_on(0.1)
    room.guests(256)
    (refused,) = room.guests(1)
    assert refused.refusal is not None
    assert refused.refusal.retry_after_s == retry_after_s(256, 10.0) == 26
    assert "26 s" in refused.refusal.message


def test_a_full_model_holds_up_no_other() -> None:
    room = Room(headroom={"other": 1})
    room.it.policy = QueuePolicy(max_requests=3)
    full = room.guests(4)
    assert fates(full) == ["waits", "waits", "waits", "no_capacity"]
    assert fates(room.guests(9, lane="other")) == ["went"] * 9
    room.loop.go_on(1.5)
    assert fates(full[:3]) == ["waits"] * 3
    assert room.it.state is State.QUEUEING


def test_a_long_line_of_one_model_passes_the_headroom_of_another_on() -> None:
    room = Room()
    one, other = room.guests(100), room.guests(3, lane="other")
    room.headroom = {"m": 1, "other": 1}
    for n in range(1, 4):
        room.loop.go_on(LOOK_S)
        assert (fates(one).count("went"), fates(other).count("went")) == (n, n)


def test_models_that_share_replicas_share_a_look_by_priority() -> None:
    room = Room()
    one, other = room.guests(3, 1), room.guests(3, 0, lane="other")
    room.headroom = {"m": 2, "other": 2}
    room.it._breathing = lambda lane: 2  # The same two.
    room.loop.go_on(LOOK_S)
    assert (fates(one).count("went"), fates(other).count("went")) == (0, 2)


def test_of_a_lane_for_which_nobody_is_found_a_few_are_asked_at_each_look() -> None:
    room = Room()
    room.guests(2 * MOST_PASSED)
    room.guests(1, lane="other")
    room.it._breathing = lambda lane: 3  # It says so, and then it is not.
    before = room.asked
    room.loop.go_on(LOOK_S)
    assert room.asked == before + MOST_PASSED + 1


def test_one_that_wants_less_is_let_go_past_a_few_that_want_more_than_there_is() -> None:
    room = Room()
    giants, (small,) = room.guests(MOST_PASSED - 1), room.guests(1)
    for each in giants:
        each.go = lambda: Why.FULL  # type: ignore[method-assign]
    room.headroom = {"m": 1}
    room.loop.go_on(LOOK_S)
    assert (small.fate, {each.fate for each in giants}) == ("went", {"waits"})


def test_a_lane_that_breathes_is_looked_at_where_no_other_does() -> None:
    """The only server of its model was ejected, and so is left out for all but its own."""
    room = Room()
    (guest,) = room.guests(1, lane="own")
    room.it._breathing = lambda lane: 1 if lane == "own" else 0
    room.headroom = {"own": 1}
    room.loop.go_on(LOOK_S)
    assert guest.fate == "went"


def test_nobody_serving_is_refused_at_once_and_no_overload() -> None:
    room = Room()
    (guest,) = room.guests(1, why_not=Why.NO_REPLICA)
    assert guest.fate == "no_replica"
    assert (room.it.state, room.it.refused) == (State.OPEN, {})


def test_a_queue_of_none_refuses_at_once_and_lets_the_next_one_in() -> None:
    room = Room()
    room.it.policy = QueuePolicy(max_requests=0)
    assert fates(room.guests(2)) == ["no_capacity"] * 2
    room.headroom = {"m": 1}
    assert fates(room.guests(2)) == ["went"] * 2


def test_a_displaced_one_is_refused_and_a_client_that_left_meanwhile_is_not() -> None:
    room = Room()
    room.it.policy = QueuePolicy(max_requests=2)
    guests = room.guests(2, 5)
    room.guests(2, 0)
    room.it.leave(guests[0])
    room.loop.go_on()
    assert fates(guests) == ["waits", "no_capacity"]
    assert guests[1].refusal is not None
    assert "higher priority" in guests[1].refusal.message
    assert room.it.refused == {NoRoom.DISPLACED: 2}


def test_connections_that_displace_each_other_in_a_chain_need_no_stack() -> None:
    room = Room()
    number = 2 * sys.getrecursionlimit()
    room.it.policy = QueuePolicy(max_requests=number)
    for n in range(number):
        room.guests(1, 1 + n, brings=Guest(room, 0))
    room.guests(1, 0)
    room.loop.go_on()
    assert room.it.refused == {NoRoom.DISPLACED: number, NoRoom.FULL_QUEUE: 1}
    assert room.it.waiting == number


def test_every_one_that_waited_is_accounted_for() -> None:
    room = Room()
    room.it.policy = QueuePolicy(max_requests=6, max_bytes=60)
    guests = room.guests(7, 5, size_bytes=10)
    room.guests(1, 0, size_bytes=10)
    room.it.leave(guests[0])
    room.headroom = {"m": 1}
    room.loop.go_on(LOOK_S)
    room.headroom = {}
    room.loop.go_on(1.0)
    it = room.it
    assert (it.queued, it.released, it.left, it.waiting, it.waiting_bytes) == (7, 1, 1, 4, 40)
    assert it.refused == {NoRoom.FULL_QUEUE: 1, NoRoom.DISPLACED: 1}
    room.loop.go_on(2.0)
    assert it.refused[NoRoom.WAITED] == 4
    assert sum(it.wait_s.counts) == it.queued
    assert it.wait_s.counts[-1] == 0
    assert it.wait_s.sum == pytest.approx(4 * 2.0 + LOOK_EVERY_S, abs=5 * LOOK_EVERY_S)


def test_after_all_that_nothing_is_left() -> None:
    room = Room()
    for _ in range(3):
        guests = room.guests(300, 5) + room.guests(10, 0)
        for guest in guests[:50]:
            room.it.leave(guest)
        room.loop.go_on(5.0)
    assert (room.it._tickets, room.it._turned_out, len(room.it._line)) == ({}, {}, 0)
    assert repr(room.it._line) == "WaitingLine(0: 0 bytes)"
    assert len(room.loop.due) == 1  # An overload has yet to end.
    room.headroom = {"m": 1}
    room.loop.go_on(5.0)
    assert (room.it.state, room.loop.due) == (State.OPEN, [])


# The overload


def episodes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if line.startswith("overload")]


def test_an_overload_is_two_lines_however_many_it_holds_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    room = Room()
    room.guests(300)
    room.loop.go_on(3.0)
    room.guests(10)
    room.headroom = {"m": 8}
    room.loop.go_on(3.0)
    assert episodes(caplog) == [
        "overload_began",
        "overload_ended queued=266 refused=300 lasted_s=4",
    ]
    room.headroom = {}
    room.guests(1)
    room.headroom = {"m": 1}
    room.loop.go_on(3.0)
    assert episodes(caplog)[2:] == [
        "overload_began",
        "overload_ended queued=1 refused=0 lasted_s=1",
    ]
    assert room.it.episodes == 2


def test_an_overload_that_comes_and_goes_within_a_second_is_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    room = Room()
    for _ in range(20):
        room.headroom = {}
        room.guests(3)
        room.headroom = {"m": 3}
        room.loop.go_on(0.9)
    assert episodes(caplog) == ["overload_began"]
    room.loop.go_on(1.0)
    assert episodes(caplog)[1:] == ["overload_ended queued=60 refused=0 lasted_s=18.1"]


def test_refusals_within_a_second_of_each_other_are_one_overload(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    room = Room()
    room.it.policy = QueuePolicy(max_requests=0)
    for _ in range(5):
        room.headroom = {}
        room.guests(3)
        room.headroom = {"m": 1}
        room.loop.go_on(0.9)
    room.loop.go_on(1.0)
    assert episodes(caplog) == [
        "overload_began",
        "overload_ended queued=0 refused=15 lasted_s=4.8",
    ]


def test_the_state_says_what_an_operator_needs() -> None:
    room = Room()
    seen = [room.it.state]
    room.guests(257)
    seen.append(room.it.state)
    for guest in list(room.it._tickets):
        room.it.leave(cast(Guest, guest))
    (guest,) = room.guests(1)
    room.loop.go_on(1.1)
    seen.append(room.it.state)
    room.it.leave(guest)
    room.loop.go_on(60.0)
    seen.append(room.it.state)  # Nobody waits, nobody comes, and nobody has room yet.
    room.headroom = {"m": 1}
    room.loop.go_on(0.3)
    seen.append(room.it.state)
    assert seen == [State.OPEN, State.REFUSING, State.QUEUEING, State.QUEUEING, State.OPEN]


def test_an_overload_clears_though_nobody_comes() -> None:
    """Report 9 (dynamo#12138): `overloaded` that never clears."""
    room = Room()
    room.it.policy = QueuePolicy(max_requests=0)
    room.guests(1)
    room.headroom = {"m": 1}
    room.loop.go_on(1.3)
    assert room.it.state is State.OPEN
    assert not room.loop.due
