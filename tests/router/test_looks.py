"""What has come between two looks at `/status`."""

from math import inf
from typing import Any

import pytest

from ullage_router.looks import LATE_S, Looks, Since, quantile

A, B = ("http://a:1", None), ("http://b:1", None)
BOUNDS = [0.1, 1.0, 10.0]


def page(*rows: dict[str, Any], uptime_s: float = 100.0, **changes: Any) -> dict[str, Any]:
    return {
        "uptime_s": uptime_s,
        "first_byte_bounds_s": BOUNDS,
        "replicas": list(rows),
        "refusals": {},
        "second_tries": 0,
        "queue": {"refused": {}},
    } | changes


def row(key: tuple[str, int | None] = A, sent: int = 0, *first: int) -> dict[str, Any]:
    counts = list(first) or [0, 0, 0, 0]
    return {"url": key[0], "dp_rank": key[1], "dispatched": sent, "first_byte_counts": counts}


def between(then: dict[str, Any], now: dict[str, Any], s: float = 1.0) -> Since:
    looks = Looks(10.0)
    looks.take(then, 50.0)
    return looks.take(now, 50.0 + s)


def test_of_one_look_nothing_has_come_and_no_rate_is_known() -> None:
    since = Looks(10.0).take(page(row(A, 100, 1, 2, 3, 4)), 0.0)
    assert (since.sent, since.sent_per_s, since.share(A)) == (0, None, None)
    assert (since.ttft_s(A, 0.5), since.ttft_of_all_s(0.5)) == (None, None)
    assert since.grown("refusals") == 0


def test_shares_and_rates_are_of_what_has_come_since() -> None:
    since = between(page(row(A, 100), row(B, 50)), page(row(A, 101), row(B, 53)), 2.0)
    assert (since.share(A), since.share(B), since.sent_per_s) == (0.25, 0.75, 2.0)


def test_of_no_traffic_nobody_has_a_share() -> None:
    since = between(page(row(A, 7)), page(row(A, 7)))
    assert (since.share(A), since.sent_per_s) == (None, 0.0)


def test_what_a_new_replica_shows_is_new_and_one_that_left_is_gone() -> None:
    since = between(page(row(A, 100)), page(row(B, 4, 0, 4, 0, 0)))
    assert (since.share(B), since.first_bytes(B)) == (1.0, [0, 4, 0, 0])


def test_a_count_that_falls_has_begun_anew() -> None:
    since = between(page(row(A, 100, 9, 9, 9, 9)), page(row(A, 3, 0, 10, 0, 0)))
    assert (since.sent, since.first_bytes(A)) == (3, [0, 10, 0, 0])


@pytest.mark.parametrize(
    "changes", [{"uptime_s": 99.0}, {"workers": [1]}, {"workers": [1, 2], "restarts": 1}]
)
def test_after_a_restart_and_with_other_workers_all_is_counted_from_then_on(
    changes: dict[str, Any],
) -> None:
    before = page(row(A, 100), workers=[1, 2], restarts=0)
    since = between(before, page(row(A, 1000), **({"workers": [1, 2], "restarts": 0} | changes)))
    assert (since.s, since.sent) == (0.0, 0)


def test_looks_are_kept_for_so_long_and_one_that_came_late_too() -> None:
    looks = Looks(10.0)
    for at_s in range(11):
        since = looks.take(page(row(A, at_s)), float(at_s))
    assert (since.s, since.sent) == (10.0, 10)
    assert looks.take(page(row(A, 11)), 10.0 + LATE_S).s == 10.0 + LATE_S
    assert looks.take(page(row(A, 12)), 11.0).s == 10.0
    assert looks.take(page(row(A, 90)), 90.0).s == 0.0


def test_counts_of_the_whole_grow_one_by_one_or_all_that_are_in_them() -> None:
    then = page(second_tries=3, refusals={"a": 5}, queue={"refused": {"waited": 1}})
    now = page(second_tries=5, refusals={"a": 6, "b": 2}, queue={"refused": {"waited": 4}})
    since = between(then, now)
    assert since.grown("second_tries") == 2
    assert since.grown("refusals") == 3
    assert since.grown("queue", "refused") == 3


def test_the_fleets_first_bytes_are_those_of_all() -> None:
    now = page(row(A, 0, 1, 0, 0, 0), row(B, 0, 0, 0, 1, 0))
    since = between(page(row(A), row(B)), now)
    assert since.ttft_of_all_s(0.5) == 0.1
    assert since.ttft_of_all_s(1.0) == 10.0
    assert between(page(), page()).ttft_of_all_s(0.5) is None


@pytest.mark.parametrize(
    ("counts", "q", "value"),
    [
        ([0, 0, 0, 0], 0.5, None),
        ([4, 0, 0, 0], 0.5, 0.05),
        ([0, 4, 0, 0], 0.5, 0.55),
        ([5, 5, 0, 0], 0.5, 0.1),
        ([5, 0, 5, 0], 0.5, 0.1),
        ([5, 0, 5, 0], 0.9, 1.0 + 9.0 * 0.8),
        ([0, 0, 1, 9], 0.9, inf),
        ([0, 0, 1, 9], 0.1, 10.0),
    ],
)
def test_a_quantile_is_estimated_within_its_bucket(
    counts: list[int], q: float, value: float | None
) -> None:
    estimated = quantile(counts, BOUNDS, q)
    assert estimated == (None if value is None else pytest.approx(value))
