"""`POST /explain`: what it says is what the next such request gets, and asking changes nothing.

Real sockets throughout: a replica behind the data plane, the admin port beside it.
"""

import copy
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp.test_utils import TestServer
from prometheus_client import CollectorRegistry

from data_plane import Plane, data_plane
from raw_client import Answer, Client, request
from scripted_backend import Backend, Header, Received, answering, response
from serving import serving
from snapshots import document, snapshot
from ullage_router import admin as pages
from ullage_router.admin import admin_app
from ullage_router.config import Config
from ullage_router.core.ask import Ask
from ullage_router.core.breaker import Event
from ullage_router.core.fleet import Fleet, Replica, fleet_of, hear, learn_models
from ullage_router.core.policy import AffinityPolicy, Policy, Way
from ullage_router.core.queue import QueuePolicy
from ullage_router.core.rules import Rules
from ullage_router.explain import decisions_page, explained
from ullage_router.router import Router
from ullage_shared.snapshot import Snapshot, State

pytestmark = pytest.mark.slow

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CACHE_KEY, PRIORITY = b"x-ullage-cache-key", b"x-ullage-priority"
SIDECAR = "http://sidecar:9400"
START_S = 1_000.0
WELL = response(b"{}")


class Clock:
    """The router's clock, moved by hand."""

    now_s = START_S

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Site:
    """A data plane over some replicas, its admin port, and its clock."""

    plane: Plane
    clock: Clock
    replicas: list[Backend]
    admin: str
    session: aiohttp.ClientSession
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
    rules: Rules = Rules(),  # noqa: B008 -- frozen
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
        plane.router.now_s = clock = Clock()
        server = TestServer(admin_app(plane.router, {}, CollectorRegistry()))
        await stack.enter_async_context(server)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        it = Site(plane, clock, backends, str(server.make_url("")).rstrip("/"), session)
        if scores is not None:
            it.hear(*scores)
        yield it


def keyed(key: bytes) -> list[Header]:
    return [(CACHE_KEY, key)]


# It comes true


@pytest.mark.parametrize("way", Way)
async def test_what_is_explained_is_what_the_next_request_gets_whatever_the_way(way: Way) -> None:
    rules = Rules(Policy(way=way), AffinityPolicy(enabled=False))
    async with site(4, rules, scores=(0.9, 0.7, 0.5, 0.3)) as it:
        why = "wait" if way is Way.LEAST_WAIT else "score"
        assert {await it.foretold() for _ in range(20)} == {why}
        if way is Way.WEIGHTED:
            assert sum(replica.requests != [] for replica in it.replicas) > 1


async def test_by_least_wait_it_is_so_for_who_knows_the_beginning_too() -> None:
    async with site(3, Rules(Policy(way=Way.LEAST_WAIT)), scores=(0.9, 0.8, 0.7)) as it:
        body = json.dumps({"prompt": "What is ullage? " * 200}).encode()
        assert await it.foretold(body) == "wait"
        assert [await it.foretold(body) for _ in range(3)] == ["affinity"] * 3


async def test_it_is_so_by_own_counts() -> None:
    async with site(3) as it:
        assert {await it.foretold() for _ in range(20)} == {"own_counts"}


async def test_it_is_so_for_a_new_key_and_then_for_its_home() -> None:
    async with site(3, scores=(0.9, 0.8, 0.7)) as it:
        for key in (b"a", b"b", b"c"):
            assert await it.foretold(headers=keyed(key)) == "new_key"
            assert [await it.foretold(headers=keyed(key)) for _ in range(3)] == ["affinity"] * 3


async def test_it_is_so_in_the_middle_tier_where_dice_decide() -> None:
    async with site(2, scores=(0.9, 0.9)) as it:
        await it.ask(headers=keyed(b"a"))
        home = it.router.recent[-1].decision.replica
        assert home is not None
        it.hear(*(0.2 if replica.url == home.url else 0.9 for replica in it.replicas))
        said = [await it.foretold(headers=keyed(b"a")) for _ in range(20)]
        assert set(said) == {"affinity", "key_spilled"}


async def test_it_is_so_for_a_key_that_must_leave_or_may_not_yet() -> None:
    async with site(2, scores=(0.9, 0.9)) as it:
        await it.ask(headers=keyed(b"a"))

        def full_home() -> None:
            home = it.router.recent[-1].decision.replica
            assert home is not None
            it.hear(*(0.1 if replica.url == home.url else 0.9 for replica in it.replicas))

        full_home()
        assert await it.foretold(headers=keyed(b"a")) == "key_moved"
        full_home()
        assert await it.foretold(headers=keyed(b"a")) == "key_spilled"  # Within its dwell.


async def test_it_is_so_for_a_hot_key() -> None:
    rules = Rules(affinity=AffinityPolicy(hot_per_s=2.0))
    async with site(4, rules) as it:
        said = []
        for _ in range(40):
            it.clock.now_s += 0.1
            said.append(await it.foretold(headers=keyed(b"popular")))
        assert said[-1] == "hot_key"


async def test_it_is_so_when_nobody_has_room_or_nobody_serves() -> None:
    async with site(2, scores=(0.1, 0.15)) as it:
        assert await it.foretold() == "full"
        it.hear(0.9, 0.9, state=State.DOWN)
        assert await it.foretold() == "no_replica"
        it.router.fleet = Fleet()
        assert await it.foretold() == "no_replica"


async def test_it_is_so_for_the_model_and_the_size_that_the_request_has() -> None:
    async with site(2, scores=(0.9, 0.9)) as it:
        it.hear(0.9, 0.9, scores={"short": 0.8, "long": 0.4})
        await it.foretold(orjson.dumps({"prompt": "x" * 400}))
        assert (await it.decisions())[0]["score"] == 0.8
        await it.foretold(orjson.dumps({"prompt": "x" * 40_000}))
        assert (await it.decisions())[0]["score"] == 0.4
        for model, backend in zip(("one", "two"), it.replicas, strict=True):
            it.router.fleet = learn_models(it.router.fleet, backend.url, frozenset({model}))
        for model, backend in zip(("one", "two"), it.replicas, strict=True):
            before = len(backend.requests)
            for _ in range(5):
                await it.foretold(orjson.dumps({"model": model, "prompt": model}))
            assert len(backend.requests) == before + 5


async def test_it_is_so_for_a_request_that_brings_no_id() -> None:
    rules = Rules(affinity=AffinityPolicy(enabled=False))
    async with site(4, rules, scores=(0.9, 0.9, 0.9, 0.9)) as it:
        client = await it.plane.client()
        for _ in range(30):
            said = await it.explained()
            answer = await client.ask(request(body=b"{}"))
            assert answer.one(b"x-ullage-replica") == said["replica"].encode()


async def test_it_is_so_at_the_admin_port_of_the_whole_service() -> None:
    async with AsyncExitStack() as stack:
        backends = [
            await stack.enter_async_context(Backend(answering(response(b"{}")))) for _ in range(4)
        ]
        config = Config(
            replicas=tuple(backend.url for backend in backends),
            affinity=AffinityPolicy(enabled=False),
        )
        it = await stack.enter_async_context(serving(config))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        client = await it.client()
        for _ in range(30):
            url = f"http://{it.admin}/explain{COMPLETIONS}"
            async with session.post(url, data=b"{}") as page:
                said = orjson.loads(await page.read())
            answer = await client.ask(request(body=b"{}"))
            assert answer.one(b"x-ullage-replica") == said["replica"].encode()


# It changes nothing


def everything(plane: Plane) -> Any:
    """All that a decision changes."""
    router = plane.router
    memory = {key: copy.copy(placed) for key, placed in router.memory._placed.items()}
    tallies = {
        key: (
            tally.dispatched,
            dict(tally.failures),
            dict(tally.responses),
            list(tally.score.counts),
        )
        for key, tally in router.tallies.items()
    }
    return (
        *(memory, list(memory), tallies, repr(router.tokens), list(router.recent)),
        *(dict(router.decisions), dict(router.refusals), router.second_tries, router.tries_denied),
        *(repr(router.in_flight), list(router.in_flight.changes), router.in_flight.last_seed),
        *(router._rng.getstate(), router.fleet, plane.proxy.waiting.queued),
    )


@pytest.mark.parametrize("scores", [(0.9, 0.2, 0.5), (None, None, None), (0.1, 0.1, 0.1)])
async def test_to_explain_sends_nothing_counts_nothing_and_remembers_nothing(
    scores: tuple[float | None, ...],
) -> None:
    """Also report 3: a look must not make entries."""
    async with site(3, scores=scores) as it:
        for key in (b"a", b"b"):
            await it.ask(headers=keyed(key))
        before = everything(it.plane)
        sent = [len(replica.requests) for replica in it.replicas]
        for headers in ((), keyed(b"a"), keyed(b"new"), [(PRIORITY, b"x")]):
            for body in (b"{}", orjson.dumps({"model": "made up", "prompt": "x" * 9_000}), b"?"):
                for path in ("", CHAT, COMPLETIONS):
                    first = await it.explain(body, headers, path)
                    assert await it.explain(body, headers, path) == first
        assert everything(it.plane) == before
        assert [len(replica.requests) for replica in it.replicas] == sent


# What it judges by


async def judged(it: Site, body: object, headers: Sequence[Header] = (), path: str = "") -> Any:
    return (await it.explained(orjson.dumps(body), headers, path))["request"]


async def test_the_path_behind_explain_is_the_one_the_request_is_judged_by() -> None:
    completion = {"prompt": "x" * 5_000}
    chat = {"messages": [{"role": "user", "content": "y"}] * 3}
    async with site(1) as it:
        assert (await judged(it, completion, path=COMPLETIONS))["cache_keys"] == 2
        assert (await judged(it, completion, path=CHAT))["cache_keys"] == 0
        assert (await judged(it, completion, path="/v1/embeddings"))["cache_keys"] == 0
        assert (await judged(it, chat, path=CHAT))["cache_keys"] == 3
        assert (await judged(it, chat, path="/tenant/v1/chat/completions?a=b"))["cache_keys"] == 3
        assert (await judged(it, chat, path=COMPLETIONS))["cache_keys"] == 0


async def test_without_a_path_it_is_the_one_that_the_body_is_for() -> None:
    async with site(1) as it:
        assert (await judged(it, {"prompt": "x" * 5_000}))["cache_keys"] == 2
        assert (await judged(it, {"messages": [{"role": "user", "content": "y"}]}))[
            "cache_keys"
        ] == 1
        assert (await judged(it, {}))["cache_keys"] == 0


async def test_what_is_known_of_the_request_is_told() -> None:
    body = {"model": "m", "prompt": "x" * 398, "max_tokens": 9, "priority": 5}
    async with site(1) as it:
        told = {
            "model": None,  # One replica: all serve the same.
            "prompt_tokens": 100,
            "size": "short",
            "max_tokens": 9,
            "priority": 5,
            "cache_keys": 1,
            "cache_keys_known": 0,
            "cache_key_per_s": None,
        }
        assert await judged(it, body) == told | {"model": "m"}
        await it.ask(orjson.dumps(body))
        known = {"cache_keys_known": 1, "cache_key_per_s": 0.2}
        assert await judged(it, body) == told | {"model": "m"} | known
        it.clock.now_s += 5.0
        assert (await judged(it, body))["cache_key_per_s"] == 0.074  # 0.2 / e


async def test_headers_that_choosing_goes_by_are_honoured() -> None:
    body = {"priority": 5, "prompt_cache_key": "k"}
    async with site(1) as it:
        assert (await judged(it, body, [(PRIORITY.title(), b" -3 ")]))["priority"] == -3
        await it.ask(headers=keyed(b"header"))
        assert (await judged(it, body, keyed(b"header")))["cache_keys_known"] == 1
        assert (await judged(it, body))["cache_keys_known"] == 0
        await it.ask(headers=[(b"x-session-id", b"s")])
        assert (await judged(it, {}, [(b"X-Session-Id", b"s")]))["cache_keys_known"] == 1
        assert (await judged(it, {}, [(b"X-Other-Id", b"s")]))["cache_keys_known"] == 0


async def test_a_session_header_of_the_operators_choice_is_honoured() -> None:
    rules = Rules(affinity=AffinityPolicy(session_header="X-Conversation"))
    async with site(1, rules) as it:
        assert (await judged(it, {}, [(b"x-conversation", b"s")]))["cache_keys"] == 1
        assert (await judged(it, {}, [(b"x-session-id", b"s")]))["cache_keys"] == 0


async def test_a_bad_priority_is_told_as_the_client_would_be_told() -> None:
    async with site(1) as it:
        status, page = await it.explain(headers=[(PRIORITY, b"soon")])
        answer = await it.ask(headers=[(PRIORITY, b"soon")])
        assert (status, page["error"]) == (answer.status, answer.error)
        assert (status, page["error"]["code"]) == (400, "invalid_priority")


ODD_BODIES = {
    "empty": b"",
    "no JSON": b"\x00\xff rubbish",
    "no object": b"[1, 2]",
    "half a pair": b'{"model": "\\ud800", "prompt_cache_key": "\\udfff"}',
    "wrong types": b'{"model": 1, "stream": "x", "max_tokens": -1, "priority": [], "messages": 4}',
    "numbers beyond all": b'{"max_tokens": 1' + b"0" * 400 + b', "priority": 1e999}',
    "as large as JSON lets us say": b'{"max_tokens": 9223372036854775807, "priority": -9223372036'
    b"854775808}",
    "1 MB": orjson.dumps({"prompt": "x" * 1_000_000}),
    "1 MB of messages": b'{"messages": [' + b"1," * 500_000 + b"1]}",
    "deep objects": b'{"a":' * 200_000,
    "deep lists": b'{"messages": ' + b"[" * 1_000_000,
    "deep and whole": b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize("body", ODD_BODIES.values(), ids=ODD_BODIES.keys())
async def test_whatever_the_body_and_the_path_there_is_an_answer(body: bytes) -> None:
    async with site(1) as it:
        for path in ("", CHAT, COMPLETIONS, "/v1/responses", "/", "/%FF%00?%ZZ"):
            page = await it.explained(body, path=path)
            assert page["replica"] == it.replicas[0].url.removeprefix("http://")


@pytest.mark.parametrize(
    "header",
    [
        (b"Content-Type", b"multipart/form-data; boundary=x"),
        (b"Content-Type", b"\xff"),
        (b"Content-Type", b"text/plain; charset=\xff"),
        (b"X-Ullage-Cache-Key", b"\xe9\xff"),
        (b"X-Ullage-Priority", b"\xff"),
        (b"Expect", b"100-continue"),
        (b"Content-Encoding", b"gzip"),
        (b"Content-Encoding", b"deflate"),
    ],
    ids=repr,
)
async def test_whatever_the_headers_it_is_not_the_routers_fault(header: Header) -> None:
    """At the admin port of the whole service: how it takes what it is sent is not the page's."""
    async with (
        Backend(answering(WELL)) as backend,
        serving(Config(replicas=(backend.url,))) as it,
    ):
        client = await Client.connect(it.admin)
        raw = request(f"/explain{CHAT}".encode(), b"rubbish", headers=[header])
        answer = await client.ask(raw)
        client.close()
        assert answer.status == (400 if header[0] == PRIORITY.title() else 200)


async def test_a_body_beyond_the_limit_is_413(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_BYTES", 10_000)
    async with site(1) as it:
        for size, status in ((10_000, 200), (10_001, 413)):
            url = f"{it.admin}/explain"
            async with it.session.post(url, data=b"x" * size) as page:
                assert page.status == status


async def test_only_a_post_explains_and_only_at_its_path() -> None:
    async with site(1) as it:
        for method, path, status in (
            *(("GET", "/explain", 405), ("PUT", "/explain/v1/completions", 405)),
            *(("POST", "/explainer", 404), ("POST", "/explain", 200), ("POST", "/explain/", 200)),
        ):
            async with it.session.request(method, it.admin + path, data=b"{}") as page:
                assert page.status == status, (method, path)


# Who is left out, and why

A, B, C, D, E, F, G = (f"http://{name}:8000" for name in "abcdefg")


def router_with(
    *heard: Snapshot, listed: tuple[str, ...] = (), rules: Rules | None = None
) -> tuple[Router, Clock]:
    clock = Clock()
    fleet, faults = hear(fleet_of(listed), SIDECAR, document(*heard), clock.now_s)
    assert not faults
    return Router(fleet, rules or Rules(), Random(1), clock), clock


def told(router: Router, ask: Ask | None = None) -> Any:
    """As the page says, in JSON and back."""
    return orjson.loads(orjson.dumps(explained(router, ask or Ask())))


def test_each_replica_that_is_left_out_says_why() -> None:
    router, clock = router_with(
        snapshot(A, 0.9, id="a"),
        snapshot(B, 0.15, id="b"),
        snapshot(C, 0.9, id="c", state=State.WARMING),
        snapshot(D, 0.9, id="d"),
        snapshot(E, 0.9, id="e"),
        snapshot(F, 0.9, id="f", age_s=60.5),
        snapshot(G, 0.9, id="g", models=("other",)),
    )
    for _ in range(3):
        router._hold_against(D, Event.ERRED)
    router.full(router.fleet.replicas[E])
    page = told(router, Ask(model="tiny"))
    assert page["left_out"] == {
        "b": "score is not above the floor of 0.15",
        "c": "it is warming",
        "d": "failed again and again: out until it has answered a probe",
        "e": "gave no answer, or had no room, a moment ago",
        "f": "its sidecar has been silent for more than 60.0 s",
        "g": "it serves other models",
    }
    assert (page["replica"], [row["replica"] for row in page["candidates"]]) == ("a", ["a"])
    clock.now_s += 1.0
    assert "e" not in told(router, Ask(model="tiny"))["left_out"]


def test_every_replica_is_a_candidate_or_left_out() -> None:
    states = [*State, State.SERVING, State.SERVING]
    heard = [
        snapshot(f"http://r{number}:8000", (number % 7) / 7, state=state, age_s=number % 5)
        for number, state in enumerate(states)
    ]
    router, _ = router_with(*heard, listed=(A,))
    page = told(router)
    named = [row["replica"] for row in page["candidates"]] + list(page["left_out"])
    assert sorted(named) == sorted(replica.id for replica in router.fleet.replicas.values())


@pytest.mark.parametrize(("short", "mixed"), [(0.1, 0.9), (0.9, 0.1)])
def test_a_replica_is_left_out_by_its_score_for_the_requests_size(
    short: float, mixed: float
) -> None:
    router, _ = router_with(
        snapshot(A, 0.9, id="a"), snapshot(B, mixed, id="b", scores={"short": short})
    )
    page = told(router)
    assert page["request"]["size"] == "short"
    assert {row["replica"] for row in page["candidates"]} == ({"a", "b"} if short > 0.15 else {"a"})
    assert set(page["left_out"]) == (set() if short > 0.15 else {"b"})


def _struck(router: Router) -> None:
    for replica in router.fleet.replicas.values():
        router.full(replica)


def _made_lost(router: Router) -> None:
    assert isinstance(router.now_s, Clock)
    router.now_s.now_s += 61.0


@pytest.mark.parametrize("make", [_struck, _made_lost], ids=["all struck", "all lost"])
def test_whoever_is_let_in_for_want_of_others_is_not_said_to_be_left_out(
    make: Callable[[Router], None],
) -> None:
    router, _ = router_with(snapshot(A, 0.9, id="a"), snapshot(B, 0.9, id="b"))
    make(router)
    page = told(router)
    assert {row["replica"] for row in page["candidates"]} == {"a", "b"}
    assert page["left_out"] == {}


def test_a_model_that_nobody_is_known_to_serve_leaves_nobody_out() -> None:
    router, _ = router_with(
        snapshot(A, 0.9, id="a", models=("one",)), snapshot(B, 0.9, id="b", models=("two",))
    )
    page = told(router, Ask(model="three"))
    assert {row["replica"] for row in page["candidates"]} == {"a", "b"}
    assert page["left_out"] == {}


def test_a_router_whose_only_replica_failed_a_moment_ago_is_well_for_it_gets_the_next_request() -> (
    None
):
    """Else one lost connection takes the whole router out of its load balancer for a second."""
    router, _ = router_with(listed=(A,))
    router.failed(router.fleet.replicas[A], "closed", "gone")
    assert router.explain(Ask()).replica is not None
    assert pages.health_page(router)[0] == 200


@pytest.mark.parametrize("seed", range(20))
def test_the_odds_of_the_candidates_are_one_in_all(seed: int) -> None:
    dice = Random(seed)
    heard = [
        snapshot(f"http://r{number}:8000", dice.choice([None, dice.random()]), age_s=dice.random())
        for number in range(dice.randint(1, 40))
    ]
    router, _ = router_with(*heard)
    for _ in range(dice.randint(0, 60)):
        decision = router.choose(Ask())
        if decision.replica is not None:
            router.dispatch(decision.replica)
    rows = told(router)["candidates"]
    some = any(row["weight"] for row in rows)  # Else this router has filled all of them.
    assert sum(row["odds"] for row in rows) == pytest.approx(1.0 if some else 0.0)
    assert [row["odds"] for row in rows] == sorted((row["odds"] for row in rows), reverse=True)
    for row in rows:
        assert (row["weight"] > 0.0) is (row["odds"] > 0.0)


def test_one_that_this_router_has_filled_is_told_as_a_candidate_without_a_chance() -> None:
    router, _ = router_with(snapshot(A, 0.9, id="a"), snapshot(B, 0.2, id="b", max_num_seqs=10))
    router.dispatch(router.fleet.replicas[B])
    rows = {row["replica"]: row for row in told(router)["candidates"]}
    assert (rows["b"]["odds"], rows["b"]["weight"], rows["a"]["odds"]) == (0.0, 0.0, 1.0)
    assert rows["b"]["effective"] == pytest.approx(0.1)


def test_a_keys_home_is_marked() -> None:
    router, _ = router_with(snapshot(A, 0.9, id="a"), snapshot(B, 0.9, id="b"))
    ask = Ask(keys=(1,))
    home = router.choose(ask).replica
    assert home is not None
    assert [row["replica"] for row in told(router, ask)["candidates"] if row["home"]] == [home.id]


# The record of decisions


async def test_decisions_are_the_latest_256_the_newest_first_each_with_its_candidates() -> None:
    async with site(2, scores=(0.9, 0.5)) as it:
        client = await it.plane.client()
        for number in range(300):
            headers = [(b"X-Request-Id", b"%d" % number)]
            await client.ask(request(body=b"{}", headers=headers))
        page = await it.decisions()
        assert [row["request_id"] for row in page] == [str(n) for n in range(299, 43, -1)]
        for row in page:
            assert len(row["candidates"]) == 2
            assert sum(c["odds"] for c in row["candidates"]) == pytest.approx(1.0)
            assert row["replica"] in {c["replica"] for c in row["candidates"]}


async def test_a_second_try_is_a_decision_of_its_own_without_the_first_replica() -> None:
    async with site(2, answer=response(b"{}", 503, b"Busy")) as it:
        await it.ask()
        second, first = await it.decisions()
        assert (first["second_try"], second["second_try"]) == (False, True)
        assert [len(row["candidates"]) for row in (first, second)] == [2, 1]
        assert {first["replica"], second["replica"]} == {c["replica"] for c in first["candidates"]}


async def test_a_decision_keeps_the_numbers_it_was_made_by() -> None:
    """What changes later is not read into the past."""
    async with site(2, scores=(0.9, 0.5)) as it:
        await it.ask()
        before = await it.decisions()
        it.hear(0.3, 0.2)
        it.clock.now_s += 2.0
        for _ in range(5):
            await it.ask()
        assert (await it.decisions())[5:] == before


def test_the_record_marks_the_home_that_the_key_had_then() -> None:
    router, clock = router_with(snapshot(A, 0.9, id="a"), snapshot(B, 0.9, id="b"))
    ask = Ask(keys=(1,))
    home = router.choose(ask).replica
    assert home is not None
    router.full(home)
    said = told(router, ask)
    moved_to = router.choose(ask).replica
    assert moved_to is not None
    assert moved_to is not home
    clock.now_s += 2.0
    router.choose(ask)
    after, moving, before = decisions_page(router)
    assert moving["candidates"] == said["candidates"]
    homes = [[row["replica"] for row in d["candidates"] if row["home"]] for d in (before, after)]
    assert homes == [[], [moved_to.id]]


NAMES = [
    "ünïcödé/引擎",
    'quote" \\ back',
    "line\nfeed\ttab",
    "\x00\x1f\x7f",
    "<script>",
    " ",
    "🦄" * 9,
]


@pytest.mark.parametrize("name", NAMES)
def test_the_pages_are_json_whatever_a_replica_is_called(name: str) -> None:
    router, _ = router_with(snapshot(A, 0.9, id=name), snapshot(B, 0.1, id=name + "2"))
    router.choose(Ask(), request_id=b'\x80\xff"\\\n')
    (row,) = orjson.loads(orjson.dumps(decisions_page(router)))
    assert (row["replica"], row["candidates"][0]["replica"]) == (name, name)
    assert row["request_id"] == '\x80ÿ"\\\n'
    assert set(told(router)["left_out"]) == {name + "2"}


# What a page costs the requests beside it


def test_the_record_holds_no_more_than_its_256_however_many_there_were() -> None:
    router, _ = router_with(*(snapshot(f"http://r{n}:8000", 0.9) for n in range(10)))
    for _ in range(1_000):
        router.choose(Ask())
    assert len(router.recent) == len(decisions_page(router)) == 256


MOST_NUMBERS = 4_096
"""Candidates of past decisions among more than 16, together: the page is made between requests."""


def numbers(router: Router) -> list[int]:
    """How many candidates each decision is told with, the newest first."""
    return [len(row["candidates"]) for row in decisions_page(router)]


def test_of_a_large_fleet_the_latest_decisions_are_told_with_all_and_the_others_without() -> None:
    router, _ = router_with(*(snapshot(f"http://r{n}:8000", 0.9) for n in range(100)))
    for _ in range(300):
        router.choose(Ask())
    assert numbers(router) == [100] * 40 + [0] * 216


def test_nor_does_the_page_grow_when_this_router_has_filled_the_fleet() -> None:
    router, _ = router_with(
        *(snapshot(f"http://r{n}:8000", 0.9, max_num_seqs=1) for n in range(100))
    )
    for replica in router.fleet.replicas.values():
        router.dispatch(replica)
    for _ in range(256):
        assert router.choose(Ask()).why == "full"
    assert sum(numbers(router)) <= MOST_NUMBERS


def test_nor_where_decisions_over_few_replicas_come_between() -> None:
    many = [snapshot(f"http://r{n}:8000", 0.9, models=("many",)) for n in range(128)]
    router, _ = router_with(*many, snapshot(A, 0.9, models=("one",)))
    dice = Random(1)
    for _ in range(256):
        router.choose(Ask(model=dice.choice(["many", "one"])))
    among = Counter(numbers(router))
    assert among.keys() == {128, 1, 0}
    assert 128 * among[128] == MOST_NUMBERS


class Counting(Mapping[str, Replica]):
    """Replicas, and how often all of them were gone through."""

    def __init__(self, replicas: Mapping[str, Replica]) -> None:
        self.looks = 0
        self._replicas = replicas

    def __getitem__(self, key: str) -> Replica:
        return self._replicas[key]

    def __len__(self) -> int:
        return len(self._replicas)

    def __iter__(self) -> Iterator[str]:
        self.looks += 1
        return iter(self._replicas)


PAGES: dict[str, Callable[[Router], object]] = {
    "/healthz": lambda router: pages.health_page(router),
    "/replicas": lambda router: pages.replicas_page(router, {}, router.now_s()),
    "/explain": lambda router: explained(router, Ask()),
}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES.keys())
def test_a_page_goes_through_the_fleet_a_few_times_and_not_once_for_each_replica(
    page: Callable[[Router], object],
) -> None:
    """With one of 1,000 struck, a probe of /healthz took half a second, in which nothing else
    went on."""
    router, _ = router_with(*(snapshot(f"http://r{n}:8000", 0.9) for n in range(100)))
    router.full(router.fleet.replicas["http://r7:8000"])
    replicas = Counting(router.fleet.replicas)
    router.fleet = replace(router.fleet, replicas=replicas)
    page(router)
    assert replicas.looks <= 20
