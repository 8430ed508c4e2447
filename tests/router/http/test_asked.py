"""What clients may say of a request, what they are told of how it was decided, what answers teach.

A plane with one replica will do for most of it: `x-ullage-why` tells whether a key was known.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import orjson
import pytest

from data_plane import Plane, data_plane, eventually
from hand_clock import Clock
from mission import AS_ASKED, BY_SCORE
from raw_client import Client, request
from scripted_backend import (
    Backend,
    Header,
    answering,
    refusing_url,
    response,
)
from snapshots import fleet_with
from ullage_router.config import Config
from ullage_router.core.policy import AffinityPolicy
from ullage_router.core.rules import Rules

pytestmark = pytest.mark.slow

HELLO = answering(response(b"hello"))
CACHE_KEY, PRIORITY, SESSION = b"x-ullage-cache-key", b"x-ullage-priority", b"x-session-id"
CHAT = b"/v1/chat/completions"


def telling(*urls: str, rules: Rules = AS_ASKED) -> AbstractAsyncContextManager[Plane]:
    """A plane that knows keys."""
    return data_plane(*urls, rules=rules)


def prompt(text: str, **more: object) -> bytes:
    return orjson.dumps({"prompt": text, **more})


async def why(client: Client, body: bytes, *headers: Header, target: bytes = CHAT) -> str:
    """The rule that chose the replica, as the answer says."""
    answer = await client.ask(request(target, body, headers=headers))
    assert answer.status == 200
    said = answer.one(b"x-ullage-why")
    assert said is not None
    return said.decode()


async def whys(plane: Plane, *asks: tuple[bytes, Sequence[Header]]) -> list[str]:
    """The same of several requests, one after the other."""
    plane.proxy.name_why = True
    client = await plane.client()
    return [await why(client, body, *headers) for body, headers in asks]


# What is told


async def test_which_rule_chose_is_told_only_when_asked_for() -> None:
    async with Backend(HELLO) as backend, telling(backend.url) as plane:
        client = await plane.client()
        for wanted, told in ((False, None), (True, b"affinity"), (False, None)):
            plane.proxy.configure(Config(name_why=wanted))
            answer = await client.ask(request(body=prompt("x")))
            assert answer.one(b"x-ullage-why") == (told if wanted else None)
        assert all(not received.all(b"x-ullage-why") for received in backend.requests)


async def test_it_is_told_rightly_for_a_request_without_a_key_a_new_key_and_a_known_one() -> None:
    async with (
        Backend(HELLO) as backend,
        data_plane(fleet=fleet_with({backend.url: 0.9}, now_s=100.0), rules=AS_ASKED) as plane,
    ):
        plane.router.now_s = Clock()
        nothing = (b"{}", ())
        assert await whys(plane, nothing, (b"{}", [(CACHE_KEY, b"a")])) == ["score", "new_key"]
        assert await whys(plane, nothing, (b"{}", [(CACHE_KEY, b"a")])) == ["score", "affinity"]
        plane.router.now_s = Clock(110.0)
        assert await whys(plane, nothing) == ["own_counts"]  # Its sidecar is silent by now.


async def test_after_a_second_try_it_is_the_rule_that_chose_the_second() -> None:
    """Report 11: affinity pins a dead replica. Its key moves along with the second try."""
    dead = refusing_url()
    async with Backend(HELLO) as well, telling(dead, well.url) as plane:
        plane.proxy.name_why = True
        client = await plane.client()
        for number in range(100):
            keyed = (CACHE_KEY, b"%d" % number)
            said = await why(client, b"{}", keyed)
            if plane.router.second_tries:
                break
            assert said == "new_key"
        assert said == "key_moved"
        assert [decided.second_try for decided in plane.router.recent][-2:] == [False, True]
        assert await why(client, b"{}", keyed) == "affinity"
        assert plane.router.second_tries == 1


async def test_an_answer_of_the_routers_own_tells_no_rule() -> None:
    async with telling(refusing_url()) as plane:
        plane.proxy.name_why = True
        answer = await (await plane.client()).ask(request(body=b"{}"))
        assert (answer.status, answer.one(b"x-ullage-why")) == (502, None)


# Priority


@pytest.mark.parametrize(
    "said",
    [b"high", b"", b"1.5", b"1e3", b"0x10", b"1 2", b"--1", b"1234567890", b"\xd9\xa3", b"1" * 999],
)
async def test_a_priority_that_cannot_be_read_is_the_clients_fault_and_the_connection_goes_on(
    said: bytes,
) -> None:
    async with Backend(HELLO) as backend, telling(backend.url) as plane:
        client = await plane.client()
        bad = request(body=b"{}", headers=[(PRIORITY, said)])
        answer = await client.ask(bad)
        assert (answer.status, answer.error["code"]) == (400, "invalid_priority")
        assert answer.error["type"] == "invalid_request_error"
        wanted = "x-ullage-priority: wanted a whole number of at most 9 digits, got "
        assert answer.error["message"].startswith(wanted)
        assert len(answer.error["message"]) < 200
        assert not backend.requests
        assert plane.router.refusals == {"invalid_priority": 1}
        await client.send(bad + request(body=b"{}"))  # Also with the next one behind it.
        assert [(await client.answer()).status for _ in range(2)] == [400, 200]


async def test_a_bad_priority_is_told_with_what_was_wanted_and_what_came() -> None:
    async with telling(refusing_url()) as plane:
        client = await plane.client()
        for said, shown in (
            (b"high", "'high'"),
            (b"\xff'", '"\\xff\'"'),
            (b"9" * 99, f"'{'9' * 32}'"),
        ):
            answer = await client.ask(request(body=b"{}", headers=[(PRIORITY, said)]))
            wanted = "x-ullage-priority: wanted a whole number of at most 9 digits, got"
            assert answer.error["message"] == f"{wanted} {shown}."


async def test_a_bad_priority_is_answered_to_head_without_a_body() -> None:
    async with Backend(HELLO) as backend, telling(backend.url) as plane:
        client = await plane.client()
        bad = request(method=b"HEAD", headers=[(PRIORITY, b"x")])
        assert (await client.ask(bad, bodiless=True)).status == 400
        assert (await client.ask(request(body=b"{}"))).status == 200


async def test_a_bad_priority_asks_no_websocket() -> None:
    async with Backend(HELLO) as backend, telling(backend.url) as plane:
        client = await plane.client()
        upgrade = [(b"Connection", b"upgrade"), (b"Upgrade", b"websocket"), (PRIORITY, b"x")]
        assert (await client.ask(request(b"/ws", headers=upgrade))).status == 400
        assert (await client.ask(request(body=b"{}"))).status == 200
        assert len(backend.requests) == 1


async def test_the_headers_priority_goes_before_the_bodys_and_lower_is_served_first() -> None:
    clock = Clock()
    async with Backend(HELLO) as backend:
        full, room = (fleet_with({backend.url: score}, now_s=clock.now_s) for score in (0.1, 0.9))
        async with data_plane(fleet=full, rules=AS_ASKED) as plane:
            plane.router.now_s = clock
            clients = []
            for body, headers in (
                (b'{"said": "nothing"}', ()),
                (b'{"said": "body", "priority": -5}', ()),
                (b'{"said": "both", "priority": 7}', [(PRIORITY, b" -9 ")]),
                (b'{"said": "plus"}', [(PRIORITY, b"+3")]),
                (b'{"said": "no number", "priority": "-99"}', ()),
            ):
                clients.append(await plane.client())
                await clients[-1].send(request(body=body, headers=headers))
                await eventually(lambda: plane.proxy.waiting.waiting == len(clients))
            plane.router.fleet = room
            assert [(await client.answer()).status for client in clients] == [200] * 5
        served = [orjson.loads(received.body)["said"] for received in backend.requests]
        assert served == ["both", "body", "nothing", "no number", "plus"]


@pytest.mark.parametrize(
    ("name", "value"), [(PRIORITY, b"-7"), (CACHE_KEY, b"tenant 4"), (SESSION, b"s-1")]
)
async def test_what_was_said_to_the_router_goes_on_to_the_replica(
    name: bytes, value: bytes
) -> None:
    async with Backend(HELLO) as backend, telling(backend.url) as plane:
        await (await plane.client()).ask(request(body=b"{}", headers=[(name.title(), value)]))
        assert backend.requests[0].all(name) == [value]


# Cache keys

KEYED: dict[str, Callable[[str], tuple[bytes, Sequence[Header]]]] = {
    "header": lambda key: (prompt("q"), [(CACHE_KEY, key.encode())]),
    "body": lambda key: (prompt("q", prompt_cache_key=key), ()),
    "session": lambda key: (prompt("q"), [(SESSION, key.encode())]),
    "header before body": lambda key: (
        prompt("q", prompt_cache_key="all have this"),
        [(CACHE_KEY, key.encode())],
    ),
    "body before session": lambda key: (
        prompt("q", prompt_cache_key=key),
        [(SESSION, b"all have this")],
    ),
}


@pytest.mark.parametrize("keyed", KEYED.values(), ids=KEYED.keys())
async def test_requests_that_carry_the_same_key_belong_together_and_no_others(
    keyed: Callable[[str], tuple[bytes, Sequence[Header]]],
) -> None:
    async with Backend(HELLO) as backend, telling(backend.url) as plane:
        said = await whys(plane, keyed("a"), keyed("b"), keyed("a"), keyed("b"), keyed("c"))
        assert said == ["new_key", "new_key", "affinity", "affinity", "new_key"]


async def test_those_that_belong_together_go_to_one_replica_however_they_differ() -> None:
    async with Backend(HELLO) as a, Backend(HELLO) as b, Backend(HELLO) as c:
        async with telling(a.url, b.url, c.url) as plane:
            client = await plane.client()
            for number in range(12):
                body = prompt(f"{number} differs from its first byte on")
                await client.ask(request(body=body, headers=[(CACHE_KEY, b"one")]))
        assert sorted(len(backend.requests) for backend in (a, b, c)) == [0, 0, 12]


async def test_without_a_named_key_a_conversation_is_one_by_how_it_begins() -> None:
    def turns(number: int, who: str) -> tuple[bytes, Sequence[Header]]:
        said = [{"role": "user", "content": f"{who} {turn}"} for turn in range(number)]
        return orjson.dumps({"messages": said}), ()

    async with Backend(HELLO) as backend, telling(backend.url) as plane:
        said = await whys(plane, turns(1, "ann"), turns(1, "bob"), turns(2, "ann"), turns(3, "bob"))
        assert said == ["new_key", "new_key", "affinity", "affinity"]


async def test_only_the_configured_header_names_a_session() -> None:
    affinity = AffinityPolicy(session_header="X-Conversation")
    async with Backend(HELLO) as backend, telling(backend.url) as plane:
        plane.proxy.configure(Config(affinity=affinity))
        plane.router.rules = Rules(BY_SCORE, affinity=affinity)
        asks = [(b"{}", [(name, b"s")]) for name in (SESSION, b"x-conversation", b"x-CONVERSATION")]
        assert await whys(plane, *asks, asks[0]) == [
            *("own_counts", "new_key", "affinity"),
            "own_counts",
        ]


async def test_no_header_may_name_sessions() -> None:
    affinity = AffinityPolicy(session_header="")
    async with Backend(HELLO) as backend, telling(backend.url) as plane:
        plane.proxy.configure(Config(affinity=affinity))
        plane.router.rules = Rules(BY_SCORE, affinity=affinity)
        said = await whys(plane, *[(b"{}", [(SESSION, b"s")])] * 2)
        assert said == ["own_counts", "own_counts"]


async def test_another_session_header_holds_on_connections_that_are_open_too() -> None:
    async with Backend(HELLO) as backend, telling(backend.url) as plane:
        plane.proxy.name_why = True
        client = await plane.client()
        assert await why(client, b"{}", (SESSION, b"s")) == "new_key"
        affinity = AffinityPolicy(session_header="x-conversation")
        plane.proxy.configure(Config(name_why=True, affinity=affinity))
        plane.router.rules = Rules(BY_SCORE, affinity=affinity)
        assert await why(client, b"{}", (b"x-conversation", b"t")) == "new_key"


async def test_without_affinity_no_key_is_looked_at_or_kept() -> None:
    rules = Rules(BY_SCORE, affinity=AffinityPolicy(enabled=False))
    async with Backend(HELLO) as backend, telling(backend.url, rules=rules) as plane:
        assert await whys(plane, *[KEYED["header"]("a")] * 2) == ["own_counts", "own_counts"]
        assert len(plane.router.memory) == 0


async def test_an_empty_key_is_none() -> None:
    async with Backend(HELLO) as backend, telling(backend.url) as plane:
        assert await whys(plane, *[(b"{}", [(CACHE_KEY, b"")])] * 2) == ["own_counts"] * 2


async def test_a_hot_prefix_is_spread_over_as_many_replicas_as_its_rate_needs() -> None:
    """Report 12: a hot prefix pins one replica.

    40 a second, 10 to each replica: four homes of five.
    """
    clock = Clock()
    rules = Rules(BY_SCORE, affinity=AffinityPolicy(hot_per_s=10.0))
    async with (
        Backend(HELLO) as a,
        Backend(HELLO) as b,
        Backend(HELLO) as c,
        Backend(HELLO) as d,
        Backend(HELLO) as e,
        telling(*(backend.url for backend in (a, b, c, d, e)), rules=rules) as plane,
    ):
        plane.router.now_s, plane.proxy.name_why = clock, True
        client = await plane.client()
        said = []
        for _ in range(800):
            clock.now_s += 0.025
            said.append(await why(client, b"{}", (CACHE_KEY, b"popular")))
        hot = said.index("hot_key")
        assert said[:hot] == ["new_key"] + ["affinity"] * (hot - 1)
        assert set(said[hot:]) == {"hot_key"}
        shares = sorted(len(backend.requests) for backend in (a, b, c, d, e))
        assert shares[0] == 0
        assert shares[1] > 0
        assert sum(shares) == 800
