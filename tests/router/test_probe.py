"""The probes of ejected replicas, against raw stand-ins for vLLM."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import pytest

from data_plane import eventually
from scripted_backend import (
    Backend,
    Call,
    Script,
    answering,
    black_hole,
    chunked_head,
    head,
    refusing_url,
    response,
    silent,
)
from ullage_router.probe import MOST, Prober

pytestmark = pytest.mark.slow

LOOK_S = 0.005


class Asked:
    """Replicas that are due until they were asked; and what was found."""

    def __init__(self, due: Mapping[str, str]) -> None:
        self.due = dict(due)
        self.found: list[tuple[str, bool]] = []

    def result(self, key: str, alive: bool) -> None:
        self.found.append((key, alive))
        self.due.pop(key, None)


@asynccontextmanager
async def probing(due: Mapping[str, str], timeout_s: float = 2.0) -> AsyncIterator[Asked]:
    """Run it; when it ends, it must still be running, no probe may be left, and nothing may have
    gone wrong in the event loop.
    """
    asked, wrong = Asked(due), list[Mapping[str, object]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
    before = asyncio.all_tasks()
    async with aiohttp.ClientSession() as session:
        prober = Prober(session, lambda: asked.due, asked.result)
        loop = asyncio.ensure_future(prober.run(LOOK_S, timeout_s))
        try:
            yield asked
            assert not loop.done()
        finally:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)
        left = [task for task in asyncio.all_tasks() - before if "Prober" in repr(task)]
    assert not left
    assert not wrong, wrong


async def test_a_replica_that_is_due_is_asked_for_its_health_once() -> None:
    async with (
        Backend(answering(response())) as replica,
        probing({"a": replica.url}) as asked,
    ):
        await eventually(lambda: asked.found)
        await asyncio.sleep(5 * LOOK_S)
        assert asked.found == [("a", True)]
        (request,) = replica.requests
        assert (request.method, request.target, request.body) == (b"GET", b"/health", b"")


async def test_nobody_is_asked_who_is_not_due() -> None:
    async with Backend(answering(response())) as replica, probing({}) as asked:
        await asyncio.sleep(5 * LOOK_S)
        assert replica.connections == 0
        asked.due["a"] = replica.url
        await eventually(lambda: asked.found)


@pytest.mark.parametrize(
    ("status", "alive"),
    [
        *[(status, True) for status in (200, 204, 401, 404, 429, 499)],
        *[(status, False) for status in (500, 502, 503, 599)],
    ],
)
async def test_any_answer_below_500_is_life(status: int, alive: bool) -> None:
    async with (
        Backend(answering(response(b"", status, b"Said"))) as replica,
        probing({"a": replica.url}) as asked,
    ):
        await eventually(lambda: asked.found)
        assert asked.found == [("a", alive)]


async def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    async with Backend(answering(response())) as elsewhere:
        moved = response(b"", 307, b"Moved", [(b"Location", elsewhere.url.encode())])
        async with Backend(answering(moved)) as replica, probing({"a": replica.url}) as asked:
            await eventually(lambda: asked.found)
            await asyncio.sleep(2 * LOOK_S)
            assert asked.found == [("a", True)]
            assert elsewhere.connections == 0


async def endless(call: Call) -> None:
    await call.read_request()
    await call.send(chunked_head())
    while True:
        await call.send(b"10000\r\n" + b"x" * 65_536 + b"\r\n")


async def test_a_body_without_end_is_not_read() -> None:
    async with Backend(endless) as replica, probing({"a": replica.url}) as asked:
        await eventually(lambda: asked.found, 1.0)
        assert asked.found == [("a", True)]
        await eventually(lambda: replica.open == 0, 1.0)


async def resetting(call: Call) -> None:
    await call.read_request()
    call.reset()


async def closing(call: Call) -> None:
    await call.read_request()
    call.close()


async def half_a_head(call: Call) -> None:
    await call.read_request()
    await call.send(b"HTTP/1.1 200 OK\r\nContent-")
    call.close()


ODD = {
    "reset": resetting,
    "closed": closing,
    "half a head": half_a_head,
    "not HTTP": answering(b"garbage\r\n\r\n"),
    "TLS": answering(bytes.fromhex("15030300020246")),
    "zeros": answering(b"\0" * 100),
    "status of another kind": answering(b"HTTP/1.1 abc OK\r\n\r\n"),
    "status beyond all": answering(b"HTTP/1.1 99999999999999999999 OK\r\n\r\n"),
    "length of another kind": answering(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"),
    "two lengths": answering(
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"
    ),
    "a header without end": answering(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000),
    "a field that is no text": answering(b"HTTP/1.1 500 \xff\xfe\r\nX-\xff: \xff\r\n\r\n"),
    "a switch of protocols": answering(
        head(500, b"Odd", [(b"Upgrade", b"odd"), (b"Connection", b"upgrade")])
    ),
}


@pytest.mark.parametrize("script", ODD.values(), ids=ODD.keys())
async def test_whatever_else_comes_is_no_life_and_ends_nothing(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        Backend(script) as odd,
        Backend(answering(response())) as well,
        probing({"odd": odd.url}) as asked,
    ):
        await eventually(lambda: asked.found)
        asked.due["well"] = well.url
        await eventually(lambda: len(asked.found) == 2)
        assert asked.found == [("odd", False), ("well", True)]
    assert caplog.text == ""


@pytest.mark.parametrize(
    "url", ["http://no-such-host.invalid:1", "http://127.0.0.1:0", "http://[::1", "nonsense", ""]
)
async def test_an_address_that_leads_nowhere_is_no_life(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with probing({"a": url}) as asked:
        await eventually(lambda: asked.found)
        assert asked.found == [("a", False)]
    assert caplog.text == ""


async def test_a_replica_is_readmitted_soon_after_it_is_back() -> None:
    url = refusing_url()
    async with probing({"a": url}) as asked:
        await eventually(lambda: asked.found == [("a", False)])
        async with Backend(answering(response()), int(url.rpartition(":")[2])):
            asked.due["a"] = url
            await eventually(lambda: asked.found == [("a", False), ("a", True)])


async def test_one_that_hangs_delays_nobody() -> None:
    """Report 19: one hung backend stalls the others."""
    async with (
        Backend(silent) as hung,
        black_hole() as unreachable,
        Backend(answering(response())) as well,
        probing({"hung": hung.url, "unreachable": unreachable, "well": well.url}) as asked,
    ):
        await eventually(lambda: asked.found, 0.5)
        assert asked.found == [("well", True)]


async def test_one_that_hangs_is_given_up_and_asked_once_meanwhile() -> None:
    async with Backend(silent) as hung, probing({"a": hung.url}, timeout_s=0.04) as asked:
        await eventually(lambda: asked.found)
        assert asked.found == [("a", False)]
        assert hung.connections == 1


async def test_never_more_than_the_most_are_asked_at_once_and_each_has_its_turn() -> None:
    """Those that hang are due again before the last have been asked."""
    most_open = 0

    async def hangs(call: Call) -> None:
        nonlocal most_open
        most_open = max(most_open, hung.open)
        await call.gone()

    async with Backend(hangs) as hung:
        due = {f"r{number:03}": hung.url for number in range(2 * MOST + 8)}
        async with probing(due, timeout_s=0.05) as asked:
            asked.due = _Always(due)
            await eventually(lambda: len({key for key, _ in asked.found}) == len(due))
            times = Counter(key for key, _ in asked.found)
            assert max(times.values()) - min(times.values()) <= 2
            assert most_open == MOST
            asked.due = {}
            await asyncio.sleep(0.05)  # A stand-in that closes must know all its connections.
            await eventually(lambda: hung.open == 0)


class _Always(dict[str, str]):
    """Whose keys are always due."""

    def pop(self, key: str, default: object = None) -> str:  # type: ignore[override]
        return self[key]


async def test_one_that_is_no_longer_due_loses_its_place() -> None:
    async with Backend(silent) as hung, Backend(answering(response())) as well:
        due = {f"hung-{number}": hung.url for number in range(MOST)} | {"well": well.url}
        async with probing(due, timeout_s=0.05) as asked:
            await eventually(lambda: hung.connections)
            del asked.due["well"]
            await eventually(lambda: len(asked.found) == MOST)
            await asyncio.sleep(2 * LOOK_S)
            assert well.connections == 0


async def test_what_is_cut_off_when_it_ends_is_no_result() -> None:
    async with Backend(silent) as hung:
        async with probing({"a": hung.url}) as asked:
            await eventually(lambda: hung.connections)
        await asyncio.sleep(0)
        assert asked.found == []
        await eventually(lambda: hung.open == 0)


async def test_a_fault_of_ours_costs_one_probe_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("ours")

    async with Backend(answering(response())) as well, probing({}) as asked:
        with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
            patch.setattr(aiohttp.ClientSession, "get", broken)
            asked.due["a"] = well.url
            await eventually(lambda: asked.found)
        assert asked.found == [("a", False)]
        assert "probe_broken replica=a" in caplog.text
        asked.due["a"] = well.url
        await eventually(lambda: asked.found[1:] == [("a", True)])
