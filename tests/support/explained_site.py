"""A data plane with an admin port and a clock moved by hand: what is explained, and then done."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp
import orjson
from aiohttp.test_utils import TestServer
from prometheus_client import CollectorRegistry

from data_plane import Plane, data_plane
from hand_clock import Clock
from mission import AS_ASKED
from raw_client import Answer, request
from scripted_backend import Backend, Header, Received, answering, response
from snapshots import document, snapshot
from ullage_router.admin import admin_app
from ullage_router.config import Config
from ullage_router.core.ask import Ask
from ullage_router.core.fleet import fleet_of, hear
from ullage_router.core.queue import QueuePolicy
from ullage_router.core.rules import Rules
from ullage_router.explain import explained
from ullage_router.router import Router
from ullage_shared.snapshot import Snapshot

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CACHE_KEY, PRIORITY = b"x-ullage-cache-key", b"x-ullage-priority"
SIDECAR = "http://sidecar:9400"
START_S = 1_000.0
WELL = response(b"{}")


@dataclass
class Site:
    """A data plane over some replicas, its admin port, and its clock."""

    plane: Plane
    clock: Clock
    replicas: list[Backend]
    admin: str
    session: aiohttp.ClientSession
    server: TestServer
    """Of the admin port."""
    _heard: int = field(default=1, init=False)

    @property
    def router(self) -> Router:
        return self.plane.router

    def hear(self, *scores: float | None, **changes: Any) -> None:
        """The replicas' sidecar says this now: a score each, and what else is the same for all."""
        self._heard += 1
        self.router.fleet, faults = hear(
            self.router.fleet,
            SIDECAR,
            document(
                *(
                    snapshot(replica.url, score, **({"seq": self._heard} | changes))
                    for replica, score in zip(self.replicas, scores, strict=True)
                )
            ),
            self.clock.now_s,
        )
        assert not faults

    async def explain(
        self, body: bytes = b"{}", headers: Sequence[Header] = (), path: str = COMPLETIONS
    ) -> tuple[int, Any]:
        """Status and page."""
        named = [(name.decode(), value.decode("latin-1")) for name, value in headers]
        url = f"{self.admin}/explain{path}"
        async with self.session.post(url, data=body, headers=named) as page:
            return page.status, orjson.loads(await page.read())

    async def explained(self, *args: Any, **options: Any) -> Any:
        """The page of a request that can be explained."""
        status, page = await self.explain(*args, **options)
        assert status == 200
        return page

    async def decisions(self) -> Any:
        async with self.session.get(f"{self.admin}/decisions") as page:
            assert page.status == 200
            return orjson.loads(await page.read())

    async def ask(
        self, body: bytes = b"{}", headers: Sequence[Header] = (), path: str = COMPLETIONS
    ) -> Answer:
        """Send it for real. It brings an id, so that the router throws no dice for one."""
        client = await self.plane.client()
        headers = [*headers, (b"X-Request-Id", b"test")]
        return await client.ask(request(path.encode(), body, headers=headers))

    async def foretold(
        self, body: bytes = b"{}", headers: Sequence[Header] = (), path: str = COMPLETIONS
    ) -> str:
        """The rule that settled it: explained first, then done, and both the same."""
        said = await self.explained(body, headers, path)
        answer = await self.ask(body, headers, path)
        done = (await self.decisions())[0]
        assert _without_home(said) == _without_home(done)
        by = answer.one(b"x-ullage-replica")
        why = answer.one(b"x-ullage-why")
        if said["replica"] is None:
            assert (answer.status, by, why) == (503, None, None)
        else:
            assert (by, why) == (said["replica"].encode(), said["why"].encode())
        return str(said["why"])


def _without_home(page: Any) -> Any:
    """What a decision's page and an explanation have in common, but for the mark of a key's home:
    of that, `test_the_record_marks_the_home_that_the_key_had_then`.
    """
    told = {name: page[name] for name in ("replica", "why", "score")}
    rows = [{k: v for k, v in row.items() if k != "home"} for row in page["candidates"]]
    return told | {"candidates": rows}


@asynccontextmanager
async def site(
    replicas: int = 3,
    rules: Rules = AS_ASKED,
    *,
    scores: Sequence[float | None] | None = None,
    answer: bytes | Callable[[Received], bytes] = WELL,
) -> AsyncIterator[Site]:
    """Run one; `scores`: as its sidecar says at the start. Nobody waits where there is no room."""
    async with AsyncExitStack() as stack:
        backends = [
            await stack.enter_async_context(Backend(answering(answer))) for _ in range(replicas)
        ]
        urls = [backend.url for backend in backends] if scores is None else []
        plane = await stack.enter_async_context(
            data_plane(fleet=fleet_of(urls), rules=rules, seed=7)
        )
        plane.proxy.configure(Config(name_why=True, queue=QueuePolicy(max_requests=0)))
        plane.router.now_s = clock = Clock(START_S)
        server = TestServer(admin_app(plane.proxy, {}, CollectorRegistry()))
        await stack.enter_async_context(server)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        it = Site(plane, clock, backends, str(server.make_url("")).rstrip("/"), session, server)
        if scores is not None:
            it.hear(*scores)
        yield it


def keyed(key: bytes) -> list[Header]:
    return [(CACHE_KEY, key)]


A, B, C, D, E, F, G = (f"http://{name}:8000" for name in "abcdefg")


def router_with(
    *heard: Snapshot, listed: tuple[str, ...] = (), rules: Rules | None = None
) -> tuple[Router, Clock]:
    clock = Clock(START_S)
    fleet, faults = hear(fleet_of(listed), SIDECAR, document(*heard), clock.now_s)
    assert not faults
    return Router(fleet, rules or AS_ASKED, Random(1), clock), clock


def told(router: Router, ask: Ask | None = None) -> Any:
    """As the page says, in JSON and back."""
    return orjson.loads(orjson.dumps(explained(router, ask or Ask())))
