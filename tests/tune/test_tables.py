"""What is printed of results."""

import io
from itertools import pairwise

import pytest
from rich.console import Console

from synthetic_runs import SLOWNESS, experiment_rows, summary
from ullage_tune.grid import Cell, Grid, Measured
from ullage_tune.sheets import Field, Sheet, Tone, matrix_sheet, met, policies_sheet, shown
from ullage_tune.table import markdown, print_sheet, print_tables

CELL = Cell("chat", load=0.85)


def grid(**ttfts: float | None) -> Grid:
    return Grid(Measured(CELL, name, 0, summary(value)) for name, value in ttfts.items())


def printed(grid: Grid, width: int | None = None) -> str:
    """On a terminal of that width; `None`: on none."""
    file = io.StringIO()
    print_tables(Console(file=file, width=width, force_terminal=width is not None), grid)
    return file.getvalue()


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "s", "–"),
        (float("inf"), "ms", "never"),
        (0.0, "s", "0.00"),
        (0.05, "s", "0.0500"),
        (3.031, "s", "3.03"),
        (26.9, "s", "26.9"),
        (134.4, "s", "134"),
        (1834.4, "s", "1834"),
        (0.0213, "ms", "21.3"),
        (0.876, "%", "87.6%"),
        (1.1, "", "1.10"),
        (12, "n", "12"),
        (12.5, "n", "12.5"),
    ],
)
def test_a_figure_has_three_digits_or_says_what_it_is_not(value, unit, text):
    assert shown(value, unit) == text


def test_policies_are_in_the_order_of_their_p99_and_those_that_never_answer_last():
    sheet = policies_sheet(grid(slow=3.0, lost=None, fast=1.0, omniscient=0.5), CELL)
    assert [row[0].text for row in sheet.rows] == ["omniscient", "fast", "slow", "lost"]


def test_the_best_of_a_column_is_marked_but_for_ties_and_the_bound():
    sheet = policies_sheet(grid(slow=3.0, fast=1.0, omniscient=0.5), CELL)
    rows = {row[0].text: dict(zip(sheet.columns, row, strict=True)) for row in sheet.rows}
    assert rows["fast"]["TTFT p99, s"] == Field("1.00", Tone.BEST)
    assert rows["slow"]["TTFT p99, s"].tone is Tone.PLAIN
    assert rows["omniscient"]["TTFT p99, s"].tone is Tone.PLAIN
    assert {row["goodput"].tone for row in rows.values()} == {Tone.PLAIN}


def test_alone_nobody_is_best():
    sheet = policies_sheet(grid(fast=1.0), CELL)
    assert {field.tone for row in sheet.rows for field in row} == {Tone.PLAIN}


def test_the_matrix_names_the_hardest_rival_and_marks_what_is_missed():
    sheet = matrix_sheet(grid(ullage=2.0, bad=9.0, good=1.0, omniscient=1.0))
    (row,) = sheet.rows
    assert [str(field) for field in row] == [
        "chat, 85% load",
        "good",
        "1.00",
        "2.00",
        "✗2.00 [2.00–2.00] good",
        "✗2.00 [2.00–2.00]",
        "✗2.00 [2.00–2.00] good",
        "1.00 [1.00–1.00] good",
    ]
    assert not met(row)


def test_a_row_whose_bars_are_all_met_is_met():
    (row,) = matrix_sheet(grid(ullage=1.0, bad=9.0, omniscient=1.0)).rows
    assert met(row)


def test_a_wide_interval_says_so():
    rows = experiment_rows((CELL,), ("ullage", "dynamo"), seeds=5)
    assert "93.8% at 5 pairs" in matrix_sheet(Grid(rows)).note
    assert "from the least to the greatest" in matrix_sheet(Grid(rows)).note


def test_without_ours_there_is_no_matrix():
    assert "÷" not in printed(grid(a=1.0, b=2.0))
    assert "÷" in printed(grid(ullage=1.0, b=2.0))


def test_off_a_terminal_tables_are_markdown_without_colour_and_as_wide_as_need_be():
    text = printed(Grid(experiment_rows((CELL, Cell("mixed", 4, "half speed", 1.1)), seeds=2)))
    assert "\x1b" not in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in table)
    assert {"| ullage          |", "| round_robin     |"} <= {line[:19] for line in table}
    assert "mixed, half speed, 4 routers, 110% load" in text


def test_a_bar_in_a_name_does_not_break_the_markdown():
    sheet = Sheet("t", "", ("a", "b"), [[Field("x|y"), Field("1")]])
    assert markdown(sheet) == ["| a    |  b |", "| ---- | -: |", "| x\\|y |  1 |"]


@pytest.mark.parametrize("width", [40, 80, 100, 150, 400])
def test_on_a_terminal_no_figure_is_cut_however_narrow_it_is(width):
    rows = experiment_rows((CELL, Cell("mixed", 4, "half speed", 1.1)), seeds=2)
    text = printed(Grid(rows), width)
    sheet = policies_sheet(Grid(rows), CELL)
    assert "…" not in text
    for row in sheet.rows:
        for field in row:
            assert str(field) in text


def test_every_block_of_a_table_that_is_too_wide_begins_with_the_names():
    file = io.StringIO()
    sheet = policies_sheet(Grid(experiment_rows((CELL,), seeds=1)), CELL)
    print_sheet(Console(file=file, width=60, force_terminal=True, color_system=None), sheet)
    lines = file.getvalue().splitlines()
    named = [line.split()[0] for line in lines if line.strip() and line.split()[0] in SLOWNESS]
    assert len(named) % len(SLOWNESS) == 0
    assert len(named) > len(SLOWNESS)
    assert all(len(line) <= 60 for line in lines)
    ours = [i for i, name in enumerate(named) if name == "ullage"]
    assert {b - a for a, b in pairwise(ours)} == {len(SLOWNESS)}
