"""Real vLLM servers on the CPU: where their environment is.

`ULLAGE_VLLM_VENV` and `ULLAGE_TINY_MODEL` name the environment and the model; by default they are
where `make test` puts them.
"""

import os
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]


def _built(variable: str, usual: str, witness: str) -> Path:
    path = Path(os.environ.get(variable) or _ROOT / usual)
    if not (path / witness).exists():
        pytest.fail(f"{path / witness} is missing: run `make test`, or set {variable}", False)
    return path


@pytest.fixture(scope="session")
def vllm_venv() -> Path:
    return _built("ULLAGE_VLLM_VENV", ".venv-vllm", "bin/vllm")


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    return _built("ULLAGE_TINY_MODEL", ".build/tiny-model", "config.json")
