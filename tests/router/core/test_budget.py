"""The retry budget: a share of the requests of the last 10 s, and some to spare."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage_router.core.budget import WINDOW_S, RetryBudget
from ullage_router.core.policy import RetryPolicy


def budget(
    requests: int = 0, *, share: float = 0.1, spare: int = 0, at_s: float = 0.0
) -> RetryBudget:
    made = RetryBudget(RetryPolicy(share=share, spare=spare))
    for _ in range(requests):
        made.request(at_s)
    return made


def spent(made: RetryBudget, now_s: float, tries: int = 1000) -> int:
    return sum(made.spend(now_s) for _ in range(tries))


@pytest.mark.parametrize(("requests", "allowed"), [(0, 0), (9, 0), (10, 1), (19, 1), (1000, 100)])
def test_a_tenth_of_the_requests_may_be_tried_again(requests: int, allowed: int) -> None:
    assert spent(budget(requests), 0.0) == allowed


def test_a_few_may_always_be() -> None:
    assert spent(budget(spare=10), 0.0) == 10


def test_none_may_be_where_the_operator_says_so() -> None:
    assert spent(budget(1000, share=0.0), 0.0) == 0


def test_what_is_allowed_comes_back_with_time() -> None:
    made = budget(100)
    assert spent(made, 5.0) == 10
    made = budget(100, at_s=3.5)
    assert spent(made, 12.9) == 10  # The second of 3.5 s is the last of the window.
    assert spent(budget(100, at_s=3.5), 13.0) == 0


def test_tries_of_ten_seconds_ago_are_forgotten() -> None:
    made = budget(spare=2)
    assert spent(made, 0.0) == 2
    assert spent(made, WINDOW_S - 0.1) == 0
    assert spent(made, float(WINDOW_S)) == 2


def test_a_long_silence_forgets_everything() -> None:
    made = budget(1000, spare=1)
    assert spent(made, 1e6) == 1


def test_a_clock_set_back_forgets_everything_and_goes_on() -> None:
    made = budget(1000, at_s=100.0)
    assert spent(made, 50.0) == 0
    made.request(50.0)


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0.0, 2.0)), max_size=300),
    st.floats(0.0, 1.0),
    st.integers(0, 5),
)
def test_never_more_than_the_share_of_any_ten_seconds(
    events: list[tuple[bool, float]], share: float, spare: int
) -> None:
    made, now_s = budget(share=share, spare=spare), 0.0
    asked: list[float] = []
    tried: list[float] = []
    for tries, pause_s in events:
        now_s += pause_s
        if not tries:
            made.request(now_s)
            asked.append(now_s)
        elif made.spend(now_s):
            tried.append(now_s)
            begin_s = int(now_s) - WINDOW_S + 1
            lately = sum(at_s >= begin_s for at_s in asked)
            assert sum(at_s >= begin_s for at_s in tried) <= share * lately + spare + 1e-9
