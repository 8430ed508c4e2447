"""What `/metrics` says of replicas that have left with requests under way, and of what is routed
by when nobody speaks for any."""

from random import Random

import pytest

from data_plane import data_plane
from router_metrics import scrape, value
from snapshots import document, snapshot
from ullage_router.core.fleet import Fleet, fleet_of, hear
from ullage_router.core.lineup import Basis
from ullage_router.core.rules import Rules
from ullage_router.router import Router
from ullage_shared.snapshot import Snapshot, State

SIDECAR = "http://node:9400"
A, B, C = "http://a:8000", "http://b:8000", "http://c:8000"
NOW = {f"replica_{name}" for name in ("score", "snapshot_age_seconds", "standing", "set_aside")} | {
    "replica_ejected"
}


def heard(*replicas: Snapshot, before: Fleet | None = None, now_s: float = 0.0) -> Fleet:
    return hear(before or fleet_of([]), SIDECAR, document(*replicas), now_s)[0]


async def test_one_that_has_left_has_counts_and_nothing_that_is_now() -> None:
    """Its age would grow for as long as its last answer takes, and count as a silent sidecar."""
    clock = [0.0]
    router = Router(heard(snapshot(A, 0.9), snapshot(C, 0.9)), Rules(), Random(1), lambda: clock[0])
    router.dispatch(router.fleet.replicas[A])
    clock[0] = 120.0
    router.fleet = heard(snapshot(C, 0.9, seq=2), before=router.fleet, now_s=120.0)
    async with data_plane() as plane:
        metrics = scrape(router, plane.proxy)
    assert value(metrics, "dispatched_total", replica="a:8000") == 1.0
    assert value(metrics, "in_flight", replica="a:8000") == 1.0
    for name in NOW:
        assert {s.labels["replica"] for s in metrics[name].samples} == {"c:8000"}, name


async def test_a_name_that_is_used_anew_is_told_of_once() -> None:
    """A pod that was rescheduled twice under one name, its last answers at both old places."""
    router = Router(heard(snapshot(A, 0.9, id="n/a")), Rules(), Random(1), lambda: 0.0)
    for seq, url in enumerate((B, C), 2):
        router.dispatch(next(iter(router.fleet.replicas.values())))
        router.fleet = heard(snapshot(url, 0.9, id="n/a", seq=seq), before=router.fleet)
    for _ in range(3):
        router.dispatch(router.fleet.replicas[C])
    async with data_plane() as plane:
        metrics = scrape(router, plane.proxy)  # Looks for series that are there twice.
        assert value(metrics, "dispatched_total", replica="n/a") == 3.0
        router.fleet = heard(before=router.fleet)
        assert len(router.leaving) == 3
        scrape(router, plane.proxy)


LOST_S = Rules().choose.forget_after_s + 30.0


@pytest.mark.parametrize(
    ("replicas", "now_s", "by"),
    [
        ((snapshot(A, 0.9),), 0.0, Basis.SCORE),
        ((snapshot(A, 0.01),), 0.0, Basis.FULL),
        ((snapshot(A, 0.9, state=State.DOWN),), 0.0, Basis.NO_REPLICA),
        ((), 0.0, Basis.NO_REPLICA),
        ((snapshot(A, 0.9), snapshot(C, 0.9)), 10.0, Basis.OWN_COUNTS),
        ((snapshot(A, 0.9), snapshot(C, 0.9)), LOST_S, Basis.OWN_COUNTS),
    ],
    ids=["score", "full", "down", "nobody", "stale", "lost"],
)
async def test_it_is_told_what_the_next_request_is_judged_by(
    replicas: tuple[Snapshot, ...], now_s: float, by: Basis
) -> None:
    """Those that are all lost are served all the same: no router is without a replica then."""
    router = Router(heard(*replicas), Rules(), Random(1), lambda: now_s)
    async with data_plane() as plane:
        metrics = scrape(router, plane.proxy)
    told = {s.labels["by"]: s.value for s in metrics["routing_by"].samples}
    assert told == {each.value: float(each is by) for each in Basis}
