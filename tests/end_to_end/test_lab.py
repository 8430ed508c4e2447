"""The whole lab, as a user runs it, in vLLM's own environment."""

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


def lab(
    vllm_venv: Path, out: Path, *flags: str, command: str = "run"
) -> tuple[dict[str, Any], str]:
    """Run `ullage-tune`; its results, and what it printed."""
    out.mkdir(exist_ok=True)
    argv = [vllm_venv / "bin/python", "-m", "ullage_tune", command, "--json", out / "results.json"]
    done = subprocess.run([*argv, *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads((out / "results.json").read_text()), done.stdout


def test_the_same_seed_gives_the_same_figures_and_nothing_is_lost_but_with_a_replica(
    vllm_venv: Path, tmp_path: Path
) -> None:
    flags = ["--workload", "system", "--requests", "80", "--seeds", "1", "--load", "0.5"]
    flags += ["--replicas", "3", "--jobs", "2", "--scenario", "plain", "--scenario", "lost"]
    same = ("ullage", "ullage_least_wait")  # One policy by two names.
    for policy in (*same, "ullage_weighted", "least_in_flight", "dynamo"):
        flags += ["--policy", policy]
    plain: dict[str, dict[str, Any]] = {}
    lost: dict[str, dict[str, Any]] = {}
    results, _ = lab(vllm_venv, tmp_path, *flags)
    for row in results["rows"]:
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
    # Questions that go where their system prompt is known find it in the cache.
    assert plain["ullage"]["hit_rate"] > plain["least_in_flight"]["hit_rate"]


def test_a_search_ends_with_what_to_paste_or_says_that_nothing_is_better(
    vllm_venv: Path, tmp_path: Path
) -> None:
    flags = ["--workload", "short", "--requests", "40", "--replicas", "2", "--load", "0.9"]
    flags += ["--trials", "3", "--seeds", "1", "--jobs", "2", "--way", "weighted"]
    results, printed = lab(vllm_venv, tmp_path, *flags, command="search")
    search, rows = results["search"], results["rows"]
    assert [trial["number"] for trial in search["trials"]] == [0, 1, 2, 3]
    assert {row["seed"] for row in rows if row["policy"] == "default"} >= {0}
    # Other settings give other figures: they have reached the sidecars and the router.
    figures = {json.dumps(row["summary"]["ttft_curve_s"]) for row in rows if row["seed"] == 0}
    assert len(figures) > 1
    if search["better"]:
        text = printed.partition("Better than")[2].partition("\n")[2]
        tables = search["trials"][search["best"]]
        assert tomllib.loads(text) == {**tables["sidecar"], **tables["router"]}
    else:
        assert "No better than" in printed
