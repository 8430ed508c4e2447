"""Real vLLM servers on the CPU: where their environment is, and how a test gets one.

`ULLAGE_VLLM_VENV` and `ULLAGE_TINY_MODEL` name the environment and the model; by default they are
where `make test` puts them.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # Before xdist looks at the marks.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of a file share servers, and so do the files of a folder: one worker runs them, in
    their order."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(HERE).parts[0]))


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
