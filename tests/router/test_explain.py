"""`POST /explain`: what it says is what the next such request gets, and asking changes nothing.

Real sockets throughout: a replica behind the data plane, the admin port beside it.
"""

import copy
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import orjson
import pytest

from data_plane import Plane
from explained_site import (
    CHAT,
    COMPLETIONS,
    PRIORITY,
    WELL,
    Site,
    keyed,
    site,
)
from mission import AS_ASKED, BY_SCORE
from raw_client import Client, request
from scripted_backend import Backend, Header, answering, response
from serving import serving
from ullage_router import admin as pages
from ullage_router.config import Config
from ullage_router.core.fleet import Fleet, learn_models
from ullage_router.core.policy import AffinityPolicy, Policy, Way
from ullage_router.core.rules import Rules
from ullage_shared.snapshot import State

pytestmark = pytest.mark.slow


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
        assert set(said) == {"affinity_by_chance", "key_spilled"}


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
    rules = Rules(BY_SCORE, affinity=AffinityPolicy(hot_per_s=2.0))
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
    rules = Rules(BY_SCORE, affinity=AffinityPolicy(enabled=False))
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
    prefixes = list(router.prefixes._holders.items())
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
        *(memory, list(memory), prefixes, tallies, repr(router.tokens), list(router.recent)),
        *(dict(router.decisions), dict(router.refusals), router.second_tries, router.tries_denied),
        *(repr(router.in_flight), list(router.in_flight.changes), router.in_flight.last_seed),
        *(router._rng.getstate(), router.fleet, plane.proxy.waiting.queued),
    )


@pytest.mark.parametrize("way", [Way.WEIGHTED, Way.LEAST_WAIT])
@pytest.mark.parametrize("scores", [(0.9, 0.2, 0.5), (None, None, None), (0.1, 0.1, 0.1)])
async def test_to_explain_sends_nothing_counts_nothing_and_remembers_nothing(
    scores: tuple[float | None, ...], way: Way
) -> None:
    """Also report 3: a look must not make entries."""
    async with site(3, Rules(Policy(way=way)), scores=scores) as it:
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


@pytest.mark.parametrize("rules", [AS_ASKED, Rules()])
async def test_headers_that_choosing_goes_by_are_honoured(rules: Rules) -> None:
    body = {"priority": 5, "prompt_cache_key": "k"}
    async with site(1, rules) as it:
        assert (await judged(it, body, [(PRIORITY.title(), b" -3 ")]))["priority"] == -3
        await it.ask(headers=keyed(b"header"))
        assert (await judged(it, body, keyed(b"header")))["cache_keys_known"] == 1
        assert (await judged(it, body))["cache_keys_known"] == 0
        await it.ask(headers=[(b"x-session-id", b"s")])
        assert (await judged(it, {}, [(b"X-Session-Id", b"s")]))["cache_keys_known"] == 1
        assert (await judged(it, {}, [(b"X-Other-Id", b"s")]))["cache_keys_known"] == 0


async def test_a_session_header_of_the_operators_choice_is_honoured() -> None:
    rules = Rules(BY_SCORE, affinity=AffinityPolicy(session_header="X-Conversation"))
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
        raw = raw.replace(b"Host: router.test", b"Host: localhost")
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
