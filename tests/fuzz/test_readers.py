"""Both readers against random peers: the bounded form of `make fuzz`, always with the same seed.

`python tests/fuzz/run.py --seed N` goes on from any seed, for as long as one likes.
"""

from collections.abc import Callable
from random import Random

import pytest

import driver
import endless

pytestmark = pytest.mark.slow

SEED = 1


@pytest.mark.parametrize("side", driver.SIDES.values(), ids=driver.SIDES.keys())
def test_nothing_that_a_peer_sends_breaks_what_must_hold(side: driver.Side) -> None:
    driver.run(side, SEED, seconds=60.0, most=300)


@pytest.mark.parametrize("side", driver.SIDES.values(), ids=driver.SIDES.keys())
def test_nothing_of_very_much_that_a_peer_sends_does(side: driver.Side) -> None:
    driver.run(side, SEED + 1, seconds=60.0, most=6_000 if side.name == "requests" else 3_000)


@pytest.mark.parametrize("check", [endless.check_request, endless.check_response])
def test_a_peer_that_never_ends_costs_bounded_memory_and_time(
    check: Callable[[Random], None],
) -> None:
    for number in range(20):
        check(Random(f"{SEED}/{number}"))


@pytest.mark.parametrize("check", [endless.check_request, endless.check_response])
def test_many_peers_that_never_end_do(check: Callable[[Random], None]) -> None:
    for number in range(300):
        check(Random(f"{SEED + 1}/{number}"))
