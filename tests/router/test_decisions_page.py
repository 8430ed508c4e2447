"""`/decisions`: the record of what was decided, by which numbers, and what it costs to tell."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from random import Random

import orjson
import pytest

from explained_site import A, B, router_with, site, told
from raw_client import request
from scripted_backend import response
from snapshots import snapshot
from ullage_router import admin as pages
from ullage_router.core.ask import Ask
from ullage_router.core.fleet import Replica
from ullage_router.explain import decisions_page, explained
from ullage_router.router import Router

pytestmark = pytest.mark.slow


# The record of decisions


async def test_decisions_are_the_latest_256_the_newest_first_each_with_its_candidates() -> None:
    async with site(2, scores=(0.9, 0.5)) as it:
        client = await it.plane.client()
        for number in range(300):
            headers = [(b"X-Request-Id", b"%d" % number)]
            await client.ask(request(body=b"{}", headers=headers))
        page = await it.decisions()
        assert [row["request_id"] for row in page] == [str(n) for n in range(299, 43, -1)]
        for row in page:
            assert len(row["candidates"]) == 2
            assert sum(c["odds"] for c in row["candidates"]) == pytest.approx(1.0)
            assert row["replica"] in {c["replica"] for c in row["candidates"]}


async def test_a_second_try_is_a_decision_of_its_own_without_the_first_replica() -> None:
    async with site(2, answer=response(b"{}", 503, b"Busy")) as it:
        await it.ask()
        second, first = await it.decisions()
        assert (first["second_try"], second["second_try"]) == (False, True)
        assert [len(row["candidates"]) for row in (first, second)] == [2, 1]
        assert {first["replica"], second["replica"]} == {c["replica"] for c in first["candidates"]}


async def test_a_decision_keeps_the_numbers_it_was_made_by() -> None:
    """What changes later is not read into the past."""
    async with site(2, scores=(0.9, 0.5)) as it:
        await it.ask()
        before = await it.decisions()
        it.hear(0.3, 0.2)
        it.clock.now_s += 2.0
        for _ in range(5):
            await it.ask()
        assert (await it.decisions())[5:] == before


def test_the_record_marks_the_home_that_the_key_had_then() -> None:
    router, clock = router_with(snapshot(A, 0.9, id="a"), snapshot(B, 0.9, id="b"))
    ask = Ask(keys=(1,))
    home = router.choose(ask).replica
    assert home is not None
    router.full(home)
    said = told(router, ask)
    moved_to = router.choose(ask).replica
    assert moved_to is not None
    assert moved_to is not home
    clock.now_s += 2.0
    router.choose(ask)
    after, moving, before = decisions_page(router)
    assert moving["candidates"] == said["candidates"]
    homes = [[row["replica"] for row in d["candidates"] if row["home"]] for d in (before, after)]
    assert homes == [[], [moved_to.id]]


NAMES = [
    "ünïcödé/引擎",
    'quote" \\ back',
    "line\nfeed\ttab",
    "\x00\x1f\x7f",
    "<script>",
    " ",
    "🦄" * 9,
]


@pytest.mark.parametrize("name", NAMES)
def test_the_pages_are_json_whatever_a_replica_is_called(name: str) -> None:
    router, _ = router_with(snapshot(A, 0.9, id=name), snapshot(B, 0.1, id=name + "2"))
    router.choose(Ask(), request_id=b'\x80\xff"\\\n')
    (row,) = orjson.loads(orjson.dumps(decisions_page(router)))
    assert (row["replica"], row["candidates"][0]["replica"]) == (name, name)
    assert row["request_id"] == '\x80ÿ"\\\n'
    assert set(told(router)["left_out"]) == {name + "2"}


# What a page costs the requests beside it


def test_the_record_holds_no_more_than_its_256_however_many_there_were() -> None:
    router, _ = router_with(*(snapshot(f"http://r{n}:8000", 0.9) for n in range(10)))
    for _ in range(1_000):
        router.choose(Ask())
    assert len(router.recent) == len(decisions_page(router)) == 256


MOST_NUMBERS = 4_096
"""Candidates of past decisions among more than 16, together: the page is made between requests."""


def numbers(router: Router) -> list[int]:
    """How many candidates each decision is told with, the newest first."""
    return [len(row["candidates"]) for row in decisions_page(router)]


def test_of_a_large_fleet_the_latest_decisions_are_told_with_all_and_the_others_without() -> None:
    router, _ = router_with(*(snapshot(f"http://r{n}:8000", 0.9) for n in range(100)))
    for _ in range(300):
        router.choose(Ask())
    assert numbers(router) == [100] * 40 + [0] * 216


def test_nor_does_the_page_grow_when_this_router_has_filled_the_fleet() -> None:
    router, _ = router_with(
        *(snapshot(f"http://r{n}:8000", 0.9, max_num_seqs=1) for n in range(100))
    )
    for replica in router.fleet.replicas.values():
        router.dispatch(replica)
    for _ in range(256):
        assert router.choose(Ask()).why == "full"
    assert sum(numbers(router)) <= MOST_NUMBERS


def test_nor_where_decisions_over_few_replicas_come_between() -> None:
    many = [snapshot(f"http://r{n}:8000", 0.9, models=("many",)) for n in range(128)]
    router, _ = router_with(*many, snapshot(A, 0.9, models=("one",)))
    dice = Random(1)
    for _ in range(256):
        router.choose(Ask(model=dice.choice(["many", "one"])))
    among = Counter(numbers(router))
    assert among.keys() == {128, 1, 0}
    assert 128 * among[128] == MOST_NUMBERS


class Counting(Mapping[str, Replica]):
    """Replicas, and how often all of them were gone through."""

    def __init__(self, replicas: Mapping[str, Replica]) -> None:
        self.looks = 0
        self._replicas = replicas

    def __getitem__(self, key: str) -> Replica:
        return self._replicas[key]

    def __len__(self) -> int:
        return len(self._replicas)

    def __iter__(self) -> Iterator[str]:
        self.looks += 1
        return iter(self._replicas)


PAGES: dict[str, Callable[[Router], object]] = {
    "/healthz": lambda router: pages.health_page(router),
    "/replicas": lambda router: pages.replicas_page(router, {}, router.now_s()),
    "/explain": lambda router: explained(router, Ask()),
}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES.keys())
def test_a_page_goes_through_the_fleet_a_few_times_and_not_once_for_each_replica(
    page: Callable[[Router], object],
) -> None:
    """With one of 1,000 struck, a probe of /healthz took half a second, in which nothing else
    went on."""
    router, _ = router_with(*(snapshot(f"http://r{n}:8000", 0.9) for n in range(100)))
    router.full(router.fleet.replicas["http://r7:8000"])
    replicas = Counting(router.fleet.replicas)
    router.fleet = replace(router.fleet, replicas=replicas)
    page(router)
    assert replicas.looks <= 20
