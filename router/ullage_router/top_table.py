"""The table of replicas as lines of text, for `ullage-router top`: pure, no terminal.

Rules
* Units are in the columns' names, what is unknown is `-`, and no cell but the last has a space.
* Whatever came over the wire is shown without what a terminal would obey.
* A narrow terminal loses columns, the least needed first; why a replica gets nothing it never
  loses: that moves to a line of its own.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from math import isinf
from typing import Any, Final, NamedTuple
from unicodedata import east_asian_width

from ullage_router.looks import Key, Since, key_of
from ullage_shared.plain import plain

LEAST_WIDTH: Final = 40
_WHY_WIDTH: Final = 24
"""With less room than that, or than it takes, it stands on a line of its own."""
_BAR: Final = 10
_MOODS: Final = ("bad", "mild", "good")


class Line(NamedTuple):
    """One line, and how it is to look: `bad`, `mild`, `good`, `head`, or like any other."""

    text: str
    mood: str = ""


class View(NamedTuple):
    """What of it is wanted."""

    order: int = 0
    """Index of `ORDERS`."""
    only_troubled: bool = False
    skip: int = 0
    """Rows that are scrolled past."""


class Row(NamedTuple):
    """A replica."""

    page: Mapping[str, Any]
    share: float | None
    p50_s: float | None
    p90_s: float | None

    @property
    def troubled(self) -> bool:
        """Is there anything to say of it?"""
        return self.page["mood"] != "good" or bool(self.page["say"])


def _natural(row: Row) -> Any:
    return [(int(part), "") if part.isdecimal() else (0, part) for part in _parts(row.page["id"])]


def _parts(name: str) -> list[str]:
    return [part for part in re.split(r"([0-9]+)", name) if part]


def _down(value: float | None) -> float:
    """The largest first, what is unknown last."""
    return float("inf") if value is None else -value


ORDERS: Final[Sequence[tuple[str, Callable[[Row], Any]]]] = (
    ("problems", lambda row: (_MOODS.index(row.page["mood"]), not row.troubled)),
    ("name", lambda _: 0),
    ("score", lambda row: _down(row.page["capacity_score"])),
    ("share", lambda row: _down(row.share)),
    ("first byte", lambda row: _down(row.p90_s)),
)
"""How rows may be ordered; among equals by name."""


def rows_of(since: Since, view: View) -> list[Row]:
    """The replicas that are wanted, in order."""
    rows = [_row(since, page, key_of(page)) for page in since.page["replicas"]]
    wanted = [row for row in rows if row.troubled or not view.only_troubled]
    return sorted(sorted(wanted, key=_natural), key=ORDERS[view.order][1])


def _row(since: Since, page: Mapping[str, Any], key: Key) -> Row:
    return Row(page, since.share(key), since.ttft_s(key, 0.5), since.ttft_s(key, 0.9))


def number(value: float | None, digits: int = 2) -> str:
    """As a cell."""
    if value is None:
        return "-"
    return ">320" if isinf(value) else f"{value:.{digits}f}"


def cells(text: str) -> int:
    """How wide it stands on a terminal."""
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)


def cut(text: str, width: int) -> str:
    """So much of it as fits."""
    if cells(text) <= width:
        return text
    kept = ""
    for char in text:
        if cells(kept + char) > width - 1:
            break
        kept += char
    return kept + "~"


def cut_in_front(text: str, width: int) -> str:
    """Likewise, its end: names differ there."""
    return text if cells(text) <= width else "~" + cut(text[::-1], width)[-2::-1]


class Column(NamedTuple):
    """One of the table."""

    name: str
    of: Callable[[Row], str]
    rank: int = 0
    """Those with the highest go first where there is no room."""
    left: bool = False
    cut: Callable[[str, int], str] = cut
    """What does with less room."""


COLUMNS: Final = (
    Column("STATE", lambda row: plain(row.page["now"]).replace(" ", "-"), left=True),
    Column(
        "REPLICA",
        lambda row: plain(row.page["id"]).replace(" ", "_"),
        0,
        left=True,
        cut=cut_in_front,
    ),
    Column("SCORE", lambda row: number(row.page["capacity_score"])),
    Column("FLIGHT", lambda row: str(row.page["in_flight"])),
    Column("SHARE%", lambda row: number(None if row.share is None else 100.0 * row.share, 1)),
    Column("P50_S", lambda row: number(row.p50_s, 3), 4),
    Column("P90_S", lambda row: number(row.p90_s, 3), 1),
    Column("RUN", lambda row: number(row.page["running"], 0), 3),
    Column("WAIT", lambda row: number(row.page["waiting"], 0), 2),
    Column("FREE%", lambda row: _percent(row.page["free_block_ratio"]), 5),
    Column("AGE_S", lambda row: number(row.page["age_s"]), 6),
)


def _percent(ratio: float | None) -> str:
    return number(None if ratio is None else 100.0 * ratio, 0)


def pad(text: str, width: int, *, left: bool) -> str:
    """Filled up with spaces."""
    space = " " * (width - cells(text))
    return text + space if left else space + text


def bar(page: Mapping[str, Any], marks: str) -> str:
    """The score as `_BAR` marks: free blocks, free slots, empty queue; what a queue or a warm-up
    takes away; the rest is load."""
    parts = page["parts"]
    if parts is None:
        shares = [page["capacity_score"] or 0.0, 0.0, 0.0, 0.0]
    else:
        factor = parts["penalty"] * parts["warm_up"]
        added = [parts[name] for name in ("free", "running", "waiting")]
        shares = [*(part * factor for part in added), sum(added) * (1.0 - factor)]
    drawn, upto = "", 0.0
    for share, mark in zip(shares, marks, strict=False):
        upto += share
        drawn += mark * (min(_BAR, round(_BAR * upto)) - len(drawn))
    return drawn + marks[-1] * (_BAR - len(drawn))


def table(rows: Sequence[Row], width: int | None, marks: str = "") -> list[list[Line]]:
    """The head, and each replica in a line or two. `width` None: as wide as it gets, one each.
    `marks`: with a bar of these beside the score."""
    columns = list(COLUMNS)
    if marks:
        columns.insert(3, Column("", lambda row: bar(row.page, marks), 7, left=True))
    while True:
        texts = [
            [column.name for column in columns],
            *([c.of(row) for c in columns] for row in rows),
        ]
        widths = [max(map(cells, texts_of)) for texts_of in zip(*texts, strict=True)]
        room = None if width is None else width - sum(widths) - len(widths)
        if room is None or room >= 0:
            break
        least = max(columns, key=lambda column: column.rank)
        if not least.rank:
            name = next(i for i, column in enumerate(columns) if column.name == "REPLICA")
            widths[name] = max(8, widths[name] + room)
            break
        columns.remove(least)
    headed = room is None or room >= _WHY_WIDTH
    lines = []
    for index, line in enumerate(texts):
        text = " ".join(
            pad(column.cut(cell, size), size, left=column.left)
            for cell, size, column in zip(line, widths, columns, strict=True)
        )
        row = rows[index - 1] if index else None
        why = plain(row.page["say"]) if row else "WHY" if headed else ""
        mood = row.page["mood"] if row else "head"
        if headed and (room is None or cells(why) <= room):
            lines.append([Line(f"{text} {why}".rstrip(), mood)])
        else:
            below = [Line(f"  {why}", mood)] if why else []
            lines.append([Line(text.rstrip(), mood), *below])
    return lines
