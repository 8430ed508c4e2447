"""What vLLM's own scheduler did, recorded, and what is learned from it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ullage_tune.engine_file import engine_of, parse, written
from ullage_tune.gpu import ENGINES, Engine

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

TRUTH = ENGINES["h100-8b"]
RECORD = Path(__file__).parents[1] / "support" / "twin_recording.py"


def learned(vllm_venv: Path, folder: Path, workload: str) -> Path:
    """The engine file that is fitted to a twin's recording."""
    truth, steps, fitted = (folder / name for name in ("truth.toml", "steps.ulg", "fitted.toml"))
    truth.write_text(written(TRUTH, []))
    argv = [vllm_venv / "bin/python", RECORD, workload, "250", truth, steps]
    made = subprocess.run(argv, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[-2_000:]
    fit = [sys.executable, "-m", "ullage_tune", "fit", steps]
    done = subprocess.run(fit, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    fitted.write_text(done.stdout)
    return fitted


def takes_s(engine: Engine, tokens: int, sequences: int, context: int) -> float:
    return engine.steps.step_s(tokens, sequences, context)


def test_parameters_come_back_and_the_lab_runs_with_them(vllm_venv: Path, tmp_path: Path) -> None:
    file = learned(vllm_venv, tmp_path, "mixed")
    found = engine_of(str(file))
    assert found.steps == pytest.approx(TRUTH.steps, rel=0.01)
    assert found == Engine(found.steps, TRUTH.blocks)
    argv = [vllm_venv / "bin/python", "-m", "ullage_tune", "run", "--engine", file]
    argv += ["--workload", "short", "--requests", "30", "--seeds", "1", "--replicas", "1"]
    argv += ["--policy", "round_robin", "--jobs", "1", "--json", tmp_path / "results.json"]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2_000:]
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["rows"][0]["summary"]["failed"] == 0
    too_small = tmp_path / "small.toml"
    too_small.write_text(file.read_text().replace("max_model_len = 131072", "max_model_len = 64"))
    refused = subprocess.run(
        [too_small if each == file else each for each in argv], capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert "small.toml takes 64 at most" in refused.stderr


def test_where_prompts_share_a_beginning_steps_are_known_though_context_is_estimated(
    vllm_venv: Path, tmp_path: Path
) -> None:
    found = parse(learned(vllm_venv, tmp_path, "chat").read_text())
    assert found.steps.base_s == pytest.approx(TRUTH.steps.base_s, rel=0.02)
    assert found.steps.per_token_s == pytest.approx(TRUTH.steps.per_token_s, rel=0.02)
    for step in ((1, 1, 500), (20, 20, 40_000), (4000, 40, 80_000), (60, 60, 120_000)):
        assert takes_s(found, *step) == pytest.approx(takes_s(TRUTH, *step), rel=0.05)
