"""Routers that see the same place new keys alike."""

from collections.abc import Mapping
from random import Random

import pytest

from mission import AS_ASKED
from selecting import choose, names, odds_of
from snapshots import fleet_with
from ullage_router.core.affinity import Memory
from ullage_router.core.decide import Why
from ullage_router.core.selection import neighbours

KEYS = 1_000


def placed(scores: Mapping[str, float], *, seed: int) -> list[str]:
    """Where a router that knows nothing yet sends each of the same new keys."""
    odds, keys, dice = odds_of(fleet_with(scores), AS_ASKED), Random(11), Random(seed)
    homes = []
    for _ in range(KEYS):
        key = keys.getrandbits(64)
        decision = choose(odds, (key,), 0.0, dice, AS_ASKED, Memory(1))
        assert decision.replica is not None
        assert decision.why is Why.NEW_KEY
        homes.append(decision.replica.key)
    return homes


def some_scores(seed: int, count: int = 8) -> dict[str, float]:
    rng = Random(seed)
    return {url: rng.uniform(0.3, 0.9) for url in names(count)}


@pytest.mark.parametrize("count", [8, 64, 300])
def test_routers_that_see_the_same_place_new_keys_alike_without_talking(count: int) -> None:
    scores = some_scores(1, count)
    assert placed(scores, seed=1) == placed(scores, seed=2)


@pytest.mark.parametrize("count", [8, 64])
def test_routers_that_see_nearly_the_same_place_nearly_all_new_keys_alike(count: int) -> None:
    scores, rng = some_scores(1, count), Random(3)
    nearly = {url: score * rng.uniform(0.98, 1.02) for url, score in scores.items()}
    alike = sum(
        one == other
        for one, other in zip(placed(scores, seed=1), placed(nearly, seed=2), strict=True)
    )
    assert alike / KEYS >= 0.95


def test_a_replica_that_leaves_moves_only_the_keys_that_lived_there() -> None:
    before = placed(dict.fromkeys(names(8), 0.6), seed=1)
    gone = names(8)[3]
    after = placed({url: 0.6 for url in names(8) if url != gone}, seed=2)
    assert gone in before
    for home, then in zip(before, after, strict=True):
        assert then == home or home == gone


def test_the_neighbours_of_a_key_are_those_that_follow_it_on_the_ring() -> None:
    seats = odds_of(fleet_with(dict.fromkeys(names(5), 0.5)), AS_ASKED).seats
    assert neighbours(0, seats, 2) == [0, 1]
    assert neighbours(seats[1].seed, seats, 4) == [2, 3, 4, 0]
    assert neighbours(2**64 - 1, seats, 9) == [0, 1, 2, 3, 4]
