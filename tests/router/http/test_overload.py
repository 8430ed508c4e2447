"""While nobody has headroom: what clients see of it, over real sockets."""

import asyncio
import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest

from data_plane import Plane, data_plane, eventually
from raw_client import Answer, Client, request
from scripted_backend import Backend, Call, answering, refusing_url, response, silent
from snapshots import document, fleet_with, snapshot
from ullage_router.config import Config
from ullage_router.core.decision import Why
from ullage_router.core.drain import retry_after_s
from ullage_router.core.fleet import Fleet, fleet_of, hear
from ullage_router.core.gate import State
from ullage_router.core.queue import QueuePolicy
from ullage_router.http.errors import NoRoom
from ullage_router.http.exchange import Exchange
from ullage_router.waiting import LOOK_EVERY_S

pytestmark = pytest.mark.slow


def episodes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if line.startswith("overload")]


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
