"""Every test that deploy/THREATS.md names is there, and has tests."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "deploy" / "THREATS.md").read_text(encoding="utf-8")


def test_every_test_that_it_names_is_there() -> None:
    named = []
    for row in filter(lambda line: line.startswith("|"), PAGE.splitlines()):
        folder = Path()
        for name in re.findall(r"`([a-z_0-9/]+(?:\.py|/))`", row):
            path = folder / name if "/" not in name else Path(name)
            folder = path.parent
            named.append(path)
    assert len(named) > 20
    for path in named:
        at = ROOT / "tests" / path
        files = [at] if at.suffix else list(at.rglob("test_*.py"))
        assert any("def test_" in file.read_text(encoding="utf-8") for file in files), path


def test_every_row_says_what_could_be_tried_and_what_stops_it() -> None:
    rows = [row.split("|")[1:-1] for row in PAGE.splitlines() if row.startswith("|")][2:]
    for row in rows:
        assert len(row) == 5
        _, _, tried, stops, not_stopped = (cell.strip() for cell in row)
        assert tried
        assert ".py`" in stops or not_stopped or stops == "the same", tried


def test_the_readme_links_it() -> None:
    assert "(deploy/THREATS.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
