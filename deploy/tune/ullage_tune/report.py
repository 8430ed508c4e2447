"""A folder with all that an experiment gave: the page, its figures as PNG, the results as JSON.

report.html     one file, to be sent as it is
NNN-what-of-which-cell.png
                its figures, in their order on the page
results.json    what it was made from (`ullage-tune show` makes it again)
"""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from matplotlib.figure import Figure

from ullage_tune.grid import GOODPUT, OURS, TTFT_P99, Cell, Grid
from ullage_tune.page import Drawing, Section, page
from ullage_tune.plots import as_svg, busy_plot, load_plot, save_png, ttft_plot
from ullage_tune.results import Experiment, write_json
from ullage_tune.sheets import matrix_sheet, met, policies_sheet

_TTFT_WORDS = (
    "How many requests had their first token within so many seconds: the further left, the better. "
    "A curve that ends below 100% never served the rest."
)
_BUSY_WORDS = (
    "Each stroke is a replica, and how much of the time its GPU computed (first seed); a short bar "
    "is work evenly spread."
)
_P99_WORDS = (
    "The TTFT that 99% of the requests keep, by load: the lower, the better. Medians over the "
    "seeds; the pale bars reach from ours at its best seed to ours at its worst. A line breaks off "
    "where it becomes “never”."
)
_GOODPUT_WORDS = "Share of the requests that kept the SLO, by load: the higher, the better."


def write_report(folder: Path, experiment: Experiment) -> Path:
    """Make the folder if it is not there, write all of it, and give the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "results.json", experiment)
    grid = Grid(experiment.rows)
    artist = _Artist(folder)
    bar = matrix_sheet(grid)
    sections = [Section(bar.title, [bar])] if bar.rows else []
    for kind, cells in groupby(grid.cells, key=lambda cell: cell.kind):
        sections.append(_section(kind, list(cells), grid, artist))
    facts = {
        **experiment.settings,
        **{f"version of {k}": v for k, v in experiment.versions.items()},
    }
    path = folder / "report.html"
    path.write_text(
        page("Ullage's lab: who routes best", _lead(grid), facts, experiment.slo, sections),
        encoding="utf-8",
    )
    return path


class _Artist:
    """Saves figures, and numbers them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._drawn = 0

    def draw(self, figure: Figure, what: str, words: str) -> Drawing:
        self._drawn += 1
        slug = re.sub("[^a-z0-9]+", "-", what.lower()).strip("-")[:100]
        name = f"{self._drawn:03d}-{slug}"
        save_png(figure, self._folder / f"{name}.png")
        return Drawing(as_svg(figure, key=name), words)


def _section(kind: str, cells: Sequence[Cell], grid: Grid, artist: _Artist) -> Section:
    return Section(
        kind,
        drawings=list(_by_load(cells, grid, artist)) if len(cells) > 1 else (),
        parts=[
            Section(
                f"{cell.load:.0%} load",
                [policies_sheet(grid, cell)],
                [
                    artist.draw(ttft_plot(grid, cell), f"ttft {cell}", _TTFT_WORDS),
                    artist.draw(busy_plot(grid, cell), f"busy {cell}", _BUSY_WORDS),
                ],
            )
            for cell in cells
        ],
    )


def _by_load(cells: Sequence[Cell], grid: Grid, artist: _Artist) -> Iterator[Drawing]:
    yield artist.draw(load_plot(grid, cells, TTFT_P99), f"ttft p99 {cells[0].kind}", _P99_WORDS)
    yield artist.draw(load_plot(grid, cells, GOODPUT), f"goodput {cells[0].kind}", _GOODPUT_WORDS)


def _lead(grid: Grid) -> str:
    policies, cells = len(grid.policies), len(grid.cells)
    ran = f"{policies} policies met in {cells} {'cell' if cells == 1 else 'cells'}."
    rows = matrix_sheet(grid).rows
    return f"{ran} {OURS} meets every bar in {sum(map(met, rows))} of {len(rows)}." if rows else ran
