"""Four routers side by side, that know of each other only how many they are, share a fleet well.

They are real processes, as is the sidecar; the replicas are stand-ins (see `four_routers`). All of
it is measured once, for some 25 s; each test is about one thing that was seen. `highest`, the way
that floods the emptiest replica, is the control: what it does must look as bad as it is.

Edges: nothing else runs, and a third of what the fleet can do; a key that comes more often than the
threshold, and less; all routers ask at the same moment, of the same picture.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
import uvloop

from four_routers import (
    HOT_PER_S,
    REPLICAS,
    ROUTERS,
    Sent,
    Site,
    dispersion,
    ended,
    four_routers,
    together,
)

pytestmark = [pytest.mark.slow, pytest.mark.alone]

WAYS = ("least_wait", "weighted")
CONTROL = "highest"
VOLLEYS_PER_S = 20.0
LOAD_S = 3.5
HOT_S = 7.0
"""A key at 1.5 x the threshold has counted up to it after 5.5 s."""
NEW_KEYS, NEW_KEYS_IDLE = 24, 20


@dataclass
class Seen:
    """What was seen of one way."""

    volleys: list[list[Sent]]
    looks: list[list[int]]
    agreed: list[bool] = field(default_factory=list)
    """Under that load: do two routers agree on a new key?"""
    agreed_idle: list[bool] = field(default_factory=list)
    often: list[Sent] = field(default_factory=list)
    """A key at 1.5 x the threshold."""
    seldom: list[Sent] = field(default_factory=list)
    """One at half of it."""

    @property
    def served(self) -> list[Sent]:
        return [sent for volley in self.volleys for sent in volley if sent.status == 200]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    folder = tmp_path_factory.mktemp("four")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measured(folder))


async def _measured(folder: Path) -> dict[str, Seen]:
    async with four_routers(folder) as site:
        return {way: await _of(site, way) for way in (*WAYS, CONTROL)}


async def _of(site: Site, way: str) -> Seen:
    """Under load first: from then on the routers know how fast the replicas are."""
    await site.choose(way)
    await site.idle()
    hot = way == "weighted"
    looks: list[list[int]] = []
    watching = asyncio.ensure_future(site.watch(looks))
    volleys, agreed, often, seldom = await asyncio.gather(
        site.volleys(VOLLEYS_PER_S, HOT_S if hot else LOAD_S, Random(3)),
        asyncio.gather(*(_agreed(site, f"{way} {lane}", NEW_KEYS) for lane in range(4))),
        site.same_key("often", 1.5 * HOT_PER_S, HOT_S * hot),
        site.same_key("seldom", 0.5 * HOT_PER_S, HOT_S * hot),
    )
    await ended([watching])
    await site.idle()
    idle = await _agreed(site, f"{way} idle", NEW_KEYS_IDLE) if way != CONTROL else []
    return Seen(volleys, looks, [one for lane in agreed for one in lane], idle, often, seldom)


async def _agreed(site: Site, name: str, keys: int) -> list[bool]:
    return [await site.agree_on(f"{name} {turn}", turn) for turn in range(keys)]


@pytest.mark.parametrize("way", WAYS)
def test_each_replica_gets_about_its_share(seen: dict[str, Seen], way: str) -> None:
    served = seen[way].served
    assert len(served) >= 0.95 * ROUTERS * len(seen[way].volleys)
    shares = Counter(sent.replica for sent in served)
    fair = len(served) / REPLICAS
    assert len(shares) == REPLICAS
    assert all(fair / 3 <= count <= 2 * fair for count in shares.values()), shares


@pytest.mark.parametrize("way", WAYS)
def test_each_router_uses_nearly_all_replicas(seen: dict[str, Seen], way: str) -> None:
    for router in range(ROUTERS):
        used = {sent.replica for sent in seen[way].served if sent.router == router}
        assert len(used) >= REPLICAS - 1


@pytest.mark.parametrize("way", WAYS)
def test_on_an_idle_fleet_two_routers_nearly_always_agree_where_a_new_key_goes(
    seen: dict[str, Seen], way: str
) -> None:
    agreed = seen[way].agreed_idle
    assert sum(agreed) / len(agreed) >= 0.75  # 0.93 to 1 where nothing else runs on the machine.


@pytest.mark.parametrize(("way", "share"), [("least_wait", 0.25), ("weighted", 0.18)])
def test_under_load_they_agree_more_often_than_by_chance(
    seen: dict[str, Seen], way: str, share: float
) -> None:
    """Chance is 0.125. The picture changes between the two; and by score, each compares what it has
    sent itself, which the other does not know."""
    agreed = seen[way].agreed
    assert sum(agreed) / len(agreed) >= share  # About 0.5, and 0.35.


def test_a_key_at_half_as_much_again_as_the_threshold_becomes_hot_at_every_router(
    seen: dict[str, Seen],
) -> None:
    """Each router sees 0.375 of the threshold: it is the cluster's."""
    late = [sent for sent in seen["weighted"].often[-int(HOT_PER_S) :] if sent.status == 200]
    assert {sent.router for sent in late if sent.why == "hot_key"} == set(range(ROUTERS))
    assert len({sent.replica for sent in late}) > 1


def test_a_key_at_half_of_the_threshold_never_does(seen: dict[str, Seen]) -> None:
    seldom = seen["weighted"].seldom
    assert len(seldom) == round(0.5 * HOT_PER_S * HOT_S)
    assert "hot_key" not in {sent.why for sent in seldom}


MOST_TOGETHER = 3.0
"""Times chance (see `together`)."""


def _together(seen: Seen) -> float:
    return together([[sent.replica for sent in volley] for volley in seen.volleys])


@pytest.mark.parametrize("way", WAYS)
def test_four_requests_of_one_moment_do_not_herd(seen: dict[str, Seen], way: str) -> None:
    assert _together(seen[way]) <= MOST_TOGETHER  # About 2.3, and 1.1.


def test_those_of_routers_that_take_the_highest_score_do(seen: dict[str, Seen]) -> None:
    """The control: the same load, the same fleet, the same statistic."""
    assert _together(seen[CONTROL]) > MOST_TOGETHER  # About 5.5.


@pytest.mark.parametrize("way", WAYS)
def test_over_time_replicas_are_about_as_even_as_by_chance(seen: dict[str, Seen], way: str) -> None:
    assert dispersion(seen[way].looks) <= 1.5  # About 1.0, and 0.8.


def test_the_statistics_tell_a_herd_from_chance() -> None:
    """Made up: volleys of four, each in flight for one look."""
    dice = Random(1)
    chance = [dice.choices(range(REPLICAS), k=ROUTERS) for _ in range(2_000)]
    herd = [[dice.randrange(REPLICAS)] * ROUTERS for _ in range(2_000)]
    for volleys, as_one in ((chance, 1.0), (herd, float(ROUTERS))):
        looks = [[volley.count(at) for at in range(REPLICAS)] for volley in volleys]
        # Of so few at a time the fleet's mean is no chance: (1 - 1/8) of the variance is left.
        assert dispersion(looks) == pytest.approx(as_one * (1 - 1 / REPLICAS), rel=0.1)
    assert together([[str(at) for at in volley] for volley in chance]) == pytest.approx(
        1.0, rel=0.1
    )
    assert together([[str(at) for at in volley] for volley in herd]) == REPLICAS
