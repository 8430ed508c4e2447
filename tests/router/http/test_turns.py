"""Large requests begin one at a time, each time the event loop comes round."""

import asyncio

from data_plane import Plane, data_plane, eventually
from raw_client import request
from scripted_backend import Backend, answering, response
from ullage_router.http.turns import LARGE_BYTES, Starter, Turns


class One:
    """A request that notes when it begins."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name = name
        self._log = log

    def begin(self) -> None:
        self._log.append(self._name)


async def round_the_loop(times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def test_they_begin_in_order_and_one_to_a_turn() -> None:
    log: list[str] = []
    turns = Turns(asyncio.get_running_loop())
    for name in ("a", "b", "c"):
        turns.wait(One(name, log))
    assert log == []
    for begun in (["a"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c"]):
        await round_the_loop(1)
        assert log == begun


async def test_what_becomes_ready_meanwhile_passes_between_them() -> None:
    log: list[str] = []
    loop = asyncio.get_running_loop()
    turns = Turns(loop)
    for name in ("a", "b", "c"):
        turns.wait(One(name, log))
    loop.call_soon(log.append, "small")
    await round_the_loop(3)
    assert log == ["a", "small", "b", "c"]


async def test_who_leaves_does_not_begin_and_holds_up_nobody() -> None:
    log: list[str] = []
    turns = Turns(asyncio.get_running_loop())
    ones = [One(name, log) for name in ("a", "b", "c")]
    for one in ones:
        turns.wait(one)
    turns.leave(ones[0])
    turns.leave(ones[0])
    await round_the_loop(2)
    assert log == ["b", "c"]
    turns.leave(ones[1])
    turns.wait(ones[0])
    turns.leave(ones[0])
    await round_the_loop(2)
    turns.wait(ones[0])
    await round_the_loop(1)
    assert log == ["b", "c", "a"]


async def test_one_that_fails_to_begin_holds_up_nobody() -> None:
    class Fails(One):
        def begin(self) -> None:
            raise RuntimeError("on purpose")

    log: list[str] = []
    loop, said = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: said.append(context["exception"]))
    turns = Turns(loop)
    for one in (Fails("a", log), One("b", log)):
        turns.wait(one)
    await round_the_loop(2)
    assert log == ["b"]
    assert len(said) == 1


LARGE = b'{"prompt": "' + b"x" * LARGE_BYTES + b'"}'


async def test_large_requests_are_answered_as_small_ones_are() -> None:
    async with Backend(answering(response(b"well"))) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        for body in (LARGE, b"{}", LARGE):
            assert (await client.ask(request(body=body))).status == 200
        assert [sent.body for sent in backend.requests] == [LARGE, b"{}", LARGE]


def crowded(plane: Plane) -> list[Starter]:
    """Keep those that wait for their turn from getting it."""
    turns, line = plane.proxy.turns, list[Starter]()
    turns.wait = line.append  # type: ignore[method-assign]
    turns.leave = line.remove  # type: ignore[method-assign]
    return line


async def test_a_client_that_leaves_before_its_turn_is_sent_nowhere() -> None:
    async with Backend(answering(response(b"well"))) as backend, data_plane(backend.url) as plane:
        line = crowded(plane)
        client = await plane.client()
        await client.send(request(body=LARGE))
        await eventually(lambda: line)
        client.close()
        await eventually(lambda: not line)
        assert backend.requests == []


async def test_one_that_waits_for_its_turn_when_the_router_stops_is_told_so() -> None:
    async with Backend(answering(response(b"well"))) as backend, data_plane(backend.url) as plane:
        line = crowded(plane)
        client = await plane.client()
        await client.send(request(body=LARGE))
        await eventually(lambda: line)
        await plane.proxy.stop(0.0)
        assert (await client.answer()).status == 503
        assert (line, backend.requests) == ([], [])
