"""A mixed load: chat and completions, streamed and not, short and long, all real requests."""

import asyncio
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Final

import aiohttp

MODEL: Final = "tiny"
_PATIENCE: Final = 20
_WORDS: Final = ("return", "self", "value", "for", "item", "list", "not", "None", "else", "raise")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to make."""

    path: str
    body: dict[str, Any]

    @property
    def streamed(self) -> bool:
        """Does it ask for server-sent events?"""
        return bool(self.body["stream"])


@dataclass(frozen=True, slots=True)
class Answer:
    """How it went."""

    ask: Ask
    status: int
    """HTTP status; 0: no answer."""
    replica: str
    ttft_s: float
    """To the first byte of the body: for a streamed answer, its first token."""
    duration_s: float
    problem: str
    """Empty: the answer is whole and is what was asked for."""
    refusals: int = 0
    """How often it was told to come back later before that."""


def mixed(count: int, seed: int) -> list[Ask]:
    """`count` requests: three in four short, the others long; half of them chat, half streamed."""
    rng = random.Random(seed)
    return [_ask(rng, long=rng.random() < 0.25) for _ in range(count)]


def flood(seed: int) -> Iterator[Ask]:
    """Long prompts with long answers without end, as a careless batch job sends them."""
    rng = random.Random(seed)
    while True:
        yield _ask(rng, long=True)


def _ask(rng: random.Random, *, long: bool) -> Ask:
    words = rng.randint(250, 500) if long else rng.randint(5, 60)
    text = " ".join(rng.choices(_WORDS, k=words))
    body: dict[str, Any] = {
        "model": MODEL,
        "stream": rng.random() < 0.5,
        "max_tokens": rng.randint(100, 250) if long else rng.randint(8, 64),
        "ignore_eos": True,
    }
    if rng.random() < 0.5:
        return Ask("/v1/completions", {**body, "prompt": text})
    messages = [
        {"role": "system", "content": "You are a terse assistant."},
        {"role": "user", "content": text},
    ]
    return Ask("/v1/chat/completions", {**body, "messages": messages})


async def send_patiently(session: aiohttp.ClientSession, base_url: str, ask: Ask) -> Answer:
    """Make one request; refused with 503, come back after a second, as OpenAI's own client does."""
    answer = await send(session, base_url, ask)
    while answer.status == 503 and answer.refusals < _PATIENCE:
        await asyncio.sleep(1.0)
        again = await send(session, base_url, ask)
        answer = replace(again, refusals=answer.refusals + 1)
    return answer


async def send(session: aiohttp.ClientSession, base_url: str, ask: Ask) -> Answer:
    """Make one request and judge the answer. Never raises: what went wrong is in the answer."""
    began_s = perf_counter()
    first_s, status, replica, body, problem = 0.0, 0, "", b"", ""
    try:
        async with session.post(base_url + ask.path, json=ask.body) as response:
            status = response.status
            replica = response.headers.get("x-ullage-replica", "")
            async for piece in response.content.iter_any():
                first_s = first_s or perf_counter() - began_s
                body += piece
        problem = _fault(ask, status, body)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        problem = f"{type(error).__name__}: {error}"
    return Answer(ask, status, replica, first_s, perf_counter() - began_s, problem)


def _fault(ask: Ask, status: int, body: bytes) -> str:
    if status != 200:
        return f"status {status}: {body[:200].decode(errors='replace')}"
    if not body:
        return "the answer is empty"
    if ask.streamed:
        *events, end = [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event]
        if end != b"[DONE]":
            return "the stream has no end"
        return next((e[:200].decode() for e in events if "error" in json.loads(e)), "")
    try:
        made = json.loads(body)["usage"]["completion_tokens"]
    except (ValueError, KeyError, TypeError):
        return f"not an OpenAI answer: {body[:200]!r}"
    wanted = ask.body["max_tokens"]
    return "" if made == wanted else f"{made} tokens, wanted {wanted}"


async def run(
    base_url: str, asks: Iterable[Ask], at_once: int, done: Callable[[Answer], None]
) -> list[Answer]:
    """Make all requests, `at_once` of them at a time; `done` is told of each."""
    answers: list[Answer] = []
    left = iter(asks)
    timeout = aiohttp.ClientTimeout(total=300.0)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:

        async def client() -> None:
            for ask in left:
                answer = await send_patiently(session, base_url, ask)
                answers.append(answer)
                done(answer)

        await asyncio.gather(*(client() for _ in range(at_once)))
    return answers
