"""A real Prometheus looks at a real router and sidecar while things go wrong: every panel of the
dashboard has something to show, and shows what happened.

The story, under load: one replica is drained and comes back, one dies, then all are full.
"""

import asyncio
import itertools
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import aiohttp
import pytest

import system_packages
from grafana.panel import Panel
from grafana.rows import ROWS
from live_engine import MOST_SEQS, LiveEngine
from prometheus_process import SCRAPES_S, Prometheus, prometheus
from router_process import RouterProcess, router_process
from sidecar_process import Sidecar

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("observability")]

PANELS = {f"{row.question}: {panel.title}": panel for row in ROWS for panel in row.panels}
NOBODY = "http://127.0.0.1:1"
"""A sidecar that does not answer."""
ROUTER_FILE = """
workers = 2
[breaker]
set_aside_s = 0.05
[queue]
max_wait_s = 0.5
"""
SIDECAR_FILE = """
window.span_s = 1.0
depletion.slope_s = 1.0
health.interval_s = 60.0
"""
"""Load shows at once. That a server has died is found out by requests, not by its health."""
CLIENTS = 12
PAUSE_S = 0.05


@dataclass
class Story:
    """What was seen, and when."""

    prometheus: Prometheus
    pages: dict[str, bytes]
    """`/metrics` of router and sidecar, in the midst of it."""
    begin_s: float
    end_s: float

    def shown(self, expression: str) -> list[dict[str, dict[str, str]]]:
        """The series of an expression of the dashboard, over all of the story."""
        for variable in ("router", "replica", "node"):
            expression = expression.replace(f"${variable}", ".*")
        expression = expression.replace("$__rate_interval", f"{8 * SCRAPES_S:g}s")
        return self.prometheus.over(expression, self.begin_s, self.end_s)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("observed")
    loop = asyncio.Runner()
    with loop:
        site = _site(folder)
        sidecar, router, engines = loop.run(anext(site))
        with prometheus(folder, str(router.admin), sidecar.listen) as looks:
            begin_s = time.time()
            pages = loop.run(_happen(sidecar, router, engines))
            yield Story(looks, pages, begin_s, time.time())
        with suppress(StopAsyncIteration):
            loop.run(anext(site))


async def _site(
    folder: Path,
) -> AsyncIterator[tuple[Sidecar, RouterProcess, tuple[LiveEngine, ...]]]:
    """Three engines, their sidecar, a router with two workers."""
    engines = tuple(LiveEngine(name, number) for number, name in enumerate("abc", 1))
    for engine in engines:
        await engine.serve()
    (folder / "sidecar.toml").write_text(SIDECAR_FILE)
    (folder / "router.toml").write_text(ROUTER_FILE)
    sidecar = Sidecar(folder, 0)
    sidecar.listen = "127.0.0.1:0"
    await sidecar.start(
        "--config", str(folder / "sidecar.toml"),
        *(f"--engine={engine.name}={engine.url}" for engine in engines),
    )  # fmt: skip
    sidecar.listen = next(line for line in sidecar.said if "listening" in line)
    sidecar.listen = sidecar.listen.split("http=")[1].split()[0]
    living = [asyncio.ensure_future(engine.live(str(sidecar.socket))) for engine in engines]
    watched = ("--sidecar", f"http://{sidecar.listen}", "--sidecar", NOBODY)
    async with router_process("--config", str(folder / "router.toml"), *watched) as router:
        yield sidecar, router, engines
    for one in living:
        one.cancel()
    await asyncio.gather(*living, return_exceptions=True)
    await sidecar.stop()
    for engine in engines:
        await engine.stop()


async def _happen(
    sidecar: Sidecar, router: RouterProcess, engines: tuple[LiveEngine, ...]
) -> dict[str, bytes]:
    a, b, c = engines
    async with _load(router):
        await asyncio.sleep(2.5)
        async with _operator(sidecar) as tell:
            await tell("drain", b.name)
            await asyncio.sleep(2.0)
            await tell("undrain", b.name)
        await asyncio.sleep(1.0)
        await c.stop()
        await asyncio.sleep(2.0)
        for step in range(20):
            a.pretends = b.pretends = (MOST_SEQS, step // 4, step / 20)
            await asyncio.sleep(0.05)
        a.pretends = b.pretends = c.pretends = (MOST_SEQS, 6, 1.0)
        await asyncio.sleep(3.0)
        pages = {"router": await _page(str(router.admin)), "sidecar": await _page(sidecar.listen)}
        a.pretends = b.pretends = c.pretends = None
        await asyncio.sleep(3.0)
    return pages


@asynccontextmanager
async def _load(router: RouterProcess) -> AsyncIterator[None]:
    """Clients that each ask again and again, now with a known beginning and now with a new one."""
    dice, numbers = Random(1), itertools.count()
    url = f"http://{router.address}/v1/completions"

    async def ask_on(client: aiohttp.ClientSession) -> None:
        while True:
            number = next(numbers)
            head = f"{number if number % 4 == 0 else dice.randrange(5)}:".ljust(2048, "x")
            body = {"prompt": f"{head}{number}" + "y" * dice.randrange(4000), "stream": True}
            path = "/v1/nothing" if number % 40 == 0 else ""
            with suppress(aiohttp.ClientError):
                async with client.post(url + path, json=body) as answer:
                    await answer.read()
            await asyncio.sleep(PAUSE_S)

    async with aiohttp.ClientSession() as client:
        asking = [asyncio.ensure_future(ask_on(client)) for _ in range(CLIENTS)]
        yield
        for one in asking:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


@asynccontextmanager
async def _operator(sidecar: Sidecar) -> AsyncIterator:
    connector = aiohttp.UnixConnector(f"{sidecar.socket}.control")
    async with aiohttp.ClientSession(connector=connector) as client:

        async def tell(verb: str, engine: str) -> None:
            async with client.post(f"http://sidecar/{verb}?engine={engine}") as answer:
                assert answer.status == 200

        yield tell


async def _page(address: str) -> bytes:
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"http://{address}/metrics") as answer,
    ):
        return await answer.read()


@pytest.mark.parametrize("panel", PANELS.values(), ids=PANELS)
def test_every_query_of_a_panel_has_data(story: Story, panel: Panel) -> None:
    for expression, _ in panel.queries:
        assert story.shown(expression), expression


@pytest.mark.parametrize("panel", PANELS.values(), ids=PANELS)
def test_no_line_of_a_panel_is_drawn_twice_under_one_name(story: Story, panel: Panel) -> None:
    names = []
    for expression, legend in panel.queries:
        for series in story.shown(expression):
            name = legend
            for label, value in series["metric"].items():
                name = name.replace(f"{{{{{label}}}}}", value)
            names.append(name)
    assert len(names) == len(set(names))
    assert not any("{{" in name for name in names)


def test_the_drained_replica_is_seen_to_be_drained_and_no_other(story: Story) -> None:
    drained = 'ullage_router_replica_standing{standing="draining"} == 1'
    assert [row["metric"]["replica"] for row in story.shown(drained)] == ["n/b"]
    told = "ullage_sidecar_drained == 1"
    assert [row["metric"]["engine"] for row in story.shown(told)] == ["b"]


def test_the_dead_replica_is_seen_to_fail_and_to_be_ejected(story: Story) -> None:
    failed = 'sum by (replica) (ullage_router_failures_total{kind="connect"}) > 0'
    assert [row["metric"]["replica"] for row in story.shown(failed)] == ["n/c"]
    ejected = story.shown("ullage_router_replica_ejected == 1")
    assert [row["metric"]["replica"] for row in ejected] == ["n/c"]
    assert story.shown("ullage_router_second_tries_total > 0")


def test_the_overload_is_seen_at_the_gate_and_in_the_parts_of_scores(story: Story) -> None:
    for state in ("open", "queueing", "refusing"):
        assert story.shown(f'ullage_router_overload{{state="{state}"}} == 1'), state
    assert story.shown('ullage_router_no_capacity_total{how="waited"} > 0')
    spent = story.shown('ullage_sidecar_score_part{term="free"} < 0.05')
    assert {row["metric"]["engine"] for row in spent} == {"a", "b", "c"}


def test_what_was_expected_in_caches_was_found_there(story: Story) -> None:
    expected = "sum(ullage_router_cached_prompt_tokens_total)"
    found = "sum(ullage_sidecar_prefix_cache_hit_tokens_total)"
    (told,), (there,) = story.shown(expected), story.shown(found)
    assert told["values"][-1] > 10_000.0
    assert there["values"][-1] == pytest.approx(told["values"][-1], rel=0.25)


def test_prometheus_reaches_both_and_evaluates_every_rule(story: Story) -> None:
    targets = story.prometheus.get("targets", state="active")["activeTargets"]
    assert {t["labels"]["job"] for t in targets} == {"ullage-router", "ullage-sidecar"}
    assert [t["lastError"] for t in targets] == ["", ""]
    rules = [r for g in story.prometheus.get("rules")["groups"] for r in g["rules"]]
    assert {rule["health"] for rule in rules} == {"ok"}
    alerts = story.prometheus.get("alerts")["alerts"]
    assert not [alert for alert in alerts if "<error" in str(alert["annotations"])]
    begun = {row["metric"]["alertname"] for row in story.shown('ALERTS{alertstate=~".+"}')}
    assert begun >= {"UllageNeedsCapacity", "UllageReplicaEjected", "UllageSidecarFailing"}


@pytest.mark.parametrize("of", ["router", "sidecar"])
def test_promtool_finds_nothing_wrong_with_a_page(story: Story, of: str) -> None:
    promtool = str(system_packages.find("promtool"))
    done = subprocess.run(
        [promtool, "check", "metrics"], input=story.pages[of], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout.decode() + done.stderr.decode()) == (0, "")
