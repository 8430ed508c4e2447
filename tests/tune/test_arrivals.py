"""Instants: exact along the pieces of a rate, and as uneven as promised."""

import math
from itertools import islice, pairwise
from random import Random
from statistics import fmean as mean
from statistics import pvariance

import pytest

from ullage_tune.arrivals import (
    Piece,
    Swing,
    arrivals,
    dispersion,
    on_off,
    steady,
    swinging,
)
from ullage_tune.fit_arrivals import TICKED_S, WINDOWS_S, swings
from ullage_tune.shape import counts

pytestmark = pytest.mark.slow


def until(end_s: float, pieces: list[Piece], seed: int = 1) -> list[float]:
    return [at_s for at_s in arrivals(iter(pieces), Random(seed)) if at_s < end_s]


def test_pieces_of_one_rate_are_as_one_piece() -> None:
    whole = until(100.0, [Piece(100.0, 3.0)])
    cut = until(100.0, [Piece(k % 7 / 10.0 + 0.01, 3.0) for k in range(400)])
    assert cut == pytest.approx(whole)
    assert abs(len(whole) - 300) < 4.0 * math.sqrt(300)  # 4σ


def test_twice_the_rate_is_the_same_in_half_the_time() -> None:
    slow = list(islice(arrivals(steady(2.0), Random(1)), 50))
    fast = list(islice(arrivals(steady(4.0), Random(1)), 50))
    assert fast == pytest.approx([at_s / 2.0 for at_s in slow])


def test_an_end_of_the_pieces_is_an_end_of_arrivals() -> None:
    assert until(9.0, []) == []
    assert all(at_s <= 2.0 for at_s in until(9.0, [Piece(1.0, 50.0), Piece(1.0, 5.0)]))


def test_arrivals_may_begin_before_0() -> None:
    early = list(islice(arrivals(steady(2.0), Random(1), since_s=-10.0), 9))
    late = list(islice(arrivals(steady(2.0), Random(1)), 9))
    assert early == pytest.approx([at_s - 10.0 for at_s in late])


def test_bursts_are_so_many_times_the_calm_rate_and_the_mean_is_kept() -> None:
    pieces = list(islice(on_off(12.0, 5.0, 10.0, 30.0, Random(3)), 4_000))
    calm, burst = pieces[::2], pieces[1::2]
    assert {b.per_s / c.per_s for b, c in zip(burst, calm, strict=True)} == {5.0}
    arrived = sum(piece.lasts_s * piece.per_s for piece in pieces)
    assert arrived / sum(piece.lasts_s for piece in pieces) == pytest.approx(12.0, rel=0.02)
    assert mean(piece.lasts_s for piece in burst) == pytest.approx(10.0, rel=0.03)


def test_a_swinging_rate_has_its_mean_its_spread_and_its_memory() -> None:
    pieces = list(islice(swinging(4.0, [Swing(0.5, 2.0)], Random(5)), 50_000))
    rates = [piece.per_s for piece in pieces]
    assert mean(rates) == pytest.approx(4.0, rel=0.03)
    logs = [math.log(rate) for rate in rates]
    level = mean(logs)
    spread = pvariance(logs)
    assert math.sqrt(spread) == pytest.approx(0.5, rel=0.05)
    kept = mean((a - level) * (b - level) for a, b in pairwise(logs)) / spread
    assert kept == pytest.approx(math.exp(-pieces[0].lasts_s / 2.0), abs=0.02)


@pytest.mark.parametrize("none", [[], [Swing(0.0, 5.0)]])
def test_without_a_swing_it_is_plain_poisson(none: list[Swing]) -> None:
    assert list(swinging(4.0, none, Random(1))) == list(steady(4.0))


def test_a_short_window_sees_all_of_a_swing_and_a_long_one_nothing() -> None:
    swing = Swing(0.5, 10.0)
    assert dispersion(swing, 0.01) == pytest.approx(math.expm1(0.25), rel=0.01)
    assert dispersion(swing, 1e6) == pytest.approx(0.0, abs=1e-4)


def test_swings_are_found_again_in_what_they_made() -> None:
    made = arrivals(swinging(6.0, [Swing(0.4, 1.0), Swing(0.2, 300.0)], Random(2)), Random(3))
    fast, slow = swings(list(islice(made, 60_000)), WINDOWS_S)
    assert (fast.memory_s, slow.memory_s) == (1.0, 300.0)
    assert fast.sigma == pytest.approx(0.4, abs=0.05)
    assert slow.sigma == pytest.approx(0.2, abs=0.08)


def test_plain_poisson_has_next_to_no_swing() -> None:
    instants_s = list(islice(arrivals(steady(4.0), Random(1)), 20_000))
    assert all(swing.sigma < 0.1 for swing in swings(instants_s, TICKED_S))
    assert all(swing.sigma < 0.1 for swing in swings(instants_s, WINDOWS_S))


def test_the_arrivals_of_a_swing_are_as_uneven_as_the_formula_says() -> None:
    swing = Swing(0.4, 5.0)
    seen = list(islice(arrivals(swinging(8.0, [swing], Random(7)), Random(8)), 80_000))
    for window_s in (1.0, 10.0):
        n = counts(seen, window_s, seen[-1])
        cv2 = pvariance(n) / mean(n) ** 2
        wanted = 1.0 / (8.0 * window_s) + dispersion(swing, window_s)
        assert cv2 == pytest.approx(wanted, rel=0.1)
