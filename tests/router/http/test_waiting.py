"""While nobody has headroom: who waits, in which order, for how long, and who is refused.

The room by itself has a clock that is moved by hand; its place in the data plane, real sockets.
"""

import asyncio
import gc
import logging
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from data_plane import Plane, data_plane, eventually
from raw_client import Answer, Client, request
from scripted_backend import Backend, Call, answering, refusing_url, response, silent
from snapshots import document, fleet_with, snapshot
from ullage_router.config import Config
from ullage_router.core.decide import Why
from ullage_router.core.drain import retry_after_s
from ullage_router.core.fleet import Fleet, fleet_of, hear
from ullage_router.core.gate import State
from ullage_router.core.queue import QueuePolicy
from ullage_router.http.errors import NoRoom, Refusal
from ullage_router.http.exchange import Exchange
from ullage_router.waiting import LOOK_EVERY_S, WaitingRoom

pytestmark = pytest.mark.slow

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


def test_a_lane_for_which_nobody_is_found_is_asked_once_a_look() -> None:
    room = Room()
    room.guests(10)
    room.guests(1, lane="other")
    room.it._breathing = lambda lane: 3  # It says so, and then it is not.
    before = room.asked
    room.loop.go_on(LOOK_S)
    assert room.asked == before + 2


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


# In the data plane

ASK = request(body=b'{"prompt": "x"}')
WELL = answering(response(b"well"))
FOREVER_S = 1e9
"""Heard so late that it never gets stale."""
SIDECAR = "http://sidecar:9400"


def full(*backends: Backend) -> Fleet:
    return fleet_with({backend.url: 0.1 for backend in backends}, now_s=FOREVER_S)


def with_room(*backends: Backend) -> Fleet:
    return fleet_with({backend.url: 0.9 for backend in backends}, now_s=FOREVER_S)


async def waits(plane: Plane, data: bytes = ASK) -> Client:
    """A client whose request waits."""
    before = plane.proxy.waiting.waiting
    client = await plane.client()
    await client.send(data)
    await eventually(lambda: plane.proxy.waiting.waiting == before + 1)
    return client


def shorter(plane: Plane, max_wait_s: float = 0.05, max_requests: int = 256) -> None:
    plane.proxy.waiting.policy = QueuePolicy(max_requests=max_requests, max_wait_s=max_wait_s)


async def test_it_waits_and_is_served_when_a_snapshot_shows_headroom() -> None:
    async with Backend(WELL) as backend, data_plane(fleet=full(backend)) as plane:
        client = await waits(plane)
        assert (backend.connections, plane.in_flight) == (0, 0)
        plane.router.fleet = with_room(backend)
        assert (await client.answer()).body == b"well"
        room = plane.proxy.waiting
        assert (room.queued, room.released, room.waiting) == (1, 1, 0)
        assert backend.requests[0].body == b'{"prompt": "x"}'


async def test_what_is_remembered_of_one_that_waited_is_what_came_of_it() -> None:
    """So that an operator finds each 503 by its request id, and no served one among the refused."""
    async with Backend(WELL) as backend, data_plane(fleet=full(backend)) as plane:
        router = plane.router
        client = await waits(plane)
        router.fleet = with_room(backend)
        await client.answer()
        (served,) = router.recent
        assert (served.decision.why, served.waited_s > 0.0) == (Why.SCORE, True)
        router.fleet = full(backend)
        shorter(plane, max_wait_s=0.03, max_requests=1)
        waiting = await waits(plane, request(body=b"{}", headers=[(b"X-Request-Id", b"late")]))
        turned_away = request(body=b"{}", headers=[(b"X-Request-Id", b"many")])
        assert (await (await plane.client()).ask(turned_away)).status == 503
        assert (await waiting.answer()).status == 503
        _, many, late = router.recent
        assert (many.request_id, late.request_id) == (b"many", b"late")
        assert many.waited_s < 0.03 <= late.waited_s
        assert router.decisions == {Why.SCORE: 1, Why.FULL: 2}


async def test_nobody_having_room_is_a_503_that_says_when_to_come_back() -> None:
    async with Backend(WELL) as backend, data_plane(fleet=with_room(backend)) as plane:
        shorter(plane, max_wait_s=0.1, max_requests=5)
        client, loop, room = await plane.client(), asyncio.get_running_loop(), plane.proxy.waiting
        for _ in range(3):
            await client.ask(ASK)
        plane.router.fleet = full(backend)
        began_s = loop.time()
        waiting = [await waits(plane) for _ in range(5)]
        before_s = loop.time()
        answer = await client.ask(ASK)
        drained = [room._drain.per_s(at_s) for at_s in (before_s, loop.time())]
        assert (answer.status, answer.error["code"]) == (503, "no_capacity")
        assert answer.error["type"] == "server_error"
        assert int(answer.one(b"retry-after") or 0) in {retry_after_s(5, d) for d in drained}
        assert drained[0] == pytest.approx(3.0, rel=0.1)
        assert (await waiting[0].answer()).error["code"] == "no_capacity"
        assert loop.time() - began_s > 0.099
        await eventually(lambda: plane.router.refusals == {"no_capacity": 6})
        assert room.refused == {NoRoom.FULL_QUEUE: 1, NoRoom.WAITED: 5}


async def test_by_default_it_is_refused_within_two_point_one_seconds() -> None:
    async with Backend(WELL) as backend, data_plane(fleet=full(backend)) as plane:
        plane.proxy.configure(Config())
        loop, client = asyncio.get_running_loop(), await plane.client()
        began_s = loop.time()
        assert (await client.ask(ASK)).one(b"retry-after") == b"30"  # Nothing has ever ended.
        assert 1.99 < loop.time() - began_s < 2.1


async def test_the_operator_may_want_no_queue_at_any_time() -> None:
    async with Backend(WELL) as backend, data_plane(fleet=full(backend)) as plane:
        plane.proxy.configure(Config(queue=QueuePolicy(max_requests=0)))
        assert (await (await plane.client()).ask(ASK)).status == 503
        assert plane.proxy.waiting.refused == {NoRoom.FULL_QUEUE: 1}


async def test_of_three_hundred_at_once_the_queue_takes_256_and_44_are_refused_at_once() -> None:
    async with Backend(WELL) as backend, data_plane(fleet=full(backend)) as plane:
        clients = [await plane.client() for _ in range(300)]
        for client in clients:
            client.writer.write(ASK)
        room = plane.proxy.waiting
        await eventually(lambda: room.waiting + sum(room.refused.values()) == 300)
        assert (room.waiting, room.refused) == (256, {NoRoom.FULL_QUEUE: 44})
        assert room.waiting_bytes == 256 * len(b'{"prompt": "x"}')
        answers = [asyncio.ensure_future(client.answer()) for client in clients]
        await eventually(lambda: sum(answer.done() for answer in answers) == 44)
        assert {a.result().error["code"] for a in answers if a.done()} == {"no_capacity"}
        for answer in answers:
            answer.cancel()
        await asyncio.gather(*answers, return_exceptions=True)
        for client in clients:
            client.reset()
        await eventually(lambda: not plane.proxy.clients)
        assert (room.waiting, room.waiting_bytes, room.left) == (0, 0, 256)


def of_priority(priority: int, number: int = 0) -> bytes:
    who = [(b"x-request-id", b"%d-%d" % (priority, number))]
    return request(body=b'{"priority": %d}' % priority, headers=who)


async def test_priority_orders_those_that_wait() -> None:
    async with Backend(WELL) as backend, data_plane(fleet=full(backend)) as plane:
        for number, priority in enumerate((5, 0, 7, 0, -2)):
            await waits(plane, of_priority(priority, number))
        plane.router.recent.clear()
        plane.router.fleet = with_room(backend)
        await eventually(lambda: len(backend.requests) == 5)
        sent = [decided.request_id for decided in plane.router.recent if decided.decision.replica]
        assert sent == [b"-2-4", b"0-1", b"0-3", b"5-0", b"7-2"]


async def test_one_of_higher_priority_takes_the_last_place() -> None:
    async with Backend(WELL) as backend, data_plane(fleet=full(backend)) as plane:
        shorter(plane, max_wait_s=2.0, max_requests=1)
        low = await waits(plane, of_priority(5))
        high = await plane.client()
        await high.send(of_priority(0))
        answer = await low.answer()
        assert (answer.status, answer.error["code"]) == (503, "no_capacity")
        assert "higher priority" in answer.error["message"]
        plane.router.fleet = with_room(backend)
        assert (await high.answer()).body == b"well"
        assert [received.body for received in backend.requests] == [b'{"priority": 0}']


@pytest.mark.parametrize(
    "leave", [Client.close, Client.reset, lambda client: client.writer.write_eof()]
)
async def test_a_client_that_leaves_is_out_at_once_and_reaches_no_replica(
    leave: Callable[[Client], None],
) -> None:
    async with Backend(WELL) as backend, data_plane(fleet=full(backend)) as plane:
        client = await waits(plane, ASK * 3)
        leave(client)
        await eventually(lambda: plane.proxy.waiting.waiting == 0, 0.5)
        plane.router.fleet = with_room(backend)
        await asyncio.sleep(2 * LOOK_EVERY_S)
        room = plane.proxy.waiting
        assert (room.left, room.released, backend.connections) == (1, 0, 0)
        assert not room.refused


async def test_requests_behind_one_that_waits_are_answered_after_it() -> None:
    echo = answering(lambda received: response(received.target))
    async with Backend(echo) as backend, data_plane(fleet=full(backend)) as plane:
        client = await waits(plane, request(b"/1") + request(b"/2") + request(b"/3"))
        plane.router.fleet = with_room(backend)
        assert [(await client.answer()).body for _ in range(3)] == [b"/1", b"/2", b"/3"]
        assert plane.proxy.waiting.queued == 1


async def test_requests_behind_one_that_waited_in_vain_wait_their_own_time() -> None:
    async with Backend(WELL) as backend, data_plane(fleet=full(backend)) as plane:
        shorter(plane)
        client = await waits(plane, ASK * 2)
        assert [(await client.answer()).status for _ in range(2)] == [503, 503]
        assert plane.proxy.waiting.refused == {NoRoom.WAITED: 2}


async def test_a_connection_goes_on_after_a_refusal() -> None:
    async with Backend(WELL) as backend, data_plane(fleet=full(backend)) as plane:
        shorter(plane)
        client = await plane.client()
        assert (await client.ask(ASK)).status == 503
        plane.router.fleet = with_room(backend)
        assert (await client.ask(ASK)).body == b"well"


async def test_a_refused_head_has_no_body() -> None:
    async with Backend(WELL) as backend, data_plane(fleet=full(backend)) as plane:
        shorter(plane)
        client = await plane.client()
        answer = await client.ask(request(method=b"HEAD"), bodiless=True)
        assert (answer.status, answer.one(b"retry-after")) == (503, b"30")
        assert (await client.ask(ASK)).error["code"] == "no_capacity"


@pytest.mark.parametrize("served", [True, False])
async def test_http_1_0_waits_like_any_other(served: bool) -> None:
    async with Backend(WELL) as backend, data_plane(fleet=full(backend)) as plane:
        shorter(plane, 2.0 if served else 0.05)
        client = await waits(plane, b"GET / HTTP/1.0\r\n\r\n")
        if served:
            plane.router.fleet = with_room(backend)
        answer = await client.answer()
        assert answer.status == (200 if served else 503)
        assert await client.closed() == b""


async def test_a_full_model_holds_up_no_request_for_another() -> None:
    async with Backend(WELL) as a, Backend(WELL) as b:

        def scores(of_a: float, of_b: float) -> Fleet:
            one, other = snapshot(a.url, of_a, models=("a",)), snapshot(b.url, of_b, models=("b",))
            return hear(fleet_of([]), SIDECAR, document(one, other), FOREVER_S)[0]

        for_a, for_b = request(body=b'{"model": "a"}'), request(body=b'{"model": "b"}')
        async with data_plane(fleet=scores(0.1, 0.1)) as plane:
            first, second = await waits(plane, for_a), await waits(plane, for_b)
            plane.router.fleet = scores(0.1, 0.9)
            assert (await second.answer()).body == b"well"
            assert (await second.ask(for_b)).body == b"well"
            assert (plane.proxy.waiting.waiting, len(a.requests)) == (1, 0)
            plane.router.fleet = scores(0.9, 0.1)
            assert (await first.answer()).body == b"well"


async def test_a_long_prompt_that_finds_no_room_holds_up_no_short_one() -> None:
    async with Backend(WELL) as backend:

        def room_for_long(score: float) -> Fleet:
            scores = {"short": 0.5, "long": score}
            heard = document(snapshot(backend.url, 0.5, scores=scores))
            return hear(fleet_of([]), SIDECAR, heard, FOREVER_S)[0]

        async with data_plane(fleet=room_for_long(0.1)) as plane:
            long = await waits(plane, request(body=b'{"prompt": "%s"}' % (b"x" * 200_000)))
            assert (await (await plane.client()).ask(ASK)).body == b"well"
            assert (plane.proxy.waiting.waiting, plane.proxy.waiting.queued) == (1, 1)
            plane.router.fleet = room_for_long(0.5)
            assert (await long.answer()).body == b"well"


async def test_a_second_try_does_not_wait() -> None:
    async def dies(call: Call) -> None:
        await call.read_request()

    async with Backend(dies) as bad, Backend(WELL) as well:
        fleet = fleet_with({bad.url: 0.9, well.url: 0.1}, now_s=FOREVER_S)
        async with data_plane(fleet=fleet) as plane:
            answer = await (await plane.client()).ask(ASK)
            assert (answer.status, answer.error["code"]) == (503, "no_capacity")
            assert answer.one(b"retry-after") == b"30"
            room = plane.proxy.waiting
            assert (room.queued, room.refused) == (0, {NoRoom.SECOND_TRY: 1})


def ended(plane: Plane) -> float:
    return plane.proxy.waiting._drain._level


FAULTS = {
    "refuses a connection": None,
    "dies": lambda call: call.read_request(),
    "says 503": answering(response(b"full", 503, b"Busy")),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_a_try_that_fails_makes_no_room(fault: Any) -> None:
    """Full replicas that say so at once would look as if they drained fast."""
    async with (
        Backend(fault or WELL) as backend,
        data_plane(backend.url if fault else refusing_url()) as plane,
    ):
        assert (await (await plane.client()).ask(ASK)).status in (502, 503)
        assert ended(plane) == 0.0


async def test_an_answer_and_a_client_that_leaves_make_room() -> None:
    async with Backend(WELL) as backend, data_plane(backend.url) as plane:
        await (await plane.client()).ask(ASK)
        assert ended(plane) == 1.0
    async with Backend(silent) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        await client.send(ASK)
        await eventually(lambda: backend.open)
        client.close()
        await eventually(lambda: ended(plane) == 1.0)


async def test_the_routers_stop_refuses_those_that_wait_once_the_grace_is_over() -> None:
    async with Backend(WELL) as backend, data_plane(fleet=full(backend)) as plane:
        client = await waits(plane)
        await plane.proxy.stop(0.0)
        assert (await client.answer()).error["code"] == "router_stopping"
        room = plane.proxy.waiting
        assert (room.waiting, room.left, room.refused) == (0, 1, {})
        assert room._timer is not None
        assert room._timer.cancelled()


async def test_within_the_grace_they_may_still_be_served() -> None:
    async with Backend(WELL) as backend, data_plane(fleet=full(backend)) as plane:
        client = await waits(plane)
        stopping = asyncio.ensure_future(plane.proxy.stop(5.0))
        await asyncio.sleep(0)
        plane.router.fleet = with_room(backend)
        assert (await client.answer()).body == b"well"
        await stopping


async def test_one_overload_of_many_requests_is_two_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("ullage_router.waiting.CALM_S", 0.1)
    async with Backend(WELL) as backend, data_plane(fleet=full(backend)) as plane:
        shorter(plane)
        answers = [asyncio.ensure_future(_ask(plane)) for _ in range(30)]
        assert {answer.status for answer in await asyncio.gather(*answers)} == {503}
        plane.router.fleet = with_room(backend)
        await eventually(lambda: plane.proxy.waiting.state is State.OPEN)
    assert [line.partition(" lasted_s")[0] for line in episodes(caplog)] == [
        "overload_began",
        "overload_ended queued=30 refused=30",
    ]


async def _ask(plane: Plane) -> Answer:
    return await (await plane.client()).ask(ASK)


async def test_what_waited_leaves_nothing_behind() -> None:
    async with Backend(WELL) as backend, data_plane(fleet=full(backend)) as plane:
        shorter(plane)
        for _ in range(3):
            answers = [asyncio.ensure_future(_ask(plane)) for _ in range(30)]
            gone = [await plane.client() for _ in range(10)]
            for client in gone:
                await client.send(ASK)
            for client in gone:
                client.reset()
            await asyncio.gather(*answers)
        await eventually(lambda: len(plane.proxy.clients) == 90)
        gc.collect()
        assert not [o for o in gc.get_objects() if isinstance(o, Exchange)]
        room = plane.proxy.waiting
        assert (room._tickets, room._turned_out, room.waiting_bytes) == ({}, {}, 0)
