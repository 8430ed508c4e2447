"""A quantile looks on the dark side of every signal."""

import pytest

from ullage_sidecar.core import smoothing
from ullage_sidecar.core.smoothing import Smoothing, WindowSettings
from ullage_sidecar.core.window import Window

UNEASY = Window(5.0).push(1.0, 100.0).push(5.0, 104.0)  # 4 s at 1, then 1 s at 5
WARY = WindowSettings(smoothing=Smoothing.QUANTILE, quantile=0.9)


def test_the_mean_treats_load_and_room_alike():
    assert smoothing.load(UNEASY, WindowSettings(), 105.0) == pytest.approx(1.8)
    assert smoothing.room(UNEASY, WindowSettings(), 105.0) == pytest.approx(1.8)


def test_a_high_quantile_takes_the_high_load_and_the_little_room():
    assert smoothing.load(UNEASY, WARY, 105.0) == 5.0
    assert smoothing.room(UNEASY, WARY, 105.0) == 1.0


def test_unknown_stays_unknown():
    assert smoothing.load(Window(5.0), WARY, 1.0) is None
    assert smoothing.room(Window(5.0), WindowSettings(), 1.0) is None
