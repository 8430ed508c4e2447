"""What the tables say, for whatever shows them: the terminal, the page.

Rule: a sign stands for what a colour says, so that nothing is lost where there is none:
`*` the best of its column, if one alone is; `✗` a bar missed; `?` a bar missed by the median,
though its interval reaches to where it would be met.

Figures are medians over the seeds. One that is `never` is of a quantile that some request never
reached; `–` is one that there was nothing for.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ullage_tune.bar import BARS, Mark, Verdict, judge
from ullage_tune.compare import Comparison, Spread, interval
from ullage_tune.grid import OMNISCIENT, OURS, STATISTICS, TTFT_P99, Cell, Grid, Statistic


class Tone(Enum):
    """How a field stands out."""

    PLAIN = ""
    BEST = "*"
    UNSURE = Mark.UNSURE.value
    MISSED = Mark.MISSED.value


@dataclass(frozen=True, slots=True)
class Field:
    """One place of a table."""

    text: str
    tone: Tone = Tone.PLAIN

    def __str__(self) -> str:
        return self.tone.value + self.text


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table. The first column is words, all others are figures."""

    title: str
    note: str
    """What one must know to read it."""
    columns: Sequence[str]
    rows: Sequence[Sequence[Field]]


BAR_COLUMNS: Final = tuple(
    f"{bar.statistic.title} ÷ {OMNISCIENT if bar.bound else 'hardest rival'}" for bar in BARS
)


def policies_sheet(grid: Grid, cell: Cell) -> Sheet:
    """A row for each policy, the lowest TTFT p99 first."""
    names = grid.in_cell(cell)
    values = {s: {name: grid.median(cell, name, s) for name in names} for s in STATISTICS}
    best = {s: _best(s, values[s]) for s in STATISTICS}

    def late(name: str) -> tuple[float, str]:
        value = values[TTFT_P99][name]
        return (math.inf if value is None else value, name)

    return Sheet(
        title=str(cell),
        note=_seeds_note(grid, cell),
        columns=("policy", *(_head(s) for s in STATISTICS)),
        rows=[
            [
                Field(name),
                *(
                    Field(
                        shown(values[s][name], s.unit),
                        Tone.BEST if name == best[s] else Tone.PLAIN,
                    )
                    for s in STATISTICS
                ),
            ]
            for name in sorted(names, key=late)
        ],
    )


def matrix_sheet(grid: Grid) -> Sheet:
    """A row for each cell in which ours was measured: how it stands with the bar."""
    cells = [cell for cell in grid.cells if OURS in grid.in_cell(cell)]
    pairs = sorted({len(grid.seeds(cell, OURS)) for cell in cells})
    return Sheet(
        title="The bar, cell by cell",
        note=_matrix_note(pairs),
        columns=("cell", "best of all", "its p99, s", "ours, s", *BAR_COLUMNS),
        rows=[_matrix_row(grid, cell) for cell in cells],
    )


def met(row: Sequence[Field]) -> bool:
    """Whether none of a row's bars is missed, surely or not."""
    return all(field.tone not in (Tone.MISSED, Tone.UNSURE) for field in row)


def shown(value: float | None, unit: str) -> str:
    """A figure in three digits or so, without its unit (but `%`)."""
    if value is None:
        return "–"
    if math.isinf(value):
        return "never"
    if unit == "%":
        return f"{value:.1%}"
    if unit == "n":
        return f"{value:g}"
    value *= 1000.0 if unit == "ms" else 1.0
    return f"{value:.0f}" if value >= 1000.0 else f"{value:#.3g}".rstrip(".")


def _head(statistic: Statistic) -> str:
    in_head = statistic.unit in ("s", "ms")
    return f"{statistic.title}, {statistic.unit}" if in_head else statistic.title


def _best(statistic: Statistic, values: Mapping[str, float | None]) -> str | None:
    known = {n: v for n, v in values.items() if v is not None and n != OMNISCIENT}
    least = (min if statistic.lower_is_better else max)(known.values(), default=None)
    first = [name for name, value in known.items() if value == least]
    return first[0] if len(first) == 1 < len(known) else None


def _matrix_row(grid: Grid, cell: Cell) -> Sequence[Field]:
    p99_s = {
        name: value
        for name in grid.in_cell(cell)
        if name != OMNISCIENT and (value := grid.median(cell, name, TTFT_P99)) is not None
    }
    best = min(p99_s, key=lambda name: (p99_s[name], name), default=None)
    return [
        Field(str(cell)),
        Field(best or "–", Tone.BEST if best == OURS else Tone.PLAIN),
        Field(shown(None if best is None else p99_s[best], "s")),
        Field(shown(p99_s.get(OURS), "s")),
        *map(_verdict, judge(grid, cell)),
    ]


def _verdict(verdict: Verdict) -> Field:
    found = verdict.comparison
    if found is None:
        return Field("–")
    against = "" if verdict.bar.bound else f" {found.against}"
    return Field(f"{ratio_text(found)}{against}", Tone(verdict.mark.value))


def ratio_text(found: Comparison | Spread) -> str:
    """A median ratio and its interval."""
    figures = [
        f"{v:.2f}" if v < 100 else "∞" if math.isinf(v) else f"{v:.0f}"
        for v in (found.ratio, found.low, found.high)
    ]
    return "{} [{}–{}]".format(*figures)


def _seeds_note(grid: Grid, cell: Cell) -> str:
    seeds = sorted({len(grid.seeds(cell, name)) for name in grid.in_cell(cell)})
    of = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
    return f"Medians over {of} {'seed' if seeds == [1] else 'seeds'}."


def _matrix_note(pairs: Sequence[int]) -> str:
    if not pairs:
        return f"{OURS} was not measured."
    intervals = ", ".join(f"{interval(n)[1]:.1%} at {n} pairs" for n in pairs)
    few = " So few pairs give it from the least to the greatest." * (interval(pairs[0])[0] == 1)
    return (
        f"Ours ÷ theirs, seed by seed: the median [and its interval, {intervals}].{few} "
        f"{Mark.MISSED.value} missed; {Mark.UNSURE.value} missed by the median, not by all of the "
        "interval."
    )
