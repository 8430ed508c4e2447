"""Measuring a workload: exact on small ones."""

import pytest

from ullage_tune.shape import Link, conversations, counts, links, shape, variation
from ullage_tune.workload import Request, Segment, Workload

A, B, C, D = (Segment(k, 10 * (k + 1)) for k in range(4))


def asked(*prompts: tuple[Segment, ...]) -> list[Request]:
    return [Request(float(k), prompt, 5) for k, prompt in enumerate(prompts)]


def test_a_prompt_shares_its_longest_beginning_that_came_before() -> None:
    chain = links(asked((A, B), (C,), (A, B, D), (A, D), (B, A)))
    assert [link.shared for link in chain] == [0, 0, 2, 1, 0]
    assert [link.tokens for link in chain] == [0, 0, 30, 10, 0]


def test_of_several_with_the_same_beginning_the_latest_is_followed() -> None:
    chain = links(
        asked((A, B), (C,), (A, B, C), (D,), (A, B, D), (B,), (A, B, C, D), (D, A), (C, A))
    )
    assert [link.follows for link in chain] == [None, None, 0, None, 2, None, 2, 3, 1]


def test_what_most_prompts_begin_with_makes_no_conversation() -> None:
    chain = links(asked((A, B), (A, C), (A, D), (A, B, C), (B,)))
    assert [link.follows for link in chain] == [None, None, None, 0, None]
    assert [link.shared for link in chain] == [0, 1, 1, 2, 0]


def test_equal_text_of_another_length_is_other_text() -> None:
    chain = links(asked((A,), (B,), (Segment(A.text, 3),)))
    assert chain == [Link(None, 0, 0)] * 3


def test_conversations_are_named_by_their_first_request() -> None:
    chain = [Link(None, 0, 0), Link(0, 1, 1), Link(None, 0, 0), Link(1, 1, 1)]
    assert conversations(chain) == [0, 0, 2, 0]


@pytest.mark.parametrize("prompts", [(), ((A, B),), ((A, B), (A, B))])
def test_none_one_and_equals_follow_nobody(prompts: tuple[tuple[Segment, ...], ...]) -> None:
    assert [link.follows for link in links(asked(*prompts))] == [None] * len(prompts)


def test_counts_leave_out_a_partial_window() -> None:
    assert counts([0.0, 0.5, 1.0, 3.9, 4.2], 1.0, 4.5) == [2, 1, 0, 1]
    assert counts([], 1.0, 0.0) == []


def test_even_arrivals_do_not_vary_and_bunched_ones_do() -> None:
    even = [Request(k / 10.0 + 0.05, (A,), 1) for k in range(101)]
    bunched = [Request(2.0 * (k // 20), (A,), 1) for k in range(101)]
    assert variation(even, 1.0) == pytest.approx(0.0, abs=1e-12)
    assert variation(bunched, 1.0) == pytest.approx(1.0)


@pytest.mark.parametrize("requests", [[], asked((A,)), asked((A,), (B,))])
def test_too_short_to_vary_is_0(requests: list[Request]) -> None:
    assert variation(requests, 10.0) == 0.0


def test_a_shape_is_of_all_requests() -> None:
    one = shape(Workload("w", tuple(asked((A,), (A, B), (C,), (D,), (A, B, C)))))
    assert one.requests == 5
    assert one.per_s == pytest.approx(5 / 4)
    assert one.found == pytest.approx((10 + 30) / (10 + 30 + 30 + 40 + 60))
    assert one.follow == pytest.approx(1 / 5)
    assert one.turns[0] == pytest.approx(5 / 4)
    assert one.turns[-1] == 2.0
    assert one.output_tokens == (5.0,) * 5
    assert one.correlation == 0.0


def test_nothing_has_no_shape() -> None:
    with pytest.raises(ValueError, match="empty: no requests"):
        shape(Workload("empty", ()))
