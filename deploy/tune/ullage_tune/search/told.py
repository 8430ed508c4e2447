"""What a search has found, in tables and words."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ullage_tune.grid import Cell, Grid
from ullage_tune.search.objective import NEVER, Aim, loss
from ullage_tune.search.race import Trial
from ullage_tune.search.setting import Setting, toml
from ullage_tune.search.space import WEIGHTS, Space
from ullage_tune.search.study import DEFAULT
from ullage_tune.search.verdict import Verdict
from ullage_tune.sheets import Field, Sheet, Tone, ratio_text, shown

TOP: Final = 5
"""Trials shown beside the default."""


def trials_sheet(trials: Sequence[Trial], space: Space, cells: Sequence[Cell], aim: Aim) -> Sheet:
    """The default, and those that did best on the draws of the search."""
    full = sorted((t for t in trials if not t.cut), key=lambda trial: (trial.loss, trial.number))
    shown_trials = [trials[0], *[trial for trial in full if trial.number][:TOP]]
    several = range(len(cells)) if len(cells) > 1 else ()
    columns = ["setting", f"{aim.statistic.title} ÷ {DEFAULT}", *(str(cells[k]) for k in several)]
    parts = [_parts(space.values(trial.point)) for trial in shown_trials]
    return Sheet(
        title="Best on the draws of the search",
        note=_trials_note(trials, space, aim),
        columns=(*columns, *parts[0]),
        rows=[
            [
                Field(str(trial.number) if trial.number else DEFAULT),
                Field(
                    _quotient(aim, trial.log_ratios), Tone.BEST if trial is full[0] else Tone.PLAIN
                ),
                *(Field(_quotient(aim, trial.log_ratios[k :: len(cells)])) for k in several),
                *map(Field, part.values()),
            ]
            for trial, part in zip(shown_trials, parts, strict=True)
        ],
    )


def verdict_sheet(verdict: Verdict, grid: Grid, policy: str) -> Sheet:
    """A row for each cell, and for all together if there are several."""
    statistic = verdict.aim.statistic
    rows = [
        [
            Field(str(found.cell)),
            *(
                Field(shown(grid.median(found.cell, name, statistic), statistic.unit))
                for name in (DEFAULT, policy)
            ),
            Field(ratio_text(found)),
        ]
        for found in verdict.cells
    ]
    if len(rows) > 1:
        rows.append([Field("all"), Field(""), Field(""), Field(ratio_text(verdict.overall))])
    unit = f", {statistic.unit}" if statistic.unit == "s" else ""
    pairs = verdict.cells[0].pairs
    return Sheet(
        title="On seeds that the search has not seen",
        note=f"Medians over {pairs} seeds, paired; in brackets their interval, at "
        f"{verdict.overall.confidence:.1%}.",
        columns=("cell", *(f"{name}{unit}" for name in (DEFAULT, policy)), statistic.title),
        rows=rows,
    )


def mattered(shares: Mapping[str, float]) -> str:
    """In a line."""
    if not shares:
        return "Which settings mattered cannot be told from so few trials."
    told = ", ".join(f"{key} {share:.0%}" for key, share in shares.items())
    return f"Share in how much the trials differed (noise has its part in it): {told}."


def advice(verdict: Verdict, setting: Setting, default: str) -> Iterator[str]:
    """The last word, line by line: what to paste, or that there is nothing to change."""
    what = f"{verdict.aim.statistic.title} {ratio_text(verdict.overall)} times as much"
    if not verdict.better:
        yield f"No better than {default}: {what}, on unseen seeds. Keep what you have."
        return
    yield f"Better than {default}: {what}, on unseen seeds."
    for found in verdict.worse_in:
        yield f"But worse in {found.cell}: {ratio_text(found)}."
    for of, tables in (("sidecar", setting.sidecar), ("router", setting.router)):
        yield ""
        if tables:
            yield f"# For every {of}'s configuration (a table that is there already gets the keys):"
            yield toml(tables).rstrip()
        else:
            yield f"# Nothing is to be changed for the {of}."


def _parts(values: Mapping[str, float | str]) -> Mapping[str, str]:
    """One column for each key, and for each three weights."""
    parts: dict[str, str] = {}
    for key, value in values.items():
        table, _, name = key.rpartition(".")
        text = f"{value:g}" if isinstance(value, float) else value
        if name in WEIGHTS:
            before = f"{parts[table]} / " if table in parts else ""
            parts[table] = f"{before}{value:.2f}"
        else:
            parts[key] = text
    return parts


def _quotient(aim: Aim, log_ratios: Sequence[float]) -> str:
    sign = 1.0 if aim.statistic.lower_is_better else -1.0
    return f"{math.exp(sign * loss(log_ratios)):.2f}"


def _trials_note(trials: Sequence[Trial], space: Space, aim: Aim) -> str:
    cut, draws = sum(trial.cut for trial in trials), len(trials[0].rows)
    never = sum(aim.statistic.of(row.summary) == math.inf for row in trials[0].rows)
    note = (
        f"{len(trials) - 1} settings beside {space.default_name}; {cut} cut as hopeless. Means of "
        f"{draws} draws; the best of many is so in part by luck. Weights: free / running / waiting."
    )
    if never:
        note += (
            f" On {never} of the draws the {DEFAULT}'s {aim.statistic.title} is never: too many are"
            f" refused. That counts as {NEVER:g} times the latest that was served. A lower --load,"
            " or --for goodput, may tell more."
        )
    return note
