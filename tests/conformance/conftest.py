"""Each of our configurations runs once, as a process, for all of the table."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from conformance.sites import Site, site


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def our_site(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Callable[[str], Awaitable[Site]]]:
    """Our router in the configuration of that name; started when it is first wanted."""
    folder = tmp_path_factory.mktemp("conformance")
    running: dict[str, Site] = {}
    async with AsyncExitStack() as stack:

        async def start(name: str) -> Site:
            if name not in running:
                running[name] = await stack.enter_async_context(site("ours", name, folder))
            return running[name]

        yield start
