"""`make bench-proxy` in its quick form: it works and counts truthfully. How fast is no test."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).with_name("bench.py")
LOADS = ("memory", "unary", "streams", "streams-50ms", "streams-1024", "prompts", "half-load")
WRK_LOADS = ("unary", "streams", "streams-50ms", "streams-1024", "prompts")
PORT_BASE = int(os.environ.get("PORT_BASE", "29000")) + 200  # beside a bench that runs

pytestmark = [pytest.mark.slow, pytest.mark.alone]


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    report = tmp_path_factory.mktemp("bench") / "figures.json"
    done = subprocess.run(
        [sys.executable, BENCH, "--quick", "--json", report],
        env={**os.environ, "PORT_BASE": str(PORT_BASE)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    whole: dict[str, Any] = json.loads(report.read_text())
    return whole


def ours(figures: dict[str, Any], load: str) -> dict[str, Any]:
    (found,) = [each["proxies"]["ours"] for each in figures["loads"] if each["load"] == load]
    return dict(found)


def test_every_load_is_measured(figures: dict[str, Any]) -> None:
    assert figures["failed"] == {}
    assert tuple(load["load"] for load in figures["loads"]) == LOADS


@pytest.mark.parametrize("load", LOADS)
def test_every_request_is_served_without_an_error(figures: dict[str, Any], load: str) -> None:
    assert ours(figures, load)["errors"] == {}


@pytest.mark.parametrize("load", ["streams", "streams-50ms", "streams-1024"])
def test_every_whole_stream_brings_64_chunks_and_done(figures: dict[str, Any], load: str) -> None:
    counts = ours(figures, load)["counts"]
    assert figures["chunks_per_stream"] == 64
    assert counts["whole_streams"] == counts["answers"] > 0
    assert counts["events"] == 65 * counts["whole_streams"]


@pytest.mark.parametrize("load", WRK_LOADS)
def test_cost_is_cpu_over_what_the_backends_sent(figures: dict[str, Any], load: str) -> None:
    proxy = ours(figures, load)
    assert proxy["counts"]["counted"] > 0
    assert proxy["rounds"]["cpu_us"] == [proxy["medians"]["cpu_us"]]
    assert 0.0 < proxy["medians"]["cpu_us"] < 100_000.0
    assert 0.0 < proxy["medians"]["p50_ms"] <= proxy["medians"]["p99_ms"]


def test_added_latency_is_the_difference_to_the_same_load_without_a_proxy(
    figures: dict[str, Any],
) -> None:
    (proxies,) = [load["proxies"] for load in figures["loads"] if load["load"] == "half-load"]
    with_it, without = proxies["ours"]["medians"], proxies["no proxy"]["medians"]
    for key in ("p50_ms", "p99_ms"):
        assert with_it[f"added_{key}"] == pytest.approx(with_it[key] - without[key], abs=0.002)


def test_targets_that_need_another_proxy_are_not_judged_without_it(
    figures: dict[str, Any],
) -> None:
    judged = figures["targets"]
    assert {target["over"] for target in judged} == {None}
    assert {target["load"] for target in judged} == {"prompts", "memory"}
    for target in judged:
        assert target["must_met"] or not target["aim_met"]
