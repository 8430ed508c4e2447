"""One pair of servers for all the files here, which run in their order: the last one kills one."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from routed_pair import Pair, pair_of_servers


@pytest.fixture(scope="package")
def processes(
    tmp_path_factory: pytest.TempPathFactory,
    vllm_venv: Path,
    tiny_model: Path,
    free_port: Callable[[], int],
) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("choosing")
    with pair_of_servers(folder, vllm_venv, tiny_model, free_port) as processes:
        yield processes


@pytest.fixture
async def pair(processes: dict[str, Any], tmp_path: Path) -> AsyncIterator[Pair]:
    timeout = aiohttp.ClientTimeout(total=120.0)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
        pair = Pair(**processes, http=http, folder=tmp_path)
        await pair.until_idle()
        yield pair
