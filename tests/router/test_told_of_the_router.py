"""Metrics of what the router expects, knows and is: caches, hot keys, sidecars, its own limits."""

import re
from pathlib import Path
from random import Random

import aiohttp
import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

import ullage_router.http
from data_plane import data_plane
from explained_site import START_S
from hand_clock import Clock
from mission import AS_ASKED
from router_metrics import scrape, value
from scripted_backend import Backend, answering, response
from sidecar_stand_in import SidecarStandIn
from snapshots import document, fleet_with, snapshot
from ullage_router.config import Config
from ullage_router.core.ask import Ask
from ullage_router.core.policy import Policy, RetryPolicy, Way
from ullage_router.core.rules import Rules
from ullage_router.feed import SidecarFeed
from ullage_router.http.errors import CODES, NoRoom
from ullage_router.http.upstream import Failure
from ullage_router.metrics import registry
from ullage_router.pace import Pace
from ullage_router.router import Router
from ullage_shared.feed import Poll

A = "http://a:8000"
SIDECAR = "http://node:9400"
WELL = answering(response(b"{}"))


@pytest.mark.parametrize(
    ("uncached", "cached"),
    [
        pytest.param(400, 600.0, id="some of it"),
        pytest.param(1_000, 0.0, id="nothing"),
        pytest.param(0, 0.0, id="nobody expects anything"),
        pytest.param(1_016, 0.0, id="more than there is"),
    ],
)
async def test_prompt_tokens_are_counted_and_those_expected_in_the_cache(
    uncached: int, cached: float
) -> None:
    async with data_plane(fleet=fleet_with({A: 0.9}, now_s=1e9)) as plane:
        hold, _ = plane.router.dispatch(plane.router.fleet.replicas[A], 1_000, uncached)
        hold.release()
        metrics = scrape(plane.router, plane.proxy)
    assert value(metrics, "prompt_tokens_total", replica="a:8000") == 1_000.0
    assert value(metrics, "cached_prompt_tokens_total", replica="a:8000") == cached


def asked(way: Way, times: int) -> tuple[Router, Clock]:
    """A router that was asked so often for the same, at one moment."""
    clock = Clock(START_S)
    rules = Rules(Policy(way=way), AS_ASKED.affinity)
    router = Router(fleet_with({A: 0.9}, now_s=START_S), rules, Random(1), clock)
    for _ in range(times):
        router.choose(Ask(keys=(7,), shares=(1.0,)))
    return router, clock


def test_a_key_is_hot_as_long_as_it_needs_more_than_one_replica() -> None:
    most = round(AS_ASKED.hot_per_s * 5.0)  # The count of a key decays with 5 s.
    assert len(asked(Way.WEIGHTED, most)[0].hot_keys()) == 0
    router, clock = asked(Way.WEIGHTED, most + 2)
    assert len(router.hot_keys()) == 1
    clock.now_s += 1.0
    assert len(router.hot_keys()) == 0


def test_by_least_wait_no_key_is_hot_and_before_any_decision_none_is() -> None:
    assert len(asked(Way.LEAST_WAIT, 300)[0].hot_keys()) == 0
    assert len(asked(Way.WEIGHTED, 0)[0].hot_keys()) == 0


async def test_a_sidecar_fails_while_its_latest_look_did_and_its_age_is_of_the_last_good_one() -> (
    None
):
    async with (
        SidecarStandIn(document(snapshot(A))) as sidecar,
        aiohttp.ClientSession() as session,
        data_plane(A) as plane,
    ):
        plane.router.now_s = clock = Clock(START_S)
        feed = SidecarFeed(plane.router, session, sidecar.url, Pace())

        async def told() -> tuple[float | None, float | None]:
            look = await feed._look(0.5)
            assert look is not None
            feed._note(look)
            clock.now_s += 2.0
            metrics = scrape(plane.router, plane.proxy, {SIDECAR: feed})
            named = {"sidecar": SIDECAR}
            age = value(metrics, "sidecar_heard_age_seconds", **named)
            return value(metrics, "sidecar_failing", **named), age

        sidecar.published = b"rubbish"
        assert await told() == (1.0, None)
        sidecar.published = document(snapshot(A))
        assert await told() == (0.0, 2.0)
        sidecar.status = 500
        assert await told() == (1.0, 4.0)


async def test_a_retry_budget_that_is_spent_says_so_and_recovers() -> None:
    async with data_plane(A) as plane:
        plane.router.now_s = clock = Clock(START_S)
        plane.proxy.configure(Config(retry=RetryPolicy(share=0.0, spare=1)))
        assert value(scrape(plane.router, plane.proxy), "second_tries_exhausted") == 0.0
        assert plane.proxy.budget.spend(clock.now_s)
        assert value(scrape(plane.router, plane.proxy), "second_tries_exhausted") == 1.0
        clock.now_s += 11.0
        assert value(scrape(plane.router, plane.proxy), "second_tries_exhausted") == 0.0


async def test_what_may_happen_has_a_series_before_it_does() -> None:
    """What appears at 1 has no rate."""
    async with aiohttp.ClientSession() as session, data_plane(A) as plane:
        feed = SidecarFeed(plane.router, session, SIDECAR, Pace())
        metrics = scrape(plane.router, plane.proxy, {SIDECAR: feed})
    for name, label, wanted in (
        ("sidecar_polls", "result", Poll),
        ("failures", "kind", Failure),
        ("refusals", "code", CODES),
        ("no_capacity", "how", NoRoom),
    ):
        samples = {s.labels[label]: s.value for s in metrics[name].samples}
        assert samples == dict.fromkeys(map(str, wanted), 0.0), name


def test_every_code_of_a_refusal_is_listed_once() -> None:
    folder = Path(ullage_router.http.__file__).parent
    text = "\n".join(file.read_text() for file in folder.glob("*.py"))
    written = set(re.findall(r'Refusal\(\s*\d{3},\s*"(\w+)"', text)) | {"no_capacity"}
    assert written == set(CODES)
    assert len(CODES) == len(set(CODES))


async def test_the_page_tells_of_the_process_and_its_limits() -> None:
    async with Backend(WELL) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        text = generate_latest(registry(plane.router, plane.proxy, {}, ())).decode()
        client.close()
    values = {s.name: s.value for f in text_string_to_metric_families(text) for s in f.samples}
    assert values["ullage_router_client_connections_limit"] == plane.proxy.max_connections > 0
    assert 0 < values["process_open_fds"] < values["process_max_fds"]
    assert values["process_cpu_seconds_total"] > 0.0
    assert values["ullage_router_event_loop_lateness_seconds_count"] == 0.0
