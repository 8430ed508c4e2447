"""The table itself: its rows can be missed, and what it prints says so."""

import asyncio

import pytest

from conformance.arrival import read_head
from conformance.play import verdict
from conformance.promise import WELL, Row
from conformance.promises import GROUPS
from conformance.pump import pump
from conformance.replica import Stage
from conformance.table import Outcome, printed, summary

pytestmark = pytest.mark.slow

(REFUSED,) = [rows for group, rows in GROUPS.items() if group.startswith("Refused")]
DANGEROUS = ("Content-Length, then", "two different Content-L", "a bare LF hides", "a chunk longer")


async def through_a_pump(row: Row, *, as_ours: bool) -> str | None:
    """The verdict on a proxy that reads nothing."""
    async with Stage("127.0.0.1") as stage:
        stage.set(WELL)
        async with pump(stage.replicas[0].port) as port:
            return await verdict(row, port, stage, is_ours=as_ours)


async def test_a_proxy_that_reads_nothing_misses_every_refusal() -> None:
    verdicts = await asyncio.gather(*(through_a_pump(row, as_ours=True) for row in REFUSED))
    kept = [row.name for row, wrong in zip(REFUSED, verdicts, strict=True) if wrong is None]
    assert kept == []


@pytest.mark.parametrize("beginning", DANGEROUS)
async def test_peers_are_held_to_the_property(beginning: str) -> None:
    (row,) = [row for row in REFUSED if row.name.startswith(beginning)]
    assert (await through_a_pump(row, as_ours=False) or "").startswith("the replica saw")


@pytest.mark.parametrize(
    ("head", "flaw"),
    [
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked", "twice"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\ncontent-length: 1", "twice"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1", "framed by"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked", "framed by"),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked", "HTTP/1.0"),
        (b"GET / HTTP/1.1", "0 Host"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a", "2 Host"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX : 1", "header line"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n X: 1", "header line"),
        (b"GET / HTTP/1.1\r\nHost: a\nX: 1", "within"),
        (b"GET /\x01 HTTP/1.1\r\nHost: a", "within"),
        (b"GET /a b HTTP/1.1\r\nHost: a", "request line"),
        (b"GET / HTTP/2.0\r\nHost: a", "request line"),
    ],
)
def test_a_replica_reads_strictly(head: bytes, flaw: str) -> None:
    assert flaw in read_head(head).flaw


def test_a_sound_head_has_no_flaw() -> None:
    request = read_head(b"POST /a HTTP/1.1\r\nHost: a\r\nX-A: \t1 \r\nContent-Length: 3")
    assert (request.flaw, request.all(b"x-a"), request.target) == ("", [b"1"], b"/a")


def test_what_is_printed_counts_and_says_what_was_seen() -> None:
    a, b, c = (_row(name) for name in ("A holds.", "B holds.", "C holds."))
    groups = {"One": (a, b), "Two": (c,)}
    outcomes = {
        "ours": Outcome({"A holds.": None, "B holds.": None, "C holds.": None}),
        "nginx": Outcome({"A holds.": None, "B holds.": "status 500"}),
    }
    text = printed(outcomes, groups)
    assert "nginx: status 500" in text
    assert text.splitlines()[-1].split() == ["all", "3", "of", "3", "1", "of", "2"]
    assert "| One | 2 of 2 | 1 of 2 |" in summary(outcomes, groups)
    assert "| Two | 1 of 1 | – |" in summary(outcomes, groups)


def _row(name: str) -> Row:
    return Row(name=name, source="", sends=(), replica=WELL)
