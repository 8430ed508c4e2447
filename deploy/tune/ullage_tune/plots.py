"""Figures of an experiment: each is drawn once, and saved as PNG or as SVG in the page's ink.

Rule: no line is known by its colour alone. Ours is thick, the bound black and dashed; rivals share
six colours that colour-blind people tell apart (Okabe and Ito, 2008), each with a marker and a
stroke of its own, and stand in the legend in the order of their medians.

800 × 480 px at 100 dpi; deterministic: the same results make the same bytes.
"""

import math
import re
from collections.abc import Sequence
from io import StringIO
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, PercentFormatter

from ullage_tune.grid import OMNISCIENT, OURS, TTFT_P50, Cell, Grid, Statistic
from ullage_tune.measure import CURVE_PER_MILLE
from ullage_tune.sheets import shown

DPI: Final = 100
SIZE_PX: Final = (800, 480)
_INK: Final = "#1a1b1c"
"""Becomes the page's `currentColor` in SVG; so does the grid, paler."""
_COLOURS: Final = ("#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31")
_OURS: Final = "#0072b2"
_MARKERS: Final = "osv^DPX*<>"
_STROKES: Final = ("-", "--", "-.", ":")
_LEAST_S: Final = 1e-4
"""A logarithm has no zero."""
_SETTINGS: Final[dict[Any, Any]] = {
    "font.size": 11,
    "font.family": "DejaVu Sans",
    "svg.fonttype": "none",
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": _INK,
    "grid.alpha": 0.15,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "legend.fontsize": 10,
}
_PLAIN: Final = FuncFormatter(lambda value, _: f"{value:g}")


class Stroke(NamedTuple):
    """How a policy's line looks."""

    color: str
    linestyle: str
    linewidth: float
    marker: str
    zorder: float

    def line(self) -> dict[str, Any]:
        """As matplotlib wants it."""
        return self._asdict()


def strokes(policies: Sequence[str]) -> dict[str, Stroke]:
    """A look for each policy, the same in all figures of an experiment."""
    rivals = [name for name in policies if name not in (OURS, OMNISCIENT)]
    looks = {
        name: Stroke(_COLOURS[i % 6], _STROKES[i // 6 % 4], 1.3, marker, 2.0)
        for i, (name, marker) in enumerate(zip(rivals, cycle(_MARKERS), strict=False))
    }
    looks[OURS] = Stroke(_OURS, "-", 3.0, "o", 3.0)
    looks[OMNISCIENT] = Stroke(_INK, "--", 1.6, "", 2.5)
    return looks


def _empty() -> tuple[Figure, Axes]:
    size = (SIZE_PX[0] / DPI, SIZE_PX[1] / DPI)
    figure = Figure(figsize=size, dpi=DPI)
    return figure, figure.add_subplot()


@rc_context(_SETTINGS)
def ttft_plot(grid: Grid, cell: Cell) -> Figure:
    """Share of requests by TTFT, each share's median over the seeds. A curve that ends below 100 %
    is of a policy that never answered the rest."""
    figure, axes = _empty()
    looks = strokes(grid.policies)
    order = sorted(grid.in_cell(cell), key=lambda name: _late(grid.median(cell, name, TTFT_P50)))
    for name in order:
        curves = [s.ttft_curve_s for s in grid.seeds(cell, name).values() if s.ttft_curve_s]
        points = [
            (max(median(values_s), _LEAST_S), per_mille / 10)
            for per_mille, *values_s in zip(CURVE_PER_MILLE, *curves, strict=True)
            if values_s and math.isfinite(median(values_s))
        ]
        axes.plot(
            *_unzip(points), label=name, markevery=(order.index(name), 14), **looks[name].line()
        )
    axes.set_xscale("log")
    axes.set_ylim(0, 101)
    axes.xaxis.set_major_formatter(_PLAIN)
    axes.yaxis.set_major_formatter(PercentFormatter())
    return _finish(figure, axes, f"TTFT: {cell}", "seconds to the first token", "share of requests")


@rc_context(_SETTINGS)
def load_plot(grid: Grid, cells: Sequence[Cell], statistic: Statistic) -> Figure:
    """A statistic by load, over cells that differ in it alone: medians over the seeds, and for ours
    from the least seed to the greatest. A line that breaks off is `never` from there on."""
    figure, axes = _empty()
    looks = strokes(grid.policies)
    share = statistic.unit == "%"

    def floor(value: float) -> float:
        return value if share else max(value, _LEAST_S)

    def at(name: str) -> list[tuple[float, float]]:
        known = ((c, grid.median(c, name, statistic)) for c in cells if name in grid.in_cell(c))
        return [(100 * c.load, floor(v)) for c, v in known if v is not None and math.isfinite(v)]

    lines = {
        name: at(name) for name in grid.policies if any(name in grid.in_cell(c) for c in cells)
    }

    def rank(name: str) -> float:
        last = lines[name][-1][1] if len(lines[name]) == len(cells) else math.inf
        return -last if share else last

    for name in sorted(lines, key=rank, reverse=not share):
        axes.plot(*_unzip(lines[name]), label=name, **looks[name].line())
    for cell in cells if OURS in lines else ():
        found = [statistic.of(s) for s in grid.seeds(cell, OURS).values()]
        values = [floor(v) for v in found if v is not None and math.isfinite(v)]
        if values:
            axes.vlines(100 * cell.load, min(values), max(values), _OURS, alpha=0.35, linewidth=7)
    if share:
        axes.set_ylim(0, 1.01)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    else:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(_PLAIN)
    axes.set_xticks([100 * cell.load for cell in cells])
    axes.xaxis.set_major_formatter(PercentFormatter())
    unit = "" if share else f", {statistic.unit}"
    title = f"{statistic.title} by load: {cells[0].kind}"
    return _finish(figure, axes, title, "offered ÷ capacity", f"{statistic.title}{unit}")


@rc_context(_SETTINGS)
def busy_plot(grid: Grid, cell: Cell) -> Figure:
    """How busy each replica was, at the least seed: a bar from the idlest to the busiest.

    The most even policy is at the top.
    """
    figure, axes = _empty()
    looks = strokes(grid.policies)
    first = {name: next(iter(grid.seeds(cell, name).values())) for name in grid.in_cell(cell)}
    names = sorted(first, key=lambda name: first[name].imbalance or math.inf, reverse=True)
    for row, name in enumerate(names):
        summary = first[name]
        shares = [busy_s / (summary.simulated_s or 1.0) for busy_s in summary.busy_s]
        if not shares:
            continue
        color = looks[name].color
        axes.barh(row, max(shares) - min(shares), 0.55, min(shares), color=color, alpha=0.3)
        axes.plot(shares, [row] * len(shares), "|", color=color, markersize=15, markeredgewidth=2)
        text = f" max ÷ mean {shown(summary.imbalance, '')}"
        axes.text(1.02, row, text, va="center", transform=axes.get_yaxis_transform(), fontsize=10)
    axes.set_yticks(range(len(names)), names)
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 1.01)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    return _finish(
        figure, axes, f"Busy replicas: {cell}", "share of the time in which it computed", ""
    )


@rc_context(_SETTINGS)
def save_png(figure: Figure, path: Path) -> None:
    """On white, for what is no page."""
    figure.savefig(path, dpi=DPI, facecolor="white", metadata={"Software": None})


def as_svg(figure: Figure, key: str) -> str:
    """An `<svg>` for a page, in its ink: no reference out of it, ids that differ by `key`."""
    file = StringIO()
    with rc_context({**_SETTINGS, "svg.hashsalt": key}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    return text.replace(_INK, "currentColor")


def _finish(figure: Figure, axes: Axes, title: str, x: str, y: str) -> Figure:
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.tick_params(which="minor", length=0, labelleft=False, labelbottom=False)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside right upper", handlelength=3.0)
    ConstrainedLayoutEngine().execute(figure)  # Once, and not again for each format.
    return figure


def _late(value_s: float | None) -> float:
    return math.inf if value_s is None else value_s


def _unzip(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
