from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage_router.core.tokens import (
    LEAST,
    LEAST_BYTES,
    MEMORY_ANSWERS,
    MOST,
    MOST_MODELS,
    PRIOR,
    TokenRatio,
)


def taught(*answers: tuple[int, int], model: str | None = "m") -> TokenRatio:
    ratio = TokenRatio()
    for prompt_bytes, prompt_tokens in answers:
        ratio.learn(model, prompt_bytes, prompt_tokens)
    return ratio


def test_before_any_answer_four_bytes_are_a_token() -> None:
    ratio = TokenRatio()
    assert [ratio.estimate("m", n) for n in (0, 1, 4, 5, 4000)] == [0, 1, 1, 2, 1000]
    assert ratio.estimate(None, 4000) == PRIOR * 4000


def test_the_first_answers_count_equally_with_the_prior_as_one_of_them() -> None:
    assert taught((1000, 500)).estimate("m", 1000) == 375  # Of 0.25, 0.5
    assert taught((1000, 500), (1000, 750)).estimate("m", 1000) == 500  # Of 0.25, 0.5, 0.75


def test_later_answers_count_one_in_32() -> None:
    ratio = taught(*[(10_000, 2500)] * (MEMORY_ANSWERS + 10))
    ratio.learn("m", 10_000, 2500 + 32 * 10)
    assert ratio.estimate("m", 10_000) == 2510


def test_a_change_of_traffic_is_learned() -> None:
    ratio = taught(*[(1000, 250)] * 100, *[(1000, 500)] * 100)
    assert 480 < ratio.estimate("m", 1000) <= 500


@pytest.mark.parametrize(
    ("prompt_bytes", "prompt_tokens", "counts"),
    [
        (LEAST_BYTES, 128, True),
        (LEAST_BYTES - 1, 128, False),
        (0, 10, False),
        (-5, 10, False),
        (1000, 0, False),
        (1000, -1, False),
        (1000, 1, True),
    ],
)
def test_tiny_prompts_and_counts_of_nothing_teach_nothing(
    prompt_bytes: int, prompt_tokens: int, *, counts: bool
) -> None:
    ratio = taught((prompt_bytes, prompt_tokens))
    assert len(ratio) == counts
    assert (ratio.estimate("m", 10_000) != PRIOR * 10_000) == counts


def test_one_odd_prompt_moves_the_ratio_by_one_in_32_of_the_range_at_most() -> None:
    """An image of ten megabytes; a number that no prompt of this size can have."""
    for odd in ((10_000_000, 1000), (1000, 10**12)):
        ratio = taught(*[(1000, 250)] * 100, odd)
        moved = ratio.estimate("m", 1_000_000) / 1_000_000 - 0.25
        assert abs(moved) <= (MOST - LEAST) / MEMORY_ANSWERS


def test_models_learn_apart() -> None:
    ratio = taught(*[(1000, 500)] * 100)
    ratio.learn("n", 1000, 250)
    ratio.learn(None, 1000, 125)
    assert ratio.estimate("m", 1000) == 500
    assert ratio.estimate("n", 1000) == 250
    assert ratio.estimate(None, 2000) == 375


def test_a_model_that_has_taught_nothing_is_guessed_by_what_all_have_taught() -> None:
    ratio = taught(*[(1000, 500)] * 100)
    assert ratio.estimate("new", 1000) == pytest.approx(500, abs=20)
    assert len(ratio) == 1


def test_the_model_that_taught_least_recently_is_forgotten_first() -> None:
    ratio = taught(*[(1000, 1000)] * 50, model="old")
    for i in range(MOST_MODELS - 1):
        ratio.learn(f"m{i}", 1000, 250)
    ratio.learn("old", 1000, 1000)
    ratio.learn("new", 1000, 250)
    assert len(ratio) == MOST_MODELS
    assert ratio.estimate("old", 1000) > 900
    assert ratio.estimate("m1", 1000) == 250
    assert ratio.estimate("m0", 1000) == ratio.estimate("never seen", 1000) != 250


def test_made_up_models_never_fill_the_memory() -> None:
    ratio = TokenRatio()
    for i in range(3 * MOST_MODELS):
        ratio.estimate(f"asked {i}", 1000)
        ratio.learn(f"m{i}", 1000, 250)
    assert len(ratio) == MOST_MODELS


def test_the_mean_of_noisy_answers_is_found_within_3_sigma() -> None:
    rng = Random(7)
    spread = 0.05  # Of one answer, uniform in 0.25 ± 0.05 · √3.
    ratio = TokenRatio()
    for _ in range(500):
        of_this = 0.25 + spread * 3**0.5 * rng.uniform(-1, 1)
        ratio.learn("m", 100_000, round(100_000 * of_this))
    sigma = spread / (2 * MEMORY_ANSWERS - 1) ** 0.5  # Of a mean that forgets by 1/32.
    assert abs(ratio.estimate("m", 1_000_000) / 1_000_000 - 0.25) < 3 * sigma


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(), st.integers()), max_size=50), st.integers(0, 10**9))
def test_estimates_stay_within_the_range_whatever_is_taught(
    answers: list[tuple[int, int]], prompt_bytes: int
) -> None:
    estimate = taught(*answers).estimate("m", prompt_bytes)
    assert LEAST * prompt_bytes <= estimate <= prompt_bytes


def test_it_can_be_read_by_people() -> None:
    assert repr(taught((1000, 500))) == "TokenRatio(0.375, {'m': 0.375})"


def test_a_name_that_no_model_has_teaches_and_weighs_nothing() -> None:
    ratio = TokenRatio()
    ratio.learn("m" * 4_000_000, 1_000, 1_000)
    assert (len(ratio), ratio.estimate("m", 1_000)) == (0, 250)


@pytest.mark.parametrize("teach", [True, False])
def test_behind_the_first_512_only_each_sixteenth_is_looked_at(teach: bool) -> None:
    """Whether they teach or not: most streams say nothing of their usage."""
    ratio = TokenRatio()
    assert not ratio.wants(255)
    for _ in range(512):
        assert ratio.wants(1_000)
        if teach:
            ratio.learn("m", 1_000, 250)
    assert sum(ratio.wants(1_000) for _ in range(160)) == 10
