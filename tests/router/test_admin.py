"""What operators see: the table of replicas, the record of decisions, health."""

import asyncio
from random import Random

import aiohttp
import orjson
import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry

from snapshots import document, snapshot
from ullage_router.admin import admin_app, health_page
from ullage_router.config import Limits
from ullage_router.core.ask import Ask
from ullage_router.core.breaker import Breaker, Condition
from ullage_router.core.fleet import Fleet, fleet_of, hear, with_breaker
from ullage_router.core.lineup import Standing
from ullage_router.core.rules import Rules
from ullage_router.explain import Reasons, decisions_page
from ullage_router.feed import SidecarFeed
from ullage_router.http.proxy import Proxy
from ullage_router.pace import Pace
from ullage_router.replicas import replica_row, replicas_page
from ullage_router.router import Router
from ullage_shared.snapshot import Parts, Snapshot, State

A, B, C = (f"http://{name}:8000" for name in "abc")
SIDECAR = "http://node:9400"


def router_with(*heard: Snapshot, listed: tuple[str, ...] = (), now_s: float = 10.0) -> Router:
    fleet, faults = hear(fleet_of(listed), SIDECAR, document(*heard), now_s)
    assert not faults
    return Router(fleet, Rules(), Random(1), lambda: now_s)


def row(router: Router, url: str, now_s: float = 10.0) -> dict[str, object]:
    return replica_row(router, router.fleet.replicas[url], Reasons(router), now_s)


def test_a_row_says_what_the_router_knows() -> None:
    router = router_with(
        snapshot(
            A,
            0.7,
            id="gpu-01/engine",
            running=3,
            waiting=1,
            age_s=0.25,
            step_s=0.02,
            parts=Parts(0.4, 0.2, 0.1, 1.0, 1.0),
        )
    )
    router.dispatch(router.fleet.replicas[A])
    assert row(router, A, 10.5) == {
        "id": "gpu-01/engine",
        "url": A,
        "dp_rank": None,
        "eligible": True,
        "standing": "eligible",
        "why_not": "",
        "capacity_score": 0.7,
        "state": "serving",
        "boot_id": "boot",
        "stalled": False,
        "reason": "",
        "age_s": 0.75,
        "in_flight": 1,
        "dispatched": 1,
        "free_block_ratio": 0.5,
        "running": 3,
        "waiting": 1,
        "max_num_seqs": 16,
        "exhaustion_s": None,
        "parts": {"free": 0.4, "running": 0.2, "waiting": 0.1, "penalty": 1.0, "warm_up": 1.0},
        "step_s": 0.02,
        "decode_tokens_per_s": None,
        "prefill_tokens_per_s": None,
        "models": ["tiny"],
        "sidecar": SIDECAR,
    }


WHY_NOT = [
    (snapshot(A, 0.15), False, "full", "score is not above the floor of 0.15"),
    (snapshot(A, None), True, "silent", ""),
    (snapshot(A, 0.9, age_s=60.0), True, "silent", ""),
    (snapshot(A, 0.9, state=State.DOWN), False, "down", "it is down"),
    (snapshot(A, 0.9, state=State.HUNG), False, "hung", "it is hung"),
    (snapshot(A, 0.9, state=State.RAMPING), True, "eligible", ""),
]


@pytest.mark.parametrize(("heard", "eligible", "standing", "why_not"), WHY_NOT)
def test_a_row_says_why_not(heard: Snapshot, eligible: bool, standing: str, why_not: str) -> None:
    shown = row(router_with(heard), A)
    assert (shown["eligible"], shown["standing"], shown["why_not"]) == (eligible, standing, why_not)


def test_a_silent_replica_says_whose_silence_it_is() -> None:
    assert row(router_with(listed=(B,)), B)["reason"] == "no sidecar speaks for it"
    stale = router_with(snapshot(A, 0.9, age_s=60.0))
    assert row(stale, A)["reason"] == "its sidecar is silent"
    unknown = router_with(snapshot(A, None, reason="its plugin is silent"))
    assert row(unknown, A)["reason"] == "its plugin is silent"


def test_a_replica_set_aside_says_so() -> None:
    router = router_with(snapshot(A, 0.9), snapshot(B, 0.9))
    struck = Breaker(Condition.STRUCK, until_s=11.0)
    router.fleet = with_breaker(router.fleet, A, struck)
    assert (row(router, A)["eligible"], row(router, A)["why_not"]) == (
        False,
        "gave no answer, or had no room, a moment ago",
    )


def test_a_replica_that_was_never_heard_of_has_a_row_too() -> None:
    shown = row(router_with(listed=(B,)), B)
    assert (shown["id"], shown["state"], shown["age_s"]) == ("b:8000", None, None)
    assert shown["eligible"]


@pytest.mark.parametrize(
    ("heard", "listed", "routing_by"),
    [
        ((snapshot(A, 0.9),), (), "score"),
        ((snapshot(A, 0.9),), (B,), "score"),
        ((), (B,), "own_counts"),
        ((snapshot(A, None),), (), "own_counts"),
        ((snapshot(A, None, state=State.DOWN),), (B,), "own_counts"),
        ((snapshot(A, 0.1),), (B,), "score"),
        ((snapshot(A, 0.1),), (), "full"),
        ((), (), "no_replica"),
    ],
)
def test_the_page_says_by_what_the_next_request_is_routed(
    heard: tuple[Snapshot, ...], listed: tuple[str, ...], routing_by: str
) -> None:
    router = router_with(*heard, listed=listed)
    assert replicas_page(router, {}, 10.0)["routing_by"] == routing_by
    if router.fleet.replicas and routing_by == "own_counts":
        assert router.choose(Ask()).why == "own_counts"


def test_looking_at_the_page_counts_nothing() -> None:
    """Report 3: a look must not make entries."""
    router = router_with(snapshot(A), snapshot(B), listed=(C,))
    before = repr(router.in_flight), dict(router.tallies)
    replicas_page(router, {}, 10.0)
    assert (repr(router.in_flight), dict(router.tallies)) == before


def test_decisions_can_be_read_with_their_reasons() -> None:
    router = router_with(snapshot(A, 0.7, id="gpu-01/engine"))
    router.choose(Ask(prompt_bytes=400), request_id=b"abc")
    router.choose(Ask(), tried=[A])
    second, first = decisions_page(router)
    assert first.pop("at") == pytest.approx(second.pop("at"), abs=60.0)
    assert first == {
        "replica": "gpu-01/engine",
        "why": "wait",
        "score": 0.7,
        "in_flight": 0,
        "second_try": False,
        "request_id": "abc",
        "prompt_tokens": 100,
        "waited_s": 0.0,
        "candidates": [
            {
                "replica": "gpu-01/engine",
                "score": 0.7,
                "trend": 1.0,
                "effective": 0.7,
                "weight": 1.0,
                "odds": 1.0,
                "home": False,
                "wait_s": pytest.approx((2 * 100 + 150 * (8 + 8)) * 1e-4),
                "uncached_tokens": 100,
            }
        ],
    }
    assert second == {
        "replica": None,
        "why": "no_replica",
        "score": None,
        "in_flight": 0,
        "second_try": True,
        "request_id": "",
        "prompt_tokens": 0,
        "waited_s": 0.0,
        "candidates": [],
    }


@pytest.mark.parametrize(
    ("router", "page"),
    [
        (router_with(snapshot(A, 0.9)), (200, 1, 1, 1)),
        (router_with(snapshot(A, 0.1), listed=(B,)), (200, 1, 2, 2)),
        (router_with(snapshot(A, 0.1)), (200, 0, 1, 1)),
        (router_with(snapshot(A, 0.9, state=State.DOWN)), (503, 0, 0, 1)),
        (router_with(), (503, 0, 0, 0)),
    ],
)
def test_health_is_whether_any_replica_serves_for_a_full_fleet_is_no_illness(
    router: Router, page: tuple[int, int, int, int]
) -> None:
    """Else a flood takes every router out of its load balancer at once."""
    status, eligible, serving, replicas = page
    content = {"eligible": eligible, "serving": serving, "replicas": replicas, "stopping": False}
    assert health_page(router) == (status, content)


def test_a_router_that_stops_is_not_well() -> None:
    status, page = health_page(router_with(snapshot(A, 0.9)), stopping=True)
    assert (status, page["stopping"]) == (503, True)


async def test_the_admin_port_serves_every_page() -> None:
    router = router_with(snapshot(A, 0.9), listed=(B,))
    router.choose(Ask())
    async with aiohttp.ClientSession() as session:
        feeds = {SIDECAR: SidecarFeed(router, session, SIDECAR, Pace())}
        proxy = Proxy(router, Limits(), asyncio.get_running_loop(), Random(1), lambda: None)
        app = admin_app(proxy, feeds, CollectorRegistry())
        async with TestClient(TestServer(app)) as client:
            for path in ("/status", "/replicas", "/decisions", "/healthz"):
                answer = await client.get(path)
                assert (answer.status, answer.content_type) == (200, "application/json")
                assert orjson.loads(await answer.read())
            table = orjson.loads(await (await client.get("/replicas")).read())
            assert [r["url"] for r in table["replicas"]] == [A, B]
            assert table["sidecars"] == [
                {"url": SIDECAR, "watched": False, "problem": "", "faults": []}
            ]
            assert (await client.get("/metrics")).status == 200
            assert (await client.get("/")).content_type == "text/html"
            assert (await client.get("/nothing")).status == 404
        proxy.close()


def test_an_empty_fleet_is_an_empty_table() -> None:
    page = replicas_page(Router(Fleet(), Rules(), Random(1)), {}, 0.0)
    assert page == {"routing_by": "no_replica", "replicas": [], "sidecars": [], "sources": []}


def test_every_standing_that_bars_a_replica_has_words() -> None:
    barring = set(Standing) - {Standing.ELIGIBLE}
    states = {Standing(s.value): s for s in State if s.value in set(Standing)}
    for standing in barring - {Standing.SILENT, Standing.FULL, Standing.LOST}:
        assert row(router_with(snapshot(A, 0.9, state=states[standing])), A)["why_not"]
