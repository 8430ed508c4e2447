"""What a row of the table is.

A row says what the client sends, what the replica does, and what must be seen at both ends. A check
takes what was seen and returns a complaint of a few words, or nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from conformance.arrival import Got
from conformance.replica import Call, Script
from conformance.wire import Answer

if TYPE_CHECKING:
    from conformance.play import Play


class Do(Enum):
    """What a client does beside sending bytes."""

    ANSWER = auto()
    """Read an answer, whole."""
    CONTINUE = auto()
    """Wait for `100 Continue`."""
    PAUSE = auto()
    """Wait, so that what was sent is read for itself."""
    FINISH = auto()
    """Close the sending side."""


class Wrong(Exception):  # noqa: N818 -- a verdict, not an error
    """What was seen and was not promised, in a few words."""


@dataclass
class Seen:
    """What came of a row."""

    answers: list[Answer] = field(default_factory=list)
    requests: list[Got] = field(default_factory=list)
    end: str = ""
    """How the client's connection ended: `closed`, `reset`; empty: it did not."""
    reusable: str = ""
    """What is wrong with a further request on the connection; empty: nothing."""


Check = Callable[[Seen], str | None]
Scene = Callable[["Play"], Awaitable[None]]
Sends = tuple[bytes | Do, ...] | Scene

LLM: Final = ("vllm-router", "smg")
GENERAL: Final = ("nginx", "haproxy")
ALL: Final = (*GENERAL, *LLM)
NONE: Final[tuple[str, ...]] = ()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One promise."""

    name: str
    """A sentence."""
    source: str
    """Where it comes from: an RFC's section, or a report by its number in design/peers.md."""
    sends: Sends
    """Bytes and `Do`s, or a scene that plays the client itself."""
    replica: Script
    """What a replica does with each request."""
    answers: int = 1
    """How many are read at the end, beside those that `sends` reads."""
    bodiless: bool = False
    """The answers are to HEAD."""
    client: tuple[Check, ...] = ()
    upstream: tuple[Check, ...] = ()
    ours: tuple[Check, ...] = ()
    """Beyond what others are held to."""
    peers: tuple[str, ...] = ALL
    """To whom it applies beside us."""
    site: str = "main"
    """Which configuration of ours; peers have but one, and `ipv6`."""
    fresh: bool = False
    """The proxy has no connections to the replicas when the row begins."""


# What a replica does.


class Then(Enum):
    """What a replica does beside sending bytes."""

    CLOSE = auto()
    RESET = auto()
    PAUSE = auto()
    HOLD = auto()
    """Wait until the proxy leaves; when that was goes to the stage's notes."""


def says(*steps: bytes | Then) -> Script:
    """A script: these steps at every request."""

    async def script(call: Call) -> None:
        for step in steps:
            if isinstance(step, bytes):
                await call.send(step)
            elif step is Then.PAUSE:
                await asyncio.sleep(PAUSE_S)
            elif step is Then.CLOSE:
                call.close()
            elif step is Then.RESET:
                await asyncio.sleep(PAUSE_S)  # What was sent must not be lost with it.
                call.reset()
            else:
                call.notes.put_nowait(0.0)
                call.notes.put_nowait(await call.gone())

    return script


PAUSE_S: Final = 0.02


def tries(*scripts: Script) -> Script:
    """A script for each of the row's requests, at whichever replica; the last one goes on."""

    async def script(call: Call) -> None:
        await scripts[min(call.number, len(scripts)) - 1](call)

    return script


# Bytes of both ends.

ASK: Final = b'{"model":"tiny","messages":[{"role":"user","content":"hi"}]}'
ASK_STREAM: Final = b'{"model":"tiny","stream":true,"messages":[{"role":"user","content":"hi"}]}'
CHAT: Final = b"/v1/chat/completions"
REPLY: Final = (
    b'{"id":"c-1","object":"chat.completion","created":1,"model":"tiny","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
)
LAST: Final = b"0\r\n\r\n"


def head(first: bytes, *fields: bytes) -> bytes:
    """A message's head, as given."""
    return b"\r\n".join((first, *fields)) + b"\r\n\r\n"


def get(target: bytes = b"/thing", *fields: bytes, method: bytes = b"GET") -> bytes:
    """A request without a body."""
    return head(b"%s %s HTTP/1.1" % (method, target), b"Host: router.test", *fields)


def post(
    body: bytes = ASK,
    *fields: bytes,
    target: bytes = CHAT,
    method: bytes = b"POST",
    kind: bytes = b"application/json",
) -> bytes:
    """A request with `Content-Length`."""
    framing = (b"Content-Type: " + kind, b"Content-Length: %d" % len(body))
    return get(target, *framing, *fields, method=method) + body


def chunked_post(*pieces: bytes, fields: tuple[bytes, ...] = (), end: bytes = LAST) -> bytes:
    """A request in chunks."""
    framing = (b"Content-Type: application/json", b"Transfer-Encoding: chunked")
    return get(CHAT, *framing, *fields, method=b"POST") + b"".join(map(chunk, pieces)) + end


def chunk(data: bytes) -> bytes:
    """One chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def bytewise(data: bytes) -> tuple[bytes, ...]:
    """Each byte by itself."""
    return tuple(bytes([byte]) for byte in data)


def reply(body: bytes = REPLY, *fields: bytes, first: bytes = b"HTTP/1.1 200 OK") -> bytes:
    """An answer with `Content-Length`; JSON unless a field says otherwise."""
    kind = (
        ()
        if any(f.lower().startswith(b"content-type") for f in fields)
        else (b"Content-Type: application/json",)
    )
    return head(first, *kind, *fields, b"Content-Length: %d" % len(body)) + body


def stream(*fields: bytes) -> bytes:
    """The head of a stream of events."""
    kind = b"Content-Type: text/event-stream"
    return head(b"HTTP/1.1 200 OK", kind, b"Transfer-Encoding: chunked", *fields)


def event(number: int) -> bytes:
    """An event as vLLM sends it."""
    return (
        b'data: {"id":"c-1","object":"chat.completion.chunk","created":1,"model":"tiny",'
        b'"choices":[{"index":0,"delta":{"content":"%d"},"finish_reason":null}]}\n\n' % number
    )


DONE: Final = b"data: [DONE]\n\n"
WELL: Final = says(reply())
