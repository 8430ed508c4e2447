"""Sheets on the terminal. Elsewhere (a file, a pipe) they are Markdown: plain text, to be pasted.

Rule: no figure is cut. A table that is too wide for the terminal is printed in blocks of columns.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from ullage_tune.grid import OURS, Grid
from ullage_tune.sheets import Sheet, Tone, matrix_sheet, policies_sheet

_STYLES: Final = {Tone.PLAIN: "", Tone.BEST: "bold", Tone.UNSURE: "yellow", Tone.MISSED: "bold red"}
_GAP: Final = 3
"""Between two columns: a space on either side, and one for the rule between."""


def print_tables(console: Console, grid: Grid) -> None:
    """A table of policies for each cell, then the bar."""
    for cell in grid.cells:
        print_sheet(console, policies_sheet(grid, cell))
    if OURS in grid.policies:
        print_sheet(console, matrix_sheet(grid))


def print_sheet(console: Console, sheet: Sheet) -> None:
    """One table under its title, its note below."""
    if console.is_terminal:
        console.print(Text(sheet.title, style="bold"))
        for widths in _blocks(sheet, console.width):
            console.print(_table(sheet, widths))
        console.print(Text(sheet.note, style="dim"), end="\n\n")
    else:
        lines = (f"**{sheet.title}**", "", *markdown(sheet), "", sheet.note, "")
        console.file.writelines(f"{line}\n" for line in lines)


def markdown(sheet: Sheet) -> Sequence[str]:
    """The table alone, line by line, as wide as it has to be."""
    texts = [list(sheet.columns), *([str(field) for field in row] for row in sheet.rows)]
    texts = [[text.replace("|", "\\|") for text in row] for row in texts]
    widths = [max(2, *map(len, column)) for column in zip(*texts, strict=True)]
    ruler = ["-" * width if not i else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    padded = [
        [t.rjust(w) if i else t.ljust(w) for i, (t, w) in enumerate(zip(row, widths, strict=True))]
        for row in texts
    ]
    return [f"| {' | '.join(row)} |" for row in (padded[0], ruler, *padded[1:])]


def _blocks(sheet: Sheet, width: int) -> Iterator[Mapping[int, int]]:
    """Columns that fit beside the first one, and their widths; at least one in each block.

    A column is as wide as its longest word at least, and where there is room, as its longest text.
    """
    texts = [list(map(str, column)) for column in zip(sheet.columns, *sheet.rows, strict=True)]
    least = [max((len(word) for text in c for word in text.split()), default=0) for c in texts]
    full = [max(map(len, column)) for column in texts]
    block: list[int] = []
    for index in range(1, len(texts)):
        if block and sum(least[i] + _GAP for i in (0, *block, index)) > width:
            yield _widths((0, *block), least, full, width)
            block = []
        block.append(index)
    yield _widths((0, *block), least, full, width)


def _widths(
    block: Sequence[int], least: Sequence[int], full: Sequence[int], width: int
) -> Mapping[int, int]:
    spare = max(0, width - sum(least[index] + _GAP for index in block))
    widths = {}
    for index in block:
        widths[index] = min(full[index], least[index] + spare)
        spare -= widths[index] - least[index]
    return widths


def _table(sheet: Sheet, widths: Mapping[int, int]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for index, width in widths.items():
        justify: JustifyMethod = "right" if index else "left"
        table.add_column(Text(sheet.columns[index]), justify=justify, width=width)
    for row in sheet.rows:
        table.add_row(*(Text(str(row[i]), style=_STYLES[row[i].tone]) for i in widths))
    return table
