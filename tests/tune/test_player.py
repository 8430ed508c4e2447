"""A workload, played against a real server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from ullage_tune.replay.player import Fate, Played, Target, play
from ullage_tune.replay.prompts import Form
from ullage_tune.workload import Request, Segment, Workload

Handler = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def workload(*at_s: float) -> Workload:
    """One request at each of these times; the n-th has n + 1 tokens of prompt."""
    requests = (Request(t, (Segment(n, n + 1),), 3) for n, t in enumerate(at_s))
    return Workload("w", tuple(requests))


class Server:
    """A server that does what it is told, and remembers when it was asked for what."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked_s: list[float] = []
        self.bodies: list[dict[str, Any]] = []

    async def play(self, work: Workload, **changes: Any) -> Played:
        return await play(work, Target(self.url, "m", Form.TOKENS, **changes))


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Server]:
    async def handle(request: web.Request) -> web.StreamResponse:
        server.asked_s.append(perf_counter())
        server.bodies.append(await request.json())
        return await handler(request, server.bodies[-1])

    app = web.Application()
    app.router.add_post("/v1/completions", handle)
    async with TestServer(app) as running:
        server = Server(str(running.make_url("")).rstrip("/"))
        yield server


async def stream(
    request: web.Request, *events: str, pause_s: float = 0.0, **headers: str
) -> web.StreamResponse:
    answer = web.StreamResponse(headers={k.replace("_", "-"): v for k, v in headers.items()})
    await answer.prepare(request)
    for event in events:
        await answer.write(f"data: {event}\n\n".encode())
        await asyncio.sleep(pause_s)
    return answer


WORD = '{"choices":[{"text":"a"}]}'
USAGE = (
    '{"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":2,'
    '"prompt_tokens_details":{"cached_tokens":5}}}'
)


async def well(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    return await stream(
        request, WORD, WORD, USAGE, "[DONE]", x_ullage_replica="a", x_ullage_why="affinity"
    )


async def test_requests_leave_at_their_times_whatever_became_of_those_before() -> None:
    async def never_soon(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        return await well(request, body)

    at_s = (0.0, 0.05, 0.1, 0.1, 0.15)
    async with serving(never_soon) as server:
        played = await server.play(workload(*at_s))
    asked_s = [asked - server.asked_s[0] for asked in server.asked_s]
    assert asked_s == pytest.approx(at_s, abs=0.1)
    assert len(played.fates) == 5
    assert max(fate.late_s for fate in played.fates) < 0.1
    assert [outcome.arrived_s for outcome in played.run.outcomes] == list(at_s)


async def test_an_answer_is_told_as_the_server_counts_it() -> None:
    async with serving(well) as server:
        played = await server.play(workload(0.0))
    (outcome,) = played.run.outcomes
    assert (outcome.prompt_tokens, outcome.cached_tokens, outcome.output_tokens) == (8, 5, 2)
    assert (outcome.replica, outcome.why, outcome.tries) == (0, "affinity", 1)
    assert played.replicas == ("a",)
    assert not played.failures


async def test_one_that_does_not_count_is_believed_to_have_done_as_asked() -> None:
    async def silent(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, WORD, WORD, WORD, "[DONE]")

    async with serving(silent) as server:
        played = await server.play(workload(0.0))
    (outcome,) = played.run.outcomes
    assert (outcome.prompt_tokens, outcome.cached_tokens, outcome.output_tokens) == (1, 0, 3)
    assert played.replicas == ("",)


async def test_time_to_first_token_and_to_the_last_are_measured_from_when_it_was_due() -> None:
    async def slow(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0.05)
        return await stream(request, WORD, WORD, USAGE, "[DONE]", pause_s=0.05)

    async with serving(slow) as server:
        played = await server.play(workload(0.0, 0.02), most_at_once=1)
    first, second = played.run.outcomes
    assert first.ttft_s is not None
    assert first.e2e_s is not None
    assert second.ttft_s is not None
    assert 0.05 <= first.ttft_s < first.e2e_s - 0.045
    waited_s = played.fates[1].late_s
    assert waited_s > 0.22  # The first one's 0.25 s, less 0.02.
    assert second.ttft_s > waited_s + 0.045


async def full(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"error": {"code": "no_capacity"}}, status=503)


async def broken(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    return web.Response(status=500, text="oops")


async def cut(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    return await stream(request, WORD, x_ullage_replica="b")


async def error(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    return await stream(request, '{"error":{"code":503}}', "[DONE]")


async def gone(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def hung(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(0.4)
    return web.Response()


@pytest.mark.parametrize(
    ("handler", "failure", "status", "replica", "has_first"),
    [
        (full, "status 503: no_capacity", 503, None, False),
        (broken, "status 500", 500, 0, False),
        (cut, "the stream has no end", 200, 0, True),
        (error, "error in the stream: 503", 200, 0, False),
        (gone, "ServerDisconnectedError", 0, 0, False),
        (hung, "no end within the time limit", 0, 0, False),
    ],
)
async def test_what_failed_is_told_by_how(
    handler: Handler, failure: str, status: int, replica: int | None, *, has_first: bool
) -> None:
    async with serving(handler) as server:
        played = await server.play(workload(0.0, 0.0), patience_s=0.3)
    assert played.failures == {failure: 2}
    for fate in played.fates:
        assert (fate.status, fate.outcome.replica) == (status, replica)
        assert fate.outcome.finished_s is None
        assert (fate.outcome.first_token_s is not None) == has_first


async def test_nobody_there_is_a_failure_of_each_request() -> None:
    played = await play(workload(0.0, 0.01), Target("http://127.0.0.1:9", "m", Form.TEXT))
    assert played.failures == {"ClientConnectorError": 2}
    assert [outcome.ttft_s for outcome in played.run.outcomes] == [None, None]


async def test_a_stop_keeps_what_has_ended_and_counts_the_rest() -> None:
    async def at_first(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if len(body["prompt"]) > 1:
            await asyncio.sleep(1.0)
        return await well(request, body)

    stop = asyncio.Event()
    ended: list[Fate] = []

    def on_end(fate: Fate) -> None:
        ended.append(fate)
        asyncio.get_running_loop().call_later(0.05, stop.set)

    async with serving(at_first) as server:
        target = Target(server.url, "m", Form.TOKENS)
        played = await play(workload(0.0, 0.01, 60.0), target, stop=stop, on_end=on_end)
    assert list(played.fates) == ended
    assert (len(ended), played.left) == (1, 2)
    assert played.run.wall_s < 1.0


async def test_nothing_to_play_is_an_empty_run() -> None:
    played = await play(workload(), Target("http://127.0.0.1:9", "m"))
    assert (played.run.outcomes, played.left) == ((), 0)


async def test_headers_go_along() -> None:
    async def private(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        good = request.headers.get("authorization") == "Bearer k"
        return await well(request, body) if good else web.Response(status=401)

    async with serving(private) as server:
        assert (await server.play(workload(0.0))).failures == {"status 401": 1}
        headers = {"authorization": "Bearer k"}
        assert not (await server.play(workload(0.0), headers=headers)).failures
