"""`GET /v1/models`, against raw stand-ins for vLLM."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import aiohttp
import orjson
import pytest

from data_plane import eventually
from scripted_backend import Backend, Received, answering, refusing_url, response, silent
from snapshots import document, snapshot
from ullage_router.core.fleet import fleet_of, hear
from ullage_router.core.rules import Rules
from ullage_router.models import Models
from ullage_router.router import Router


def cards(*names: str, **more: object) -> bytes:
    """A server's list of models."""
    data = [{"id": name, "object": "model", "owned_by": "vllm", **more} for name in names]
    return response(orjson.dumps({"object": "list", "data": data}))


def union(models: Models) -> list[str] | None:
    body = models.body()
    return None if body is None else [card["id"] for card in orjson.loads(body)["data"]]


@asynccontextmanager
async def asking(*urls: str, refresh_s: float = 10.0) -> AsyncIterator[tuple[Router, Models]]:
    """Run it; when it ends, it must still be running."""
    router = Router(fleet_of(urls), Rules(), Random(1))
    async with aiohttp.ClientSession() as session:
        models = Models(router, session)
        task = asyncio.ensure_future(models.run(look_s=0.02, refresh_s=refresh_s))
        try:
            yield router, models
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_the_list_is_the_union_of_what_the_replicas_serve() -> None:
    async with (
        Backend(answering(cards("a", "shared", max_model_len=7))) as one,
        Backend(answering(cards("shared", "b", max_model_len=8))) as two,
        asking(one.url, two.url) as (router, models),
    ):
        await eventually(lambda: models.body() and union(models) == ["a", "b", "shared"])
        body = orjson.loads(models.body() or b"")
        assert body["object"] == "list"
        assert {"object": "model", "owned_by": "vllm"}.items() <= body["data"][0].items()
        assert router.fleet.mixed
        assert router.fleet.replicas[one.url].models == {"a", "shared"}


async def test_nothing_is_said_before_any_server_has_spoken() -> None:
    async with asking(refusing_url()) as (_, models):
        await asyncio.sleep(0.02)
        assert models.body() is None


ODD: dict[str, bytes] = {
    "500": response(b"oops", 500),
    "503": response(b"loading", 503),
    "no JSON": response(b"<html>"),
    "no data": response(b"{}"),
    "a list": response(b"[]"),
    "data of another kind": response(b'{"data": 5}'),
    "data of text": response(b'{"data": "abc"}'),
    "cards of another kind": response(b'{"data": [5]}'),
    "cards without id": response(b'{"data": [{}]}'),
    "an id that is a number": response(b'{"data": [{"id": 5}, {"id": "x"}]}'),
    "an id that is a list": response(b'{"data": [{"id": ["x"]}]}'),
    "an id that is null": response(b'{"data": [{"id": null}, {"id": "x"}]}'),
    "not HTTP": b"garbage\r\n\r\n",
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
async def test_a_server_that_answers_oddly_costs_only_its_own_models(odd: bytes) -> None:
    async with (
        Backend(answering(odd)) as bad,
        Backend(answering(cards("a"))) as well,
        asking(bad.url, well.url) as (router, models),
    ):
        await eventually(lambda: models.body())
        await eventually(lambda: bad.requests)
        await asyncio.sleep(0.02)
        assert union(models) == ["a"]
        assert router.fleet.replicas[bad.url].models == frozenset()


async def test_a_server_that_hangs_does_not_hide_the_others_for_long() -> None:
    async with (
        Backend(silent) as hung,
        Backend(answering(cards("a"))) as well,
        asking(hung.url, well.url) as (_, models),
    ):
        await eventually(lambda: models.body(), 1.0)
        assert union(models) == ["a"]


async def test_a_server_that_wants_a_key_is_not_asked_all_the_time() -> None:
    """Its clients have the key: their `GET /v1/models` goes to a replica."""
    async with (
        Backend(answering(response(b"{}", 401, b"Unauthorized"))) as guarded,
        asking(guarded.url) as (_, models),
    ):
        await eventually(lambda: guarded.requests)
        await asyncio.sleep(0.1)
        assert len(guarded.requests) == 1
        assert models.body() is None


async def test_a_server_that_comes_up_is_soon_listed_and_one_that_leaves_is_dropped() -> None:
    url = refusing_url()
    async with Backend(answering(cards("a"))) as well, asking(well.url) as (router, models):
        heard = document(snapshot(url, models=()))
        router.fleet = hear(router.fleet, "http://sidecar:9400", heard, 0.0)[0]
        await eventually(lambda: models.body())
        async with Backend(answering(cards("late")), int(url.rpartition(":")[2])):
            await eventually(lambda: union(models) == ["a", "late"], 3.0)
            router.fleet = hear(router.fleet, "http://sidecar:9400", document(), 0.0)[0]
            await eventually(lambda: union(models) == ["a"], 3.0)


async def test_a_replica_that_leaves_and_returns_has_its_models_again() -> None:
    """Its server's list is the same as before, which must not pass for nothing new."""
    async with (
        Backend(answering(cards("base", "lora"))) as server,
        asking(refresh_s=0.1) as (router, _),
    ):
        published = document(snapshot(server.url, models=("base",)))

        def publish(*, there: bool) -> None:
            heard = published if there else document()
            router.fleet = hear(router.fleet, "http://sidecar:9400", heard, 0.0)[0]

        def learned() -> bool:
            return router.fleet.replicas[server.url].models == {"base", "lora"}

        publish(there=True)
        await eventually(learned, 3.0)
        publish(there=False)
        publish(there=True)
        assert not learned()
        await eventually(learned, 3.0)


async def test_a_list_may_change_while_the_server_runs() -> None:
    names = ["base"]
    answer: Callable[[Received], bytes] = lambda _: cards(*names)  # noqa: E731
    async with (
        Backend(answering(answer)) as server,
        asking(server.url, refresh_s=0.0) as (_, models),
    ):
        await eventually(lambda: union(models) == ["base"])
        names.append("lora")
        await eventually(lambda: union(models) == ["base", "lora"], 3.0)
