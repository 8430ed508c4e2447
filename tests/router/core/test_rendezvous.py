"""Routers that see the same place new keys alike: by score, and by the least wait.

Edges, by the least wait: one replica; a fleet of which only some are looked at; nothing known of a
prompt, its head, all of it; equal waits, and waits that differ little.
"""

from collections.abc import Mapping, Sequence
from random import Random

import pytest

from mission import AS_ASKED
from selecting import choose, names, odds_of
from snapshots import document, fleet_with, snapshot
from ullage_router.core import decide
from ullage_router.core.affinity import Memory
from ullage_router.core.decision import Need, Why
from ullage_router.core.fleet import Fleet, fleet_of, hear
from ullage_router.core.inflight import InFlight
from ullage_router.core.lineup import line_up
from ullage_router.core.odds import Odds
from ullage_router.core.policy import Policy, Way
from ullage_router.core.prefixes import Prefixes
from ullage_router.core.rules import Rules
from ullage_router.core.selection import neighbours
from ullage_shared.snapshot import RequestClass

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


LEAST_WAIT = Rules(Policy(Way.LEAST_WAIT))


def sent(
    fleet: Fleet,
    *,
    seed: int,
    known: tuple[int, ...] = (),
    at: Sequence[str] = (),
    whole: bool = False,
) -> list[str]:
    """Where a router sends one prompt after another, each with a key behind those `known` `at` some
    replicas; `whole`: they are all that a prompt has."""
    odds = Odds(line_up(fleet, None, RequestClass.MIXED, 0.0, LEAST_WAIT), InFlight())
    keys, dice, prefixes, homes = Random(11), Random(seed), Prefixes(10), []
    for replica in at:
        prefixes.keep(known, fleet.replicas[replica])
    for _ in range(KEYS):
        chain = known if whole else (*known, keys.getrandbits(64))
        shares = tuple((level + 1) / len(chain) for level in range(len(chain)))
        need = Need(keys=chain, shares=shares, prompt_tokens=200)
        decision = decide.choose(odds, need, 0.0, dice, LEAST_WAIT, Memory(1), prefixes)
        assert decision.replica is not None
        homes.append(decision.replica.key)
    return homes


def paced(count: int, seed: int | None = None) -> Fleet:
    """Idle ones, equally fast; with a seed, within 2 %."""
    rng = Random(seed)
    told = [
        snapshot(
            url, 0.9, running=0, step_s=0.02,
            prefill_tokens_per_s=10_000.0 * (rng.uniform(0.98, 1.02) if seed else 1.0),
        )
        for url in names(count)
    ]  # fmt: skip
    return hear(fleet_of([]), "http://sidecar:9400", document(*told), 0.0)[0]


@pytest.mark.parametrize("count", [1, 8, 64])
def test_by_the_least_wait_too_routers_that_see_the_same_send_new_prompts_alike(count: int) -> None:
    one = sent(paced(count), seed=1)
    assert one == sent(paced(count), seed=2)
    allowed = 4 * (KEYS / count * (1 - 1 / count)) ** 0.5
    assert all(abs(one.count(url) - KEYS / count) <= allowed for url in names(count))


def test_by_the_least_wait_too_what_differs_little_places_nearly_all_alike() -> None:
    pairs = zip(sent(paced(8), seed=1), sent(paced(8, 2), seed=2), strict=True)
    assert sum(one == other for one, other in pairs) / KEYS >= 0.9


def test_of_a_prompt_whose_beginning_some_know_the_rest_is_placed_alike() -> None:
    some = names(8)[2:5]
    one = sent(paced(8), seed=1, known=(7,), at=some)
    assert one == sent(paced(8), seed=2, known=(7,), at=some)
    assert set(some) <= set(one)


def test_a_prompt_that_several_know_whole_is_drawn_anew_each_time() -> None:
    """All routers would send it to the same one otherwise."""
    some = names(8)[2:5]
    one = sent(paced(8), seed=1, known=(7,), at=some, whole=True)
    assert set(some) <= set(one)
    assert one != sent(paced(8), seed=2, known=(7,), at=some, whole=True)
