"""Real vLLM servers on the CPU: where their environment is, and how a test gets one.

`ULLAGE_VLLM_VENV` and `ULLAGE_TINY_MODEL` name the environment and the model; by default they are
where `make test` puts them.
"""

import importlib.util
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def _built(variable: str, usual: str, witness: str) -> Path:
    path = Path(os.environ.get(variable) or ROOT / usual)
    if not (path / witness).exists():
        pytest.fail(f"{path / witness} is missing: run `make test`, or set {variable}", False)
    return path


@pytest.fixture(scope="session")
def vllm_venv() -> Path:
    return _built("ULLAGE_VLLM_VENV", ".venv-vllm", "bin/vllm")


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    return _built("ULLAGE_TINY_MODEL", ".build/tiny-model", "config.json")


@pytest.fixture(scope="session")
def serve() -> ModuleType:
    """deploy/vllm_cpu/serve.py, which is a script and not in any package."""
    name = "ullage_deploy_serve"
    spec = importlib.util.spec_from_file_location(name, ROOT / "deploy/vllm_cpu/serve.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    def free_port() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    return free_port


@pytest.fixture(scope="class")
def until_class_ends() -> Iterator[ExitStack]:
    """What is entered here is left when the class's last test has run: two servers at a time."""
    with ExitStack() as stack:
        yield stack
