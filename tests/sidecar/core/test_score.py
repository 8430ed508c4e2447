"""The score is in 0..1, exact, and moves the right way with each signal, in every class."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage_shared.snapshot import RequestClass
from ullage_sidecar.core.score import LongWeights, ScoreSettings, ShortWeights, score, terms

DEFAULT = ScoreSettings()
ratios = st.floats(0.0, 1.0)
depths = st.floats(0.0, 1e6)


def scored(free, running, waiting, settings=DEFAULT):
    return score(terms(free, running, waiting, settings.max_waiting), settings)


def scored_by_class(free, running, waiting, settings=DEFAULT):
    room = terms(free, running, waiting, settings.max_waiting)
    return {cls: score(room, settings.weights(cls)) for cls in RequestClass}


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


@pytest.mark.parametrize(
    ("cls", "free", "running", "waiting"),
    [
        (RequestClass.SHORT, 0.3, 0.5, 0.2),
        (RequestClass.MIXED, 0.5, 0.3, 0.2),
        (RequestClass.LONG, 0.65, 0.15, 0.2),
    ],
)
def test_each_class_weighs_the_signals_by_its_own_figures(cls, free, running, waiting):
    assert scored_by_class(1.0, 1.0, 10.0)[cls] == free
    assert scored_by_class(0.0, 0.0, 10.0)[cls] == running
    assert scored_by_class(0.0, 1.0, 0.0)[cls] == waiting
    assert scored_by_class(0.4, 0.25, 1.0)[cls] == pytest.approx(
        free * 0.4 + running * 0.75 + waiting * 0.9
    )


@pytest.mark.parametrize("settings", [DEFAULT, ShortWeights(), LongWeights()])
def test_the_default_weights_of_a_class_sum_to_1(settings):
    total = settings.free_weight + settings.running_weight + settings.waiting_weight
    assert total == pytest.approx(1.0, abs=1e-12)


def test_a_class_is_weighed_as_configured():
    settings = ScoreSettings(
        short=ShortWeights(free_weight=0.0, running_weight=1.0, waiting_weight=0.0),
        long=LongWeights(free_weight=1.0, running_weight=0.0, waiting_weight=0.0),
    )
    assert list(scored_by_class(0.25, 0.375, 0.0, settings).values()) == [
        0.625,
        pytest.approx(0.5 * 0.25 + 0.3 * 0.625 + 0.2),
        0.25,
    ]


rooms = st.integers(0, 10_000).map(lambda number: number / 10_000)


@given(rooms, rooms, depths)
def test_the_scarcer_room_counts_most_for_the_class_that_needs_it(free, slots, waiting):
    """Fewer blocks free than slots: long < mixed < short. Fewer slots: the other way round."""
    by_class = scored_by_class(free, 1.0 - slots, waiting)
    short, mixed, long = by_class.values()
    if abs(free - slots) < 1e-6:
        assert long == pytest.approx(mixed) == pytest.approx(short)
    elif free < slots:
        assert long < mixed < short
    else:
        assert short < mixed < long


@given(ratios, ratios, depths)
def test_a_full_replica_is_full_and_an_empty_one_empty_for_every_class(free, running, waiting):
    assert set(scored_by_class(0.0, 1.0, 10.0).values()) == {0.0}
    assert list(scored_by_class(1.0, 0.0, 0.0).values()) == pytest.approx([1.0] * 3)
    assert all(0.0 <= worth <= 1.0 for worth in scored_by_class(free, running, waiting).values())
