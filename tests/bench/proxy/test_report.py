"""Figures are medians; ratios are medians of each round's own; targets say what was measured."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


def report(rounds: dict[str, list[float]]) -> dict[str, Any]:
    """What the report makes of CPU figures; in a process, for its modules have plain names."""
    program = """
import json, sys
from report import figures, table
from sample import Sample
from targets import judge, rows
from wrk_load import WrkLoad
load = WrkLoad("unary", connections=32)
rounds = {
    name: [Sample({"cpu_us": cpu, "per_s": 1.0, "p50_ms": 1.0, "p99_ms": 2.0}) for cpu in cpus]
    for name, cpus in json.load(sys.stdin).items()
}
found = figures(load, rounds)
judged = judge([found])
print(json.dumps([found, judged, rows(judged), table(load.columns, found)]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(rounds),
        env={"PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
        check=True,
    )
    found, judged, rows, table = json.loads(done.stdout)
    return {"proxies": found["proxies"], "judged": judged, "rows": rows, "table": table}


def test_a_ratio_compares_within_rounds_so_that_a_slow_round_does_not_count() -> None:
    said = report({"ours": [10.0, 30.0, 11.0], "nginx": [10.0, 30.0, 10.0]})
    assert said["proxies"]["ours"]["medians"]["cpu_us"] == 11.0
    assert said["proxies"]["ours"]["ratios"]["cpu_us"] == {"nginx": 1.0}
    assert said["proxies"]["ours"]["spread"]["cpu_us"] == pytest.approx(20 / 11, abs=0.001)


@pytest.mark.parametrize(
    ("cpu_us", "must", "aim"),
    [(15.0, "✓", "✓"), (15.1, "✓", "✗"), (22.0, "✓", "✗"), (22.1, "✗", "✗")],
)
def test_a_limit_itself_is_met(cpu_us: float, must: str, aim: str) -> None:
    said = report({"ours": [cpu_us], "nginx": [10.0]})
    (row,) = said["rows"][1:]
    assert row == [
        "CPU per plain request ÷ nginx", f"{cpu_us / 10:.2f}", "≤ 2.2", must, "≤ 1.5", aim
    ]  # fmt: skip


def test_a_proxy_that_was_not_measured_is_not_compared_with() -> None:
    said = report({"ours": [10.0], "nginx": [10.0]})
    assert "÷ nginx" in said["table"]
    assert "÷ vllm-router" not in said["table"]
    assert [target["over"] for target in said["judged"]] == ["nginx"]
