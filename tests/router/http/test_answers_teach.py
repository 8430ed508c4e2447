"""What the `usage` of answers teaches of prompts, and when a prompt counts as computed."""

import asyncio
from collections.abc import Sequence

import orjson
import pytest

from data_plane import data_plane, eventually
from hand_clock import Clock
from raw_client import Answer, request
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
    response,
)
from snapshots import fleet_with
from ullage_router.core.ask import Ask
from ullage_router.core.policy import AffinityPolicy
from ullage_router.core.rules import Rules

pytestmark = pytest.mark.slow


def prompt(text: str, **more: object) -> bytes:
    return orjson.dumps({"prompt": text, **more})


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
