"""Every report of the field is answered by a test that is there."""

from pathlib import Path

import pytest

from conformance.promises import GROUPS
from conformance.reports import COVERED

ROOT = Path(__file__).parents[2]
PROMISES = [row.name for rows in GROUPS.values() for row in rows]


def test_each_of_the_25_is_covered() -> None:
    assert sorted(COVERED) == list(range(1, 26))


@pytest.mark.parametrize("report", COVERED)
def test_what_covers_it_is_there(report: int) -> None:
    for test in COVERED[report]:
        file, _, function = test.partition("::")
        if function:
            assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8"), test
        else:
            assert len([name for name in PROMISES if name.startswith(test)]) == 1, test
