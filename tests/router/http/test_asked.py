"""What clients may say of a request, what they are told of how it was decided, what answers teach.

A plane with one replica will do for most of it: `x-ullage-why` tells whether a key was known.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import orjson
import pytest

from data_plane import Plane, data_plane, eventually
from mission import AS_ASKED, BY_SCORE
from raw_client import Answer, Client, request
from scripted_backend import (
    LAST_CHUNK,
    Backend,
    Call,
    Header,
    Received,
    Script,
    answering,
    chunk,
    chunked_head,
    head,
    refusing_url,
    response,
)
from snapshots import fleet_with
from ullage_router.config import Config
from ullage_router.core.ask import Ask
from ullage_router.core.policy import AffinityPolicy
from ullage_router.core.rules import Rules

pytestmark = pytest.mark.slow

HELLO = answering(response(b"hello"))
CACHE_KEY, PRIORITY, SESSION = b"x-ullage-cache-key", b"x-ullage-priority", b"x-session-id"
CHAT = b"/v1/chat/completions"


class Clock:
    """The router's clock, moved by hand."""

    def __init__(self, now_s: float = 100.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


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


# What answers teach

TEXT = "x" * 998
ASK = prompt(TEXT, model="tiny")
"""A prompt of 1000 bytes as JSON spells it."""
USAGE = b'"usage":{"prompt_tokens":500,"total_tokens":504,"completion_tokens":4}'
LEARNED, PRIOR = 375, 250
"""Tokens estimated for 1000 bytes: (1/4 + 1/2) / 2 of them after one answer; 1/4 before."""
JSON: Sequence[Header] = [(b"Content-Type", b"application/json")]
WHOLE = b'{"id":"a","choices":[{"text":"well"}],' + USAGE + b"}"
DELTA = b'data: {"choices":[{"delta":{"content":"well"}}]}\n\n'
LAST_EVENT = b'data: {"choices":[],' + USAGE + b"}\n\n"
DONE = b"data: [DONE]\n\n"


def in_pieces(*pieces: bytes, close: bool = False) -> Script:
    """Answers with these, each in a packet of its own."""

    async def script(call: Call) -> None:
        while True:
            await call.read_request()
            for piece in pieces:
                await call.send(piece)
                await asyncio.sleep(0.005)
            if close:
                return

    return script


def sized(body: bytes, status: int = 200) -> bytes:
    return response(body, status, b"Said", JSON)


CUT = len(WHOLE) - 30
TEACHING: dict[str, Script] = {
    "sized": in_pieces(sized(WHOLE)),
    "sized, head first": in_pieces(sized(WHOLE)[: -len(WHOLE)], WHOLE),
    "sized, its last bytes apart": in_pieces(sized(WHOLE)[:-30], WHOLE[-30:]),
    "sized, long before it": in_pieces(sized(b'{"text":"' + b"y" * 70_000 + b'",' + USAGE + b"}")),
    "chunked": in_pieces(chunked_head(JSON) + chunk(WHOLE) + LAST_CHUNK),
    "chunked, its end apart": in_pieces(chunked_head(JSON) + chunk(WHOLE), LAST_CHUNK),
    "a chunk cuts it": in_pieces(
        chunked_head(JSON) + chunk(WHOLE[:CUT]) + chunk(WHOLE[CUT:]) + LAST_CHUNK
    ),
    "until the end of the connection": in_pieces(head(200, b"OK", JSON) + WHOLE, close=True),
    "a stream in one read": in_pieces(
        chunked_head() + chunk(DELTA) + chunk(LAST_EVENT) + chunk(DONE) + LAST_CHUNK
    ),
    "a stream in many": in_pieces(
        *(chunked_head(), chunk(DELTA), chunk(DELTA), chunk(LAST_EVENT), chunk(DONE), LAST_CHUNK)
    ),
    "a stream, its end in one": in_pieces(
        chunked_head() + chunk(DELTA), chunk(DELTA), chunk(LAST_EVENT) + chunk(DONE) + LAST_CHUNK
    ),
    "a stream, cut behind the count": in_pieces(
        chunked_head() + chunk(DELTA), chunk(LAST_EVENT)[:-40], chunk(LAST_EVENT)[-40:], LAST_CHUNK
    ),
    "a stream that counts along": in_pieces(
        chunked_head(),
        *(chunk(DELTA[:-3] + b"," + USAGE.replace(b"504", b"501") + b"}\n\n"), chunk(LAST_EVENT)),
        chunk(DONE) + LAST_CHUNK,
    ),
}


async def taught(script: Script, ask: bytes = ASK, *, http_1_0: bool = False) -> tuple[int, Answer]:
    """What 1000 bytes are taken for once a replica has answered so; and the answer."""
    raw = request(body=ask)
    if http_1_0:
        raw = raw.replace(b" HTTP/1.1", b" HTTP/1.0", 1)
    async with Backend(script) as backend, data_plane(backend.url) as plane:
        answer = await (await plane.client()).ask(raw)
        await eventually(lambda: not plane.in_flight)
        return plane.router.tokens.estimate("tiny", 1000), answer


@pytest.mark.parametrize("http_1_0", [False, True], ids=["HTTP/1.1", "HTTP/1.0"])
@pytest.mark.parametrize("script", TEACHING.values(), ids=TEACHING.keys())
async def test_an_answer_teaches_how_many_tokens_a_prompt_has(
    script: Script, http_1_0: bool
) -> None:
    assert (await taught(script, http_1_0=http_1_0))[0] == LEARNED


def text_event(text: str) -> bytes:
    return b"data: " + orjson.dumps({"choices": [{"delta": {"content": text}}]}) + b"\n\n"


LIE = USAGE.decode()
TEACHING_NOTHING: dict[str, tuple[Script, bytes]] = {
    **{
        f"status {status}": (answering(sized(WHOLE, status)), ASK)
        for status in (201, 400, 404, 429, 500)
    },
    "generated text": (answering(sized(orjson.dumps({"text": LIE}))), ASK),
    "generated events": (
        in_pieces(chunked_head(), chunk(text_event(LIE)), chunk(DONE) + LAST_CHUNK),
        ASK,
    ),
    "generated events at the very end": (
        in_pieces(chunked_head() + chunk(text_event(LIE)) + LAST_CHUNK),
        ASK,
    ),
    "nothing of it": (answering(sized(b'{"choices":[]}')), ASK),
    "no number": (answering(sized(WHOLE.replace(b"500", b"null"))), ASK),
    "less than none": (answering(sized(WHOLE.replace(b"500", b"-500"))), ASK),
    "none": (answering(sized(WHOLE.replace(b"500", b"0"))), ASK),
    "a fraction": (answering(sized(WHOLE.replace(b"500", b"500.5"))), ASK),
    "another name for it": (answering(sized(WHOLE.replace(b"prompt_", b"input_"))), ASK),
    "a short prompt": (answering(sized(WHOLE)), prompt("x" * 200, model="tiny")),
    "no prompt": (answering(sized(WHOLE)), b'{"model": "tiny"}'),
    "no JSON": (answering(sized(WHOLE)), b"prompt" * 200),
}


@pytest.mark.parametrize(("script", "ask"), TEACHING_NOTHING.values(), ids=TEACHING_NOTHING.keys())
async def test_what_only_looks_like_it_teaches_nothing(script: Script, ask: bytes) -> None:
    assert (await taught(script, ask))[0] == PRIOR


async def test_an_answer_that_breaks_off_teaches_nothing() -> None:
    script = in_pieces(chunked_head() + chunk(DELTA), chunk(LAST_EVENT), close=True)
    async with Backend(script) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        await client.send(request(body=ASK))
        await client.closed()
        assert plane.router.tokens.estimate("tiny", 1000) == PRIOR
        assert len(plane.router.tokens) == 0


async def test_the_answer_itself_passes_as_it_came() -> None:
    """To look for the count changes nothing of it."""
    _, answer = await taught(TEACHING["a stream in many"])
    assert answer.body == DELTA + DELTA + LAST_EVENT + DONE


async def test_a_model_learns_from_its_own_answers_and_another_from_all() -> None:
    def answer(received: Received) -> bytes:
        tokens = {"dense": 500, "sparse": 125}[orjson.loads(received.body)["model"]]
        return sized(WHOLE.replace(b"500", b"%d" % tokens))

    async with Backend(answering(answer)) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        for model in ("dense", "sparse"):
            await client.ask(request(body=prompt(TEXT, model=model)))
        known = plane.router.tokens
        assert [known.estimate(m, 2400) for m in ("dense", "sparse", "new")] == [900, 450, 700]


async def test_what_was_learned_is_what_the_next_decision_goes_by() -> None:
    async with Backend(answering(sized(WHOLE))) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        for _ in range(2):
            await client.ask(request(body=ASK))
        assert [decided.prompt_tokens for decided in plane.router.recent] == [PRIOR, LEARNED]


async def test_what_is_not_streamed_is_taken_for_computed_when_it_should_be() -> None:
    """Its first byte is its last one, so nobody sees when its prompt is done."""

    async def holds_on(call: Call) -> None:
        await call.read_request()
        await call.gone()

    clock = Clock()
    async with Backend(holds_on) as backend:
        fleet = fleet_with({backend.url: 0.9}, now_s=clock())
        rules = Rules(affinity=AffinityPolicy(enabled=False))
        async with data_plane(fleet=fleet, rules=rules) as plane:
            plane.router.now_s = clock
            for stream in (b"true", b"false"):
                client = await plane.client()
                body = b'{"stream": %b, "prompt": "%b"}' % (stream, b"x" * 4_000)
                await client.send(request(b"/v1/completions", body))
            await eventually(lambda: len(backend.requests) == 2)
            both = plane.router.in_flight.pending[backend.url]
            clock.now_s += 100.0
            plane.router.choose(Ask())
            assert plane.router.in_flight.pending[backend.url] == both // 2
