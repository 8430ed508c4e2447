"""Real vLLM servers on the CPU: how a test gets one."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from vllm_built import tiny_model, vllm_venv

__all__ = ["tiny_model", "vllm_venv"]

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # Before xdist looks at the marks.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of a file share servers, and so do the files of a folder: one worker runs them, in
    their order."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(HERE).parts[0]))


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
