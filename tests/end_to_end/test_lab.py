"""The whole lab, as a user runs it, in vLLM's own environment."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


def lab(vllm_venv: Path, out: Path, *flags: str) -> dict[str, Any]:
    """Run `ullage-tune run`; its results."""
    out.mkdir(exist_ok=True)
    argv = [vllm_venv / "bin/python", "-m", "ullage_tune", "run", "--json", out / "results.json"]
    done = subprocess.run([*argv, *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads((out / "results.json").read_text())


def test_the_same_seed_gives_the_same_figures_and_nothing_is_lost_but_with_a_replica(
    vllm_venv: Path, tmp_path: Path
) -> None:
    flags = ["--workload", "chat", "--requests", "80", "--seeds", "1", "--load", "0.5"]
    flags += ["--replicas", "3", "--jobs", "2", "--scenario", "plain", "--scenario", "lost"]
    same = ("ullage", "ullage_least_wait")  # One policy by two names.
    for policy in (*same, "ullage_weighted", "least_in_flight", "dynamo"):
        flags += ["--policy", policy]
    plain: dict[str, dict[str, Any]] = {}
    lost: dict[str, dict[str, Any]] = {}
    for row in lab(vllm_venv, tmp_path, *flags)["rows"]:
        row["summary"].pop("wall_s")  # What it took is another thing each time.
        (lost if row["cell"]["scenario"] else plain)[row["policy"]] = row["summary"]
    assert len(plain) == len(lost) == 5
    for summaries in (plain, lost):
        assert summaries[same[0]] == summaries[same[1]]
    for summary in plain.values():
        assert (summary["refused"], summary["failed"]) == (0, 0)
        assert 0.0 < summary["ttft_p50_s"] <= summary["ttft_p99_s"] < 5.0
    for summary in lost.values():
        assert summary["refused"] == 0
        assert summary["failed"] <= 0.4 * 80  # What the lost one was in the midst of.
    # Turns of a talk that go where the last one went find it in the cache.
    assert plain["ullage"]["hit_rate"] > plain["least_in_flight"]["hit_rate"]
