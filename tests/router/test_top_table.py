"""The table of `top`: in every width whole, in order, and nothing in it that a terminal obeys."""

from typing import Any

import pytest

from ullage_router.looks import Looks
from ullage_router.top import after
from ullage_router.top_table import (
    COLUMNS,
    ORDERS,
    Line,
    Row,
    View,
    bar,
    cells,
    cut,
    cut_in_front,
    number,
    rows_of,
    table,
)

MARKS = "frw/."
PARTS = {"free": 0.3, "running": 0.2, "waiting": 0.1, "penalty": 1.0, "warm_up": 1.0}


def replica(name: str, score: float | None = 0.6, **changes: Any) -> dict[str, Any]:
    return {
        "id": name,
        "url": f"http://{name}:8000",
        "dp_rank": None,
        "now": "serving",
        "mood": "good",
        "say": "",
        "capacity_score": score,
        "parts": PARTS,
        "in_flight": 2,
        "dispatched": 0,
        "running": 7,
        "waiting": 0,
        "free_block_ratio": 0.625,
        "age_s": 0.25,
        "first_byte_counts": [0, 0],
    } | changes


BAD = {"now": "left out", "mood": "bad", "say": "it failed"}
MILD = {"now": "ramping", "mood": "mild", "say": "young"}


def rows(*replicas: dict[str, Any], view: View = View()) -> list[Row]:  # noqa: B008 -- a value
    page = {"uptime_s": 1.0, "replicas": list(replicas), "first_byte_bounds_s": [1.0]}
    return rows_of(Looks(1.0).take(page, 0.0), view)


def names(order: str, *replicas: dict[str, Any], only: bool = False) -> list[str]:
    index = [name for name, _ in ORDERS].index(order)
    return [row.page["id"] for row in rows(*replicas, view=View(index, only))]


def text(parts: list[list[Line]]) -> list[str]:
    return [line.text for part in parts for line in part]


def test_a_row_says_in_columns_what_is_known_and_a_dash_what_is_not() -> None:
    unknown = {"running": None, "waiting": None, "free_block_ratio": None, "age_s": None}
    shown = rows(replica("gpu-01"), replica("gpu-02", None, parts=None, **unknown, **BAD))
    assert text(table(shown, None)) == [
        "STATE    REPLICA SCORE FLIGHT SHARE% P50_S P90_S RUN WAIT FREE% AGE_S WHY",
        "left-out gpu-02      -      2      -     -     -   -    -     -     - it failed",
        "serving  gpu-01   0.60      2      -     -     -   7    0    62  0.25",
    ]


def test_of_no_replicas_the_head_alone_is_shown() -> None:
    assert len(text(table(rows(), None))) == len(text(table(rows(), 80, MARKS))) == 1


def test_but_for_why_no_cell_has_a_space_so_that_scripts_may_split_it() -> None:
    (line,) = text(table(rows(replica("a b\tc", now="left out")), None))[1:]
    assert len(line.split()) == len(COLUMNS)


@pytest.mark.parametrize("width", range(40, 200, 7))
def test_no_line_is_wider_than_the_terminal_and_why_is_never_lost(width: int) -> None:
    shown = rows(replica("gpu-01/vllm0"), replica("gpu-02/vllm1" * 9, **BAD | {"say": "x" * 30}))
    lines = text(table(shown, width, MARKS))
    assert max(map(len, lines)) <= width
    assert sum("x" * 30 in line for line in lines) == 1


def test_columns_go_by_rank_where_there_is_no_room() -> None:
    shown = rows(replica("gpu-01/vllm0"))
    heads = [text(table(shown, width, MARKS))[0].split() for width in (120, 80, 62, 45, 40)]
    assert [len(head) for head in heads] == sorted((len(head) for head in heads), reverse=True)
    assert "WHY" in heads[0]
    for head in heads:
        assert {"STATE", "REPLICA", "SCORE", "FLIGHT", "SHARE%"} <= set(head)


@pytest.mark.parametrize(
    ("parts", "score", "drawn"),
    [
        (PARTS, 0.6, "fffrrw...."),
        (PARTS | {"free": 0.4, "waiting": 0.2, "penalty": 0.5}, 0.4, "ffrw////.."),
        (PARTS | {"warm_up": 0.0}, 0.0, "//////...."),
        ({"free": 0.5, "running": 0.3, "waiting": 0.2, "penalty": 1.0, "warm_up": 1.0}, 1.0, None),
        (None, 0.42, "ffff......"),
        (None, None, ".........."),
    ],
)
def test_a_bar_is_the_score_in_tenths(
    parts: dict[str, float] | None, score: float | None, drawn: str | None
) -> None:
    shown = bar(replica("a", score, parts=parts), MARKS)
    assert len(shown) == 10
    if drawn is not None:
        assert shown == drawn
    else:
        assert shown == "fffffrrrww"


def test_what_a_terminal_would_obey_is_shown_as_question_marks() -> None:
    evil = "a\x1b[2J\r\n\u202eb"
    shown = rows(replica(evil, **BAD | {"say": evil}))
    for line in text(table(shown, None)):
        assert line.isprintable()
    assert "a?[2J???b" in text(table(shown, None))[1]


def test_rows_come_with_the_worst_first_and_then_by_name_as_people_count() -> None:
    ten, two = replica("gpu-10"), replica("gpu-2")
    fleet = (ten, replica("c", **MILD), two, replica("d", **BAD), replica("b", say="a word"))
    assert names("problems", *fleet) == ["d", "c", "b", "gpu-2", "gpu-10"]
    assert names("name", *fleet) == ["b", "c", "d", "gpu-2", "gpu-10"]
    assert names("problems", *fleet, only=True) == ["d", "c", "b"]


def test_by_number_the_largest_come_first_and_the_unknown_last() -> None:
    fleet = (replica("a", 0.1), replica("b", None), replica("c", 0.9))
    assert names("score", *fleet) == ["c", "a", "b"]


def test_names_without_digits_and_with_any_are_in_some_order() -> None:
    fleet = [replica(name) for name in ("7", "", "a", "a7", "7a", "07", "٣")]
    assert len(names("name", *fleet)) == len(fleet)


def test_wide_characters_take_two_cells() -> None:
    assert (cells("ab"), cells("日本")) == (2, 4)
    assert (cut("日本語", 6), cut("日本語", 5), cut("abc", 2)) == ("日本語", "日本~", "a~")
    assert cut_in_front("gpu-1/twin0", 8) == "~1/twin0"
    assert [cut_in_front("日本語", width) for width in (6, 5, 4)] == ["日本語", "~本語", "~語"]


def test_names_are_told_apart_where_they_do_not_fit() -> None:
    alike = rows(replica("a-long-name-of-a-node/0"), replica("a-long-name-of-a-node/1"))
    shown = [part[0].text.split()[1] for part in table(alike, 40)[1:]]
    assert shown[0] != shown[1]
    assert all(name.startswith("~") and name.endswith(f"node/{n}") for n, name in enumerate(shown))


def test_digits_that_are_no_numbers_are_sorted_too() -> None:
    assert names("name", replica("a²"), replica("a2"), replica("a٣")) == ["a2", "a²", "a٣"]


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "-"), (0.0, "0.00"), (1.005, "1.00"), (float("inf"), ">320")]
)
def test_a_number_is_short(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_keys_move_within_what_there_is() -> None:
    view = View(order=len(ORDERS) - 1, skip=5)
    assert after(view, "p", 24) == view._replace(only_troubled=True, skip=0)
    assert after(view, "s", 24) == View()
    assert after(view, "up", 24).skip == 4
    assert after(View(), "up", 24).skip == 0
    assert after(view, "page down", 24).skip == 17
    assert after(view, "home", 24).skip == 0
    assert after(view, "x", 24) == view
