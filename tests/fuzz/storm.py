"""The whole data plane between clients and replicas that misbehave, and well-behaved ones beside.

* Every connection is answered or closed within a bound, by the router itself.
* A well-behaved client always gets its right answers; no answer reaches another client.
* A replica is sent exactly one request at a time, as it was asked.
* Afterwards nothing is in flight, and no client, task or file is left.
"""

import asyncio
import contextlib
import gc
from pathlib import Path
from random import Random

import mutate
import strict
from bad_replica import BAD, GOOD, BadReplica
from data_plane import BY_LOAD, Plane, data_plane, eventually
from ledger import Asked, Ledger
from raw_client import Client, request
from scripted_backend import Backend
from ullage_router.config import Limits, RetryPolicy
from ullage_router.core.breaker import BreakerPolicy

AT_ONCE = 40
ANSWERED_WITHIN_S = 20.0
RULES = BY_LOAD._replace(breaker=BreakerPolicy(set_aside_s=0.0, max_ejected_share=0.0))
"""Nobody is left out, whatever he does."""
LIMITS = Limits(
    max_head_bytes=8_192,
    max_body_bytes=16_384,
    head_timeout_s=0.4,
    body_timeout_s=0.4,
    idle_client_s=0.4,
    stalled_client_s=2.0,
    first_byte_timeout_s=0.8,
    idle_upstream_s=0.3,
)


async def storm(seed: int, connections: int) -> int:
    """Let that many bad connections loose. Raises what went wrong; returns how many there were."""
    try:
        await _storm(seed, connections)
    except BaseException as found:
        again = f"run.py --storm {seed} --connections {connections}"
        found.add_note(
            f"again, timing permitting: PYTHONPATH=tests/support python tests/fuzz/{again}"
        )
        raise
    return connections


async def _storm(seed: int, connections: int) -> None:
    rng, ledger = Random(seed), Ledger()
    gc.collect()
    tasks, sockets = len(asyncio.all_tasks()), _sockets()
    async with (
        Backend(BadReplica(ledger, full=True)) as a,
        Backend(BadReplica(ledger, full=False)) as b,
        data_plane(a.url, b.url, limits=LIMITS, rules=RULES) as plane,
    ):
        plane.proxy.budget.policy = RetryPolicy(share=1.0, spare=1_000_000)
        good = [asyncio.ensure_future(_well_behaved(plane, ledger, -n, rng)) for n in (1, 2)]
        few = asyncio.Semaphore(AT_ONCE)
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(1, connections + 1):
                    group.create_task(_bad(plane, ledger, number, Random(f"{seed}/{number}"), few))
        finally:
            for task in good:
                task.cancel()
            ended = await asyncio.gather(*good, return_exceptions=True)
        failed = [e for e in ended if not isinstance(e, asyncio.CancelledError)]
        assert not failed, failed
        await eventually(lambda: not plane.proxy.clients and not plane.in_flight)
        await eventually(lambda: not plane.proxy.pool.idle)
        await eventually(lambda: not a.open and not b.open)
    assert not ledger.wrong, ledger.wrong[:5]
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks)
    await eventually(lambda: _sockets() <= sockets)


async def _well_behaved(plane: Plane, ledger: Ledger, number: int, rng: Random) -> None:
    """Ask one after the other, for ever; each answer must be the right one."""
    while True:
        client = await Client.connect(plane.address)
        try:
            while True:
                http_1_0 = rng.random() < 0.1
                kind = rng.choice(GOOD)
                token, asked = _ask(ledger, number, kind, as_is=True, http_1_0=http_1_0)
                async with asyncio.timeout(ANSWERED_WITHIN_S):
                    answer = await client.ask(asked)
                assert answer.one(b"x-token") == token, (token, answer)
                assert answer.body.startswith(token), (token, answer)
                if answer.one(b"connection") == b"close":
                    break
                await asyncio.sleep(0.001)
        finally:
            client.reset()


def _ask(
    ledger: Ledger, number: int, kind: str, *, as_is: bool, http_1_0: bool = False
) -> tuple[bytes, bytes]:
    target, body = b"/%s/x" % kind.encode(), b"{%d}" % number + b"-" * (number * 37 % 3000)
    token = ledger.enter(Asked(number, target, body, as_is))
    asked = request(target, body, headers=[(b"X-Token", token)])
    return token, asked.replace(b" HTTP/1.1", b" HTTP/1.0", 1) if http_1_0 else asked


async def _bad(
    plane: Plane, ledger: Ledger, number: int, rng: Random, few: asyncio.Semaphore
) -> None:
    """One connection of a client that misbehaves."""
    async with few:
        client = await Client.connect(plane.address)
        try:
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                if rng.random() < 0.1:
                    await _tunnel(client, ledger, number, rng)
                else:
                    await _requests(client, ledger, number, rng)
        except (ConnectionError, RuntimeError):
            pass  # By the router or by ourselves; uvloop says it either way.
        finally:
            client.reset()


async def _requests(client: Client, ledger: Ledger, number: int, rng: Random) -> None:
    as_is = rng.random() < 0.5
    old = rng.random() < 0.1
    count = 1 if old else rng.randrange(1, 5)
    asked = [_ask(ledger, number, rng.choice(BAD), as_is=as_is, http_1_0=old) for _ in range(count)]
    sent = b"".join(wire for _, wire in asked)
    if not as_is:
        sent = mutate.mutated(sent, lambda: request(b"/sized/y", b"spliced"), rng)
    reading = asyncio.ensure_future(_read(client, slowly=rng.random() < 0.2))
    try:
        for piece in mutate.cut(sent, rng)[:400]:
            await client.send(piece)
            if rng.random() < 0.05:
                await asyncio.sleep(rng.random() * 0.01)
        leaves = rng.choice(["stays", "stays", "stays", "half", "reset", "close"])
        if leaves == "half":
            client.writer.write_eof()
        elif leaves != "stays":
            await asyncio.sleep(rng.random() * 0.02)
            client.reset() if leaves == "reset" else client.close()
        got, in_order = await reading
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    _judge(got, ledger, number, in_order=in_order)


async def _read(client: Client, *, slowly: bool) -> tuple[bytes, bool]:
    """All that comes, and whether it ended in good order."""
    got = bytearray()
    try:
        while piece := await client.reader.read(100 if slowly else 65_536):
            got += piece
            if slowly:
                await asyncio.sleep(0.002)
    except ConnectionError:
        return bytes(got), False
    return bytes(got), True


def _judge(got: bytes, ledger: Ledger, number: int, *, in_order: bool) -> None:
    """Whole answers, one after the other; the last may be cut."""
    while got:
        try:
            answer = strict.response(got, bodiless=False, ended=in_order)
        except strict.UnfinishedError:
            return
        except strict.NotHttpError as error:
            ledger.wrong.append(f"client {number} got {got[:500]!r}: {error}")
            return
        ledger.answered(number, answer)
        got = got[answer.end :]


async def _tunnel(client: Client, ledger: Ledger, number: int, rng: Random) -> None:
    """Change to an echo; what comes back must be what was sent."""
    target = b"/tunnel/x"
    token = ledger.enter(Asked(number, target, b"", as_is=True))
    upgrade = [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket"), (b"X-Token", token)]
    sent = request(target, headers=upgrade)
    noise = rng.randbytes(rng.choice([0, 1, 5000, 40_000]))
    early = rng.randrange(len(noise) + 1) if rng.random() < 0.5 else 0
    await client.send(sent + noise[:early])
    answer = await client.reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 101 "), answer
    assert token in answer, answer
    for piece in mutate.cut(noise[early:], rng):
        await client.send(piece)
    assert await client.reader.readexactly(len(noise)) == noise
    with contextlib.suppress(ConnectionError):
        if rng.random() < 0.5:
            client.writer.write_eof()
            assert await client.reader.read() == b""


def _sockets() -> int:
    """Open ones of this process. (Other files are the event loop's own, made when first needed.)"""
    count = 0
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # The folder's own.
            count += str(file.readlink()).startswith("socket:")
    return count
