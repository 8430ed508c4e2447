"""The penalty begins exactly at its threshold, and has a floor."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage_sidecar.core.penalty import Form, PenaltySettings, factor

BELOW_2 = math.nextafter(2.0, 0.0)
RECIPROCAL = PenaltySettings()
HALVE = PenaltySettings(form=Form.HALVE)


@pytest.mark.parametrize(
    ("depth", "expected"),
    [(0.0, 1.0), (1.0, 1.0), (BELOW_2, 1.0), (2.0, 1 / 3), (3.0, 0.25), (4.0, 0.2), (500.0, 0.2)],
)
def test_reciprocal_is_1_below_depth_2_then_1_over_1_plus_depth_down_to_a_fifth(depth, expected):
    assert factor(depth, RECIPROCAL) == pytest.approx(expected, abs=0.0)


@pytest.mark.parametrize(
    ("depth", "expected"), [(0.0, 1.0), (BELOW_2, 1.0), (2.0, 0.5), (3.0, 0.5), (500.0, 0.5)]
)
def test_halve_is_1_below_depth_2_then_one_half(depth, expected):
    assert factor(depth, HALVE) == expected


@given(st.floats(0.0, 1e9), st.floats(0.0, 1e9), st.sampled_from([RECIPROCAL, HALVE]))
def test_a_deeper_queue_is_never_favoured(one, other, settings):
    shallow, deep = sorted((one, other))
    assert 0.0 <= factor(deep, settings) <= factor(shallow, settings) <= 1.0


def test_threshold_and_floor_are_the_operators():
    settings = PenaltySettings(threshold=0.0, floor=0.6)
    assert factor(0.0, settings) == 1.0
    assert factor(0.5, settings) == pytest.approx(1 / 1.5)
    assert factor(9.0, settings) == 0.6
