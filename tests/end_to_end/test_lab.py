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


def by_policy(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["policy"]: row["summary"] for row in results["rows"]}


def test_the_same_seed_gives_the_same_figures_and_nothing_is_lost(
    vllm_venv: Path, tmp_path: Path
) -> None:
    flags = ["--workload", "chat", "--requests", "80", "--seeds", "1", "--load", "0.5"]
    flags += ["--replicas", "3", "--jobs", "2", "--policy", "ullage_least_wait"]
    again = by_policy(lab(vllm_venv, tmp_path / "b", *flags))
    for policy in ("ullage", "least_in_flight", "dynamo", "omniscient"):
        flags += ["--policy", policy]
    first = by_policy(lab(vllm_venv, tmp_path / "a", *flags))
    assert first["ullage_least_wait"] == again["ullage_least_wait"]
    for summary in first.values():
        assert (summary["refused"], summary["failed"]) == (0, 0)
        assert 0.0 < summary["ttft_p50_s"] <= summary["ttft_p99_s"] < 5.0
    # Turns of a talk that go where the last one went find it in the cache.
    assert first["ullage_least_wait"]["hit_rate"] > first["least_in_flight"]["hit_rate"]


def test_a_lost_replica_loses_no_request_that_had_no_answer_yet(
    vllm_venv: Path, tmp_path: Path
) -> None:
    flags = ["--workload", "short", "--requests", "100", "--seeds", "1", "--load", "0.5"]
    flags += ["--replicas", "3", "--jobs", "2", "--scenario", "lost"]
    for policy in ("ullage", "ullage_least_wait", "round_robin"):
        flags += ["--policy", policy]
    for summary in by_policy(lab(vllm_venv, tmp_path, *flags)).values():
        assert summary["refused"] == 0
        assert summary["failed"] <= 0.4 * 100  # What the lost one was in the midst of.
