"""A sidecar that lies, or is broken, harms only itself: beside an honest one, at a router and
through an aggregator, each lie in its turn.

After each: the honest sidecar's replica stands as it says, its requests are served, the liar's
fault is told of by name, and once it speaks the truth it is heard.
"""

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from aggregators import aggregator
from data_plane import eventually
from raw_client import request
from scripted_backend import Backend, Call, answering, response
from serving import Serving, serving
from sidecar_stand_in import SidecarStandIn
from snapshots import document, snapshot
from ullage_router.config import Config
from ullage_shared.peer import MOST_BYTES
from ullage_shared.snapshot import encode

X = "http://127.0.0.1:1"
"""Where the liar says that it has a replica: nobody is there."""
HELLO = answering(response(b"hello"))


def said(**changes: Any) -> bytes:
    """A document with a replica of the liar's, some fields in it replaced by what is no value."""
    content = json.loads(encode(document(snapshot(X, 0.9, id="liar/x"))))
    content["replicas"][0].update(changes)
    return json.dumps(content).encode()  # NaN and Infinity are written as such.


LIES = {
    "NaN": said(capacity_score=float("nan")),
    "infinite": said(waiting_depth=float("inf")),
    "too large a number": said(capacity_score=1.0).replace(b"1.0", b"1e999", 1),
    "negative": said(capacity_score=-0.1),
    "huge": said(capacity_score=1e308),
    "huge count": said(free_blocks=2**70),
    "negative count": said(running=-1),
    "negative age": said(age_s=-5.0),
    "endless age": said(age_s=1e300),
    "text for a number": said(capacity_score="1.0"),
    "a list for a number": said(capacity_score=[1.0]),
    "truth for a number": said(capacity_score=True),
    "a number for text": said(id=7),
    "no id": said(id=""),
    "a long id": said(id="x" * 2000),
    "an unknown state": said(state="perfect"),
    "a file": said(url="file:///etc/passwd"),
    "a socket": said(url="unix:/run/ullage/readings.sock.control"),
    "a path": said(url="http://127.0.0.1:1/admin"),
    "nested without end": b"[" * 1_000_000,
    "nothing": b"",
    "gzip, not asked for": gzip.compress(said()),
}


class Scene:
    """An honest sidecar with a replica, a liar, and a router that hears both, perhaps through an
    aggregator."""

    def __init__(self, router: Serving, url: str, faults: Callable[[], Awaitable[str]]) -> None:
        self.router = router
        self.url = url
        self.faults = faults

    async def rows(self) -> dict[str, Any]:
        page = await self.router.page("/replicas")
        return {row["url"]: row for row in page["replicas"]}

    async def is_well(self) -> None:
        """The honest one's replica stands as it says, and answers."""
        row = (await self.rows())[self.url]
        assert (row["standing"], row["capacity_score"]) == ("eligible", 0.5)
        client = await self.router.client()
        for _ in range(3):
            assert (await client.ask(request(body=b"{}"))).body == b"hello"


@asynccontextmanager
async def scene(liar: str, honest: SidecarStandIn, url: str, how: str) -> AsyncIterator[Scene]:
    honest.published = document(snapshot(url, 0.5, id="honest/a"))
    if how == "router":
        quick = Config(sidecars=(liar, honest.url), poll_interval_s=0.02)
        async with serving(quick) as router:

            async def faults() -> str:
                page = await router.page("/replicas")
                (it,) = (s for s in page["sidecars"] if s["url"] == liar)
                return f"{it['problem']} {it['faults']}"

            yield Scene(router, url, faults)
        return
    async with (
        aggregator(liar, honest.url, report_interval_s=0.1) as agg,
        serving(Config(sidecars=(agg.url,), poll_interval_s=0.02)) as router,
    ):

        async def of_aggregator() -> str:
            feed = agg.it.feeds[liar]
            disputed = (await agg.get("/healthz"))["disputed"]
            return f"{feed.problem} {feed.faults} {disputed}"

        yield Scene(router, url, of_aggregator)


BOTH = pytest.mark.parametrize("how", ["router", "aggregator"])


@BOTH
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
async def test_a_lie_costs_the_liar_alone(lie: bytes, how: str) -> None:
    async with (
        Backend(HELLO) as replica,
        SidecarStandIn(lie) as liar,
        SidecarStandIn(b"") as honest,
        scene(liar.url, honest, replica.url, how) as it,
    ):
        await it.is_well()
        assert X not in await it.rows()
        assert len((await it.faults()).strip("() ")) > 10
        liar.published = document(snapshot(X, 0.9, id="liar/x"))
        await until(it, lambda rows: X in rows)


async def until(it: Scene, good: Callable[[dict[str, Any]], bool]) -> None:
    async with asyncio.timeout(10.0):
        while not good(await it.rows()):  # noqa: ASYNC110 -- a page is asked for
            await asyncio.sleep(0.02)


@BOTH
@pytest.mark.parametrize("ts", [0.0, -1e18, 4e9, 1e300])
async def test_a_clock_that_is_wrong_by_ages_changes_nothing(ts: float, how: str) -> None:
    """`ts` is for people: a node's wall clock decides nothing."""
    async with (
        Backend(HELLO) as replica,
        SidecarStandIn(document(snapshot(X, 0.9, id="liar/x", ts=ts))) as liar,
        SidecarStandIn(b"") as honest,
        scene(liar.url, honest, replica.url, how) as it,
    ):
        rows = await it.rows()
        assert rows[X]["standing"] == "eligible"
        assert rows[X]["age_s"] < 1.0
        await it.is_well()


@BOTH
@pytest.mark.parametrize(
    "lie",
    [{"id": "liar/x"}, {"id": "honest/a"}, {"id": "liar/x", "seq": 2**63 - 1, "boot_id": "new"}],
)
async def test_whoever_claims_anothers_replica_does_not_get_it(
    lie: dict[str, Any], how: str
) -> None:
    async with (
        Backend(HELLO) as replica,
        SidecarStandIn(document()) as liar,
        SidecarStandIn(b"") as honest,
        scene(liar.url, honest, replica.url, how) as it,
    ):
        liar.published = document(snapshot(replica.url, 0.0, **lie))
        looks = liar.looks
        await eventually(lambda: liar.looks > looks + 5)
        await it.is_well()
        if lie["id"] != "honest/a":
            assert f"{honest.url} speaks for {replica.url}" in await it.faults()


async def test_whoever_takes_anothers_name_makes_both_go_by_their_addresses() -> None:
    """Names are for people; nothing is chosen by one."""
    async with (
        Backend(HELLO) as replica,
        SidecarStandIn(document(snapshot(X, 0.0, id="honest/a"))) as liar,
        SidecarStandIn(b"") as honest,
        scene(liar.url, honest, replica.url, "router") as it,
    ):
        await it.is_well()
        assert {url: row["id"] for url, row in (await it.rows()).items()} == {
            url: url.removeprefix("http://") for url in (X, replica.url)
        }


# What never ends


def sending(head: bytes, pieces: Callable[[], bytes], pause_s: float = 0.0) -> Any:
    """A script: this head, then pieces until nobody takes them; it counts in its list."""
    sent = [0]

    async def script(call: Call) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, RuntimeError):  # It is gone.
            await call.reader.readuntil(b"\r\n\r\n")
            await call.send(head)
            while True:
                piece = pieces()
                await call.send(piece)
                sent[0] += len(piece)
                if pause_s:
                    await asyncio.sleep(pause_s)

    return script, sent


OK = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n"
GIGABYTE = OK % b"application/json" + b"Content-Length: 1073741824\r\n\r\n"
LINES = OK % b"application/x-ndjson" + b"\r\n"
_bomb = zlib.compressobj(9, zlib.DEFLATED, 31)
BOMB = _bomb.compress(b" " * 300_000_000) + _bomb.flush()


@BOTH
@pytest.mark.parametrize("head", [GIGABYTE, LINES], ids=["document", "line"])
async def test_of_what_has_no_end_no_more_is_read_than_may_be(head: bytes, how: str) -> None:
    script, sent = sending(head, lambda: b" " * 65_536)
    async with (
        Backend(script) as liar,
        Backend(HELLO) as replica,
        SidecarStandIn(b"") as honest,
        scene(liar.url, honest, replica.url, how) as it,
    ):
        await it.is_well()
        faults = await it.faults()
        assert "larger than" in faults or "no answer within" in faults
        connections = liar.connections
        assert sent[0] <= connections * 2 * MOST_BYTES


@BOTH
@pytest.mark.parametrize("head", [GIGABYTE, LINES], ids=["document", "line"])
async def test_one_that_drips_is_given_up(
    head: bytes, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte at a time is not an answer: the time to answer is that of all of it."""
    monkeypatch.setattr("ullage_shared.feed._TIMEOUT_S", 0.2)
    script, _ = sending(head, lambda: b" ", 0.02)
    async with (
        Backend(script) as liar,
        Backend(HELLO) as replica,
        SidecarStandIn(b"") as honest,
        scene(liar.url, honest, replica.url, how) as it,
    ):
        await it.is_well()
        assert "within 0.2 s" in await it.faults()
        connections = liar.connections
        await eventually(lambda: liar.connections > connections)


@BOTH
async def test_a_little_that_would_become_a_lot_stays_a_little(how: str) -> None:
    """Compressed, though nobody asked for that: 300 MB in 300 KB. It is not unpacked."""
    head = OK % b"application/json" + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    async with (
        Backend(answering(head % len(BOMB) + BOMB)) as liar,
        Backend(HELLO) as replica,
        SidecarStandIn(b"") as honest,
        scene(liar.url, honest, replica.url, how) as it,
    ):
        await it.is_well()
        assert "snapshot document: " in await it.faults()
