"""`/status`: all that people look at again and again; counts that only grow; nobody's text."""

import asyncio
from random import Random
from typing import Any

import orjson
import pytest

from explained_site import COMPLETIONS, keyed, router_with, site
from mission import BY_SCORE
from rolling.seen import page_of
from snapshots import document, snapshot
from ullage_router.config import Limits
from ullage_router.core.ask import Ask
from ullage_router.core.fleet import Fleet, fleet_of, hear
from ullage_router.core.lineup import Standing
from ullage_router.core.policy import AffinityPolicy, Policy, Way
from ullage_router.core.rules import Rules
from ullage_router.http.proxy import Proxy
from ullage_router.http.upstream import Failure
from ullage_router.replicas import replicas_page
from ullage_router.router import Router
from ullage_router.status import MOST_HOT, MOST_RECENT, hot_keys, status_page, told, usual_speeds
from ullage_router.tally import SECONDS_BOUNDS
from ullage_shared.snapshot import State

A, B, C = "http://a:8000", "http://b:8000", "http://c:8000"
SIDECAR = "http://sidecar:9400"
WEIGHTED = Rules(Policy(way=Way.WEIGHTED))


async def status(router: Router, uptime_s: float = 1.0, **options: bool) -> Any:
    """As the page says, in JSON and back."""
    proxy = Proxy(router, Limits(), asyncio.get_running_loop(), Random(1), lambda: None)
    try:
        return orjson.loads(orjson.dumps(await status_page(proxy, {}, uptime_s, **options)))
    finally:
        proxy.close()


async def test_an_empty_fleet_has_an_empty_status() -> None:
    page = await status(Router(Fleet(), Rules(), Random(1)))
    assert (page["replicas"], page["recent"], page["sidecars"]) == ([], [], [])
    assert (page["hot_keys"], page["refusals"], page["clients"]) == ([], {}, 0)
    assert page["routing_by"] == "no_replica"
    assert set(page["decisions"].values()) == {0}
    assert page["queue"] == {
        "length": 0,
        "bytes": 0,
        "oldest_s": None,
        "max_requests": 256,
        "max_wait_s": 2.0,
        "queued": 0,
        "refused": {"full_queue": 0, "displaced": 0, "waited": 0, "second_try": 0},
    }


async def test_it_says_what_the_rolling_upgrade_wants_to_know() -> None:
    router, _ = router_with(
        snapshot(A, id="gpu-01/a", age_s=0.25), snapshot(B, state=State.RAMPING)
    )
    page = page_of(await status(router, 12.34, stopping=True))
    assert (page.uptime_s, page.stopping) == (12.3, True)
    well, ramping = page.replicas
    assert (well.url, well.trouble, well.boot_id, well.models) == (A, "", "boot", {"tiny"})
    assert well.age_s is not None
    assert well.is_at("gpu-01")
    assert "is ramping" in ramping.trouble


async def test_it_says_what_runs_and_by_which_rules() -> None:
    page = await status(router_with(snapshot(A), rules=WEIGHTED)[0], 12.34, stopping=True)
    assert (page["way"], page["floor"], page["routing_by"]) == ("weighted", 0.15, "score")
    assert (page["uptime_s"], page["stopping"]) == (12.3, True)
    assert page["overload"] == {"state": "open", "episodes": 0}


async def test_its_rows_are_those_of_replicas_with_what_is_counted_beside() -> None:
    router, _ = router_with(*(snapshot(f"http://r{n}:8000", 0.9) for n in range(100)), listed=(B,))
    chosen = router.choose(Ask()).replica
    assert chosen is not None
    _, tally = router.dispatch(chosen)
    tally.first_byte_s.observe(0.3)
    router.failed(chosen, Failure.CONNECT, "Connection refused")
    tally.cut += 2
    page = await status(router)
    own = ("first_byte_counts", "failures", "ejections", "now", "mood", "say")
    rows = [{k: v for k, v in row.items() if k not in own} for row in page["replicas"]]
    table = replicas_page(router, {}, router.now_s())["replicas"]
    assert rows == orjson.loads(orjson.dumps(table))
    assert page["first_byte_bounds_s"] == list(SECONDS_BOUNDS)
    counted = {row["id"]: row for row in page["replicas"]}
    one, other = counted.pop(chosen.id), counted.popitem()[1]
    assert one["first_byte_counts"] == [int(bound == 0.5) for bound in (*SECONDS_BOUNDS, None)]
    assert one["failures"] == {"connect": 1, "cut": 2}
    assert other["first_byte_counts"] == [0] * (len(SECONDS_BOUNDS) + 1)
    assert (other["failures"], other["ejections"]) == ({}, 0)


@pytest.mark.parametrize(
    ("changes", "now", "mood", "say"),
    [
        ({}, "serving", "good", ""),
        ({"state": "ramping", "reason": "young"}, "ramping", "mild", "young"),
        ({"eligible": False, "why_not": "it failed"}, "left out", "bad", "it failed"),
        ({"standing": "silent", "reason": "why"}, "silent", "mild", "why"),
        ({"standing": "silent", "sidecar": None, "reason": "none"}, "silent", "good", ""),
        (
            {"standing": "silent", "sidecar": None, "eligible": False, "why_not": "it failed"},
            *("left out", "bad", "it failed"),
        ),
        ({"standing": "full", "eligible": False, "why_not": "full"}, "full", "bad", "full"),
        (
            {"standing": "draining", "eligible": False, "why_not": "it is", "reason": "wished"},
            *("draining", "mild", "it is; wished"),
        ),
        ({"standing": "hung", "eligible": False, "why_not": "it is"}, "hung", "bad", "it is"),
        ({"stalled": True, "reason": "no step"}, "stalled", "mild", "no step"),
        ({"prefill_tokens_per_s": 4_500.0}, "serving", "good", ""),
        (
            {"prefill_tokens_per_s": 4_000.0},
            *("slow", "mild", "computes 4,000 prompt tokens/s, where 9,000 are usual"),
        ),
    ],
)
def test_each_row_says_in_words_what_the_replica_is_and_whether_that_is_well(
    changes: dict[str, Any], now: str, mood: str, say: str
) -> None:
    row = {
        "standing": "eligible",
        "eligible": True,
        "state": "serving",
        "sidecar": SIDECAR,
        "why_not": "",
        "stalled": False,
        "reason": "",
        "prefill_tokens_per_s": None,
    } | changes
    assert told(row, 9_000.0) == {"now": now, "mood": mood, "say": say}


def test_a_slow_one_is_slow_beside_those_of_the_same_models_only() -> None:
    """Less than half as fast as is usual; of two, as the faster one is."""
    speeds = {A: 4_000.0, B: 9_000.0, C: 2_000.0}
    heard = [
        snapshot(url, models=("big",) if url == C else ("tiny",), prefill_tokens_per_s=speed)
        for url, speed in speeds.items()
    ]
    replicas = hear(fleet_of([]), SIDECAR, document(*heard), 0.0)[0].replicas
    usual_per_s = usual_speeds(replicas.values())
    assert usual_per_s == {frozenset({"tiny"}): 9_000.0, frozenset({"big"}): 2_000.0}
    assert usual_speeds(fleet_of([A]).replicas.values()) == {}


@pytest.mark.parametrize("standing", Standing)
def test_every_standing_is_well_or_passes_or_is_bad(standing: Standing) -> None:
    eligible = standing in (Standing.ELIGIBLE, Standing.SILENT)
    row = {"standing": standing, "eligible": eligible, "state": None, "sidecar": SIDECAR}
    row |= {"prefill_tokens_per_s": None, "stalled": False}
    passing = ("silent", "starting", "warming", "draining")
    mood = "mild" if standing in passing else "good" if eligible else "bad"
    assert told(row | {"why_not": "", "reason": ""})["mood"] == mood


async def test_while_it_is_made_whatever_else_there_is_has_its_turn() -> None:
    router, _ = router_with(*(snapshot(f"http://r{n}:8000", 0.9) for n in range(320)))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.0)

    task = asyncio.ensure_future(others())
    assert len((await status(router))["replicas"]) == 320
    task.cancel()
    assert turns >= 10


async def test_decisions_are_counted_and_the_latest_told_in_short_newest_first() -> None:
    router, clock = router_with(snapshot(A, 0.9, id="a"))
    for number in range(MOST_RECENT + 10):
        router.choose(Ask(prompt_bytes=number), waited_s=0.1234567)
    router.fleet = Fleet()
    clock.now_s += 1.0
    router.choose(Ask(), tried=("http://a:8000",))
    page = await status(router)
    assert page["decisions"] == dict.fromkeys(page["decisions"], 0) | {
        "score": MOST_RECENT + 10,
        "no_replica": 1,
    }
    assert len(page["recent"]) == MOST_RECENT
    last, before = page["recent"][:2]
    assert last["at"] >= before["at"]
    assert (last["replica"], last["why"], last["score"], last["second_try"]) == (
        *(None, "no_replica", None),
        True,
    )
    assert before == {
        "at": before["at"],
        "replica": "a",
        "why": "score",
        "score": 0.9,
        "prompt_tokens": router.prompt_tokens(Ask(prompt_bytes=MOST_RECENT + 9)),
        "waited_s": 0.123,
        "second_try": False,
    }


async def test_nothing_of_a_clients_text_is_in_it() -> None:
    rules = Rules(BY_SCORE, affinity=AffinityPolicy(hot_per_s=0.01))
    async with site(2, rules, scores=(0.9, 0.9)) as it:
        body = b'{"model":"tell-no-model","prompt":"tell-no-prompt"}'
        headers = [*keyed(b"tell-no-key"), (b"Authorization", b"Bearer tell-no-token")]
        for _ in range(3):
            await it.ask(body, headers)
        await it.ask(b'{"prompt":', headers, path=COMPLETIONS + "?tell-no-query")
        async with it.session.get(f"{it.admin}/status") as answer:
            text = await answer.text()
        page = orjson.loads(text)
        assert "tell-no" not in text
        assert {row["homes"] for row in page["hot_keys"]} == {2}
        assert page["clients"] == 4
        assert sum(row["dispatched"] for row in page["replicas"]) >= 3


def test_a_hot_key_is_eight_digits_with_its_rate_and_homes() -> None:
    """As many as its rate needs, and as there are."""
    router, _ = router_with(snapshot(A, 0.9, id="a"), rules=WEIGHTED)
    for _ in range(300):
        router.choose(Ask(keys=(0xFEDC_BA98_7654_3210,)))
    assert hot_keys(router) == [{"key": "fedcba98", "per_s": 60.0, "homes": 1, "home": "a"}]
    router.fleet = Fleet()
    assert hot_keys(router)[0]["home"] is None


def test_no_more_hot_keys_are_told_than_people_read() -> None:
    router, _ = router_with(snapshot(A, 0.9), rules=WEIGHTED)
    for key in range(MOST_HOT + 5):
        for _ in range(251 + key):
            router.choose(Ask(keys=(key << 32,)))
    told = hot_keys(router)
    assert [row["key"] for row in told] == [f"{24 - n:08x}" for n in range(MOST_HOT)]


def test_by_least_wait_no_key_is_hot() -> None:
    router, _ = router_with(snapshot(A, 0.9), rules=Rules())
    for _ in range(300):
        router.choose(Ask(keys=(1,), shares=(1.0,)))
    assert hot_keys(router) == []
