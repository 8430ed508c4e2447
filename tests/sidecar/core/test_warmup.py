"""A fresh server is held back by its own uptime, exactly to the second."""

import math

import pytest

from ullage_shared.snapshot import State
from ullage_sidecar.core.warmup import WarmUp, WarmUpSettings, by_uptime


@pytest.mark.parametrize(
    ("up_s", "state", "factor"),
    [
        (0.0, State.WARMING, 0.0),
        (math.nextafter(30.0, 0.0), State.WARMING, 0.0),
        (30.0, State.RAMPING, 0.5),
        (math.nextafter(60.0, 0.0), State.RAMPING, 0.5),
        (60.0, State.SERVING, 1.0),
        (1e9, State.SERVING, 1.0),
    ],
)
def test_a_server_scores_nothing_for_30_s_half_until_60_s_then_all(up_s, state, factor):
    assert by_uptime(up_s, WarmUpSettings()) == WarmUp(state, factor)


def test_the_thresholds_are_the_operators():
    settings = WarmUpSettings(zero_until_s=0.0, ramp_until_s=5.0, ramp_factor=0.25)
    assert by_uptime(0.0, settings) == WarmUp(State.RAMPING, 0.25)
    assert by_uptime(5.0, settings) == WarmUp(State.SERVING, 1.0)
