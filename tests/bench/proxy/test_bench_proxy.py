"""`make bench-proxy` in its quick form: it works and counts truthfully. How fast is no test."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).with_name("bench.py")
PROXIES = ("ours", "nginx")
PORT_BASE = int(os.environ.get("PORT_BASE", "29000")) + 200  # beside a bench that runs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    report = tmp_path_factory.mktemp("bench") / "figures.json"
    done = subprocess.run(
        [sys.executable, BENCH, "--quick", "--only", ",".join(PROXIES), "--json", report],
        env={**os.environ, "PORT_BASE": str(PORT_BASE)},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    whole: dict[str, Any] = json.loads(report.read_text())
    return whole


def proxies(figures: dict[str, Any], load: str) -> dict[str, Any]:
    (found,) = [each["proxies"] for each in figures["loads"] if each["load"] == load]
    assert set(found) == set(PROXIES)
    return dict(found)


def test_every_proxy_is_measured(figures: dict[str, Any]) -> None:
    assert figures["failed"] == {}
    assert [load["unit"] for load in figures["loads"]] == ["request", "chunk"]


@pytest.mark.parametrize("load", ["unary", "streams"])
@pytest.mark.parametrize("name", PROXIES)
def test_every_request_is_served_without_an_error(
    figures: dict[str, Any], load: str, name: str
) -> None:
    proxy = proxies(figures, load)[name]
    assert proxy["errors"] == {}
    assert proxy["answers"] > 0


@pytest.mark.parametrize("name", PROXIES)
def test_every_whole_stream_brings_64_chunks_and_done(figures: dict[str, Any], name: str) -> None:
    proxy = proxies(figures, "streams")[name]
    assert figures["chunks_per_stream"] == 64
    assert proxy["streams"] == proxy["answers"]
    assert proxy["events"] == 65 * proxy["streams"]


@pytest.mark.parametrize("load", ["unary", "streams"])
@pytest.mark.parametrize("name", PROXIES)
def test_cost_is_cpu_over_what_the_backends_sent(
    figures: dict[str, Any], load: str, name: str
) -> None:
    proxy = proxies(figures, load)[name]
    assert proxy["counted"] > 0
    assert proxy["cpu_us_rounds"] == [proxy["cpu_us"]]
    assert 0.0 < proxy["cpu_us"] < 100_000.0
    assert proxy["ratios"].keys() == {"nginx"}
    assert 0.0 < proxy["p50_ms"] <= proxy["p99_ms"]


def test_nginx_is_its_own_yardstick(figures: dict[str, Any]) -> None:
    assert proxies(figures, "unary")["nginx"]["ratios"]["nginx"] == 1.0
