"""Our router keeps every promise of the table."""

from collections.abc import Awaitable, Callable

import pytest

from conformance.play import verdict
from conformance.promise import Row
from conformance.promises import GROUPS
from conformance.sites import OUR_SITES, Site

pytestmark = pytest.mark.slow

ROWS = [pytest.param(row, id=row.name) for rows in GROUPS.values() for row in rows]


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("row", ROWS)
async def test_promise(row: Row, our_site: Callable[[str], Awaitable[Site]]) -> None:
    site = await our_site(row.site)
    wrong = await verdict(row, site.port, site.stage, is_ours=True)
    assert wrong is None, f"{row.name} ({row.source}): {wrong}"


def test_no_two_promises_have_the_same_name() -> None:
    names = [row.name for rows in GROUPS.values() for row in rows]
    assert len(names) == len(set(names))


def test_every_row_is_on_a_site_that_there_is() -> None:
    assert {row.site for rows in GROUPS.values() for row in rows} == set(OUR_SITES)
