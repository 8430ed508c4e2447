"""The score is in 0..1, exact, and moves the right way with each signal."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage_sidecar.core.score import ScoreSettings, score, terms

DEFAULT = ScoreSettings()
ratios = st.floats(0.0, 1.0)
depths = st.floats(0.0, 1e6)


def scored(free, running, waiting, settings=DEFAULT):
    return score(terms(free, running, waiting, settings.max_waiting), settings)


@st.composite
def weightings(draw):
    first = draw(st.floats(0.0, 1.0))
    second = draw(st.floats(0.0, 1.0 - first))
    return ScoreSettings(
        free_weight=first,
        running_weight=second,
        waiting_weight=max(0.0, 1.0 - first - second),
        max_waiting=draw(st.floats(0.1, 1000.0)),
    )


@pytest.mark.parametrize(
    ("free", "running", "waiting", "expected"),
    [
        (1.0, 0.0, 0.0, 1.0),
        (0.0, 1.0, 10.0, 0.0),
        (0.5, 0.5, 5.0, 0.5),
        (1.0, 1.0, 10.0, 0.5),
        (0.0, 0.0, 10.0, 0.3),
        (0.0, 1.0, 0.0, 0.2),
        (0.4, 0.25, 1.0, 0.5 * 0.4 + 0.3 * 0.75 + 0.2 * 0.9),
        (0.0, 2.0, 1e9, 0.0),
    ],
)
def test_the_score_is_the_weighted_sum_of_the_room_left(free, running, waiting, expected):
    assert scored(free, running, waiting) == pytest.approx(expected)


@given(st.floats(-1.0, 2.0), st.floats(-1.0, 2.0), st.floats(-1.0, 1e6), weightings())
def test_the_score_is_never_outside_0_to_1_and_never_nan(free, running, waiting, settings):
    result = scored(free, running, waiting, settings)
    assert 0.0 <= result <= 1.0
    assert not math.isnan(result)


@given(ratios, ratios, ratios, depths, weightings())
def test_more_free_blocks_never_lower_the_score(one, other, running, waiting, settings):
    less, more = sorted((one, other))
    assert scored(less, running, waiting, settings) <= scored(more, running, waiting, settings)


@given(ratios, ratios, ratios, depths, weightings())
def test_more_running_requests_never_raise_the_score(free, one, other, waiting, settings):
    less, more = sorted((one, other))
    assert scored(free, more, waiting, settings) <= scored(free, less, waiting, settings)


@given(ratios, ratios, depths, depths, weightings())
def test_more_waiting_requests_never_raise_the_score(free, running, one, other, settings):
    less, more = sorted((one, other))
    assert scored(free, running, more, settings) <= scored(free, running, less, settings)
