"""A replica that misbehaves as it is asked to: `/KIND/anything` gets an answer of that kind.

It reads requests strictly: what is not exactly one request at a time is noted as wrong.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from random import Random

import grammar
import mutate
import strict
from ledger import Ledger
from scripted_backend import LAST_CHUNK, Call, CallerGoneError, chunk, head

Say = Callable[[Call, bytes, Random], Awaitable[bool]]
"""Answer a request with this token; True: the connection may carry another."""
REFUSAL = b'data: {"error": {"message": "full", "type": "x", "param": null, "code": 503}}\n\n'
STALL_S = 0.3


class BadReplica:
    """The script of one replica. `full`: refuses where another would not."""

    def __init__(self, ledger: Ledger, *, full: bool) -> None:
        self._ledger = ledger
        self._full = full

    async def __call__(self, call: Call) -> None:
        """One connection."""
        data = b""
        while True:
            request, data = await self._request(call, data)
            token = self._ledger.arrived(request, data)
            kind = request.start[1].split(b"/")[1].decode("latin-1")
            if kind.startswith("full"):
                kind = kind if self._full else kind.removeprefix("full-")
            say = SAYS.get(kind, sized)
            if not await say(call, token, Random(token)):
                return

    async def _request(self, call: Call, data: bytes) -> tuple[strict.Message, bytes]:
        while True:
            with contextlib.suppress(strict.UnfinishedError):
                try:
                    request = strict.request(data)
                except strict.NotHttpError as error:
                    self._ledger.wrong.append(f"a replica was sent {data!r}: {error}")
                    raise CallerGoneError from error
                return request, data[request.end :]
            more = await call.reader.read(65_536)
            if not more:
                raise CallerGoneError
            data += more


async def _send(call: Call, data: bytes) -> None:
    try:
        await call.send(data)
    except RuntimeError as error:  # uvloop's word for a connection that is gone.
        raise CallerGoneError from error


async def _dribble(call: Call, data: bytes, rng: Random) -> None:
    """Send in pieces, some after a pause."""
    for piece in mutate.cut(data, rng):
        await _send(call, piece)
        if rng.random() < 0.1:
            await asyncio.sleep(rng.random() * 0.004)


def _body(token: bytes, rng: Random) -> bytes:
    return token + b"." * rng.choice([0, 1, 100, rng.randrange(3000)])


def _framed(token: bytes, rng: Random, *, events: bool = False) -> bytes:
    kind = b"text/event-stream" if events else b"application/json"
    fields = [(b"X-Token", token), (b"Content-Type", kind), (b"Transfer-Encoding", b"chunked")]
    if events:
        event = b"data: {}\n\n"
        body = b"".join([chunk(token + b"\n\n"), *[chunk(event)] * rng.randrange(5), LAST_CHUNK])
    else:
        body = grammar.chunked(_body(token, rng), rng)
    return head(200, b"OK", fields) + body


def _sized(token: bytes, rng: Random, status: int = 200) -> bytes:
    body = _body(token, rng)
    fields = [(b"X-Token", token), (b"Content-Length", b"%d" % len(body))]
    return head(status, b"Status", fields) + body


async def sized(call: Call, token: bytes, rng: Random) -> bool:
    """With a length."""
    await _dribble(call, _sized(token, rng, rng.choice([200, 200, 400, 500])), rng)
    return True


async def chunked(call: Call, token: bytes, rng: Random) -> bool:
    """In chunks."""
    await _dribble(call, _framed(token, rng), rng)
    return True


async def events(call: Call, token: bytes, rng: Random) -> bool:
    """A stream of events."""
    await _dribble(call, _framed(token, rng, events=True), rng)
    return True


async def interim(call: Call, token: bytes, rng: Random) -> bool:
    """Behind interim ones."""
    early = head(103, b"Early Hints", [(b"Link", b"</a>")])
    await _dribble(call, early + head(100, b"Continue", []) + _sized(token, rng), rng)
    return True


async def until_close(call: Call, token: bytes, rng: Random) -> bool:
    """Without a length."""
    await _dribble(call, head(200, b"OK", [(b"X-Token", token)]) + _body(token, rng), rng)
    return False


async def full_503(call: Call, token: bytes, rng: Random) -> bool:
    """No room."""
    await _dribble(call, _sized(token, rng, 503), rng)
    return True


async def full_event(call: Call, token: bytes, rng: Random) -> bool:
    """No room, as a stream says it."""
    fields = [(b"Content-Type", b"text/event-stream"), (b"Transfer-Encoding", b"chunked")]
    said = head(200, b"OK", [(b"X-Token", token), *fields]) + chunk(REFUSAL)
    await _dribble(call, said + (LAST_CHUNK if rng.random() < 0.7 else b""), rng)
    return rng.random() < 0.5


async def cut(call: Call, token: bytes, rng: Random) -> bool:
    """An end too early, in good order or not."""
    whole = rng.choice([_sized, _framed])(token, rng)
    await _dribble(call, whole[: rng.randrange(len(whole))], rng)
    if rng.random() < 0.5:
        call.reset()
    return False


async def wrong(call: Call, token: bytes, rng: Random) -> bool:
    """Something near HTTP."""
    said = rng.choice([_sized, _framed])(token, rng)
    await _dribble(call, mutate.mutated(said, lambda: said, rng), rng)
    return False


async def excess(call: Call, token: bytes, rng: Random) -> bool:
    """Bytes behind the end, at once."""
    await _send(call, _sized(token, rng)[:2000] + _sized(b"evil", rng))
    return False


async def silent(call: Call, token: bytes, rng: Random) -> bool:
    """Nothing at all."""
    await call.gone()
    return False


async def stalls(call: Call, token: bytes, rng: Random) -> bool:
    """Nothing for a while, in the middle."""
    whole = _framed(token, rng, events=rng.random() < 0.5)
    await _send(call, whole[: len(whole) // 2])
    await asyncio.sleep(STALL_S)
    return False


async def tunnel(call: Call, token: bytes, rng: Random) -> bool:
    """Another protocol: an echo."""
    fields = [(b"Upgrade", b"websocket"), (b"Connection", b"Upgrade"), (b"X-Token", token)]
    await _send(call, head(101, b"Switching Protocols", fields))
    while data := await call.reader.read(4096):
        await _send(call, data)
    return False


SAYS: dict[str, Say] = {
    "sized": sized,
    "chunked": chunked,
    "events": events,
    "interim": interim,
    "until-close": until_close,
    "cut": cut,
    "wrong": wrong,
    "excess": excess,
    "silent": silent,
    "stalls": stalls,
    "tunnel": tunnel,
    "full-sized": full_503,
    "full-events": full_event,
}
GOOD = ["sized", "chunked", "events", "interim", "until-close", "full-sized", "full-events"]
BAD = [*GOOD, "cut", "cut", "wrong", "wrong", "excess", "silent", "stalls"]
