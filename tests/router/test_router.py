"""The router's own state: what it logs and forgets."""

import logging
import random

import pytest

from ullage_router.core.fleet import fleet_of
from ullage_router.core.policy import Policy
from ullage_router.router import Router

A, B = "http://a:8000", "http://b:8000"


def test_a_replica_that_cannot_be_reached_is_logged_when_it_begins_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    router = Router(fleet_of([A]), Policy(), random.Random(0), now_s=iter(range(99)).__next__)
    (replica,) = router.fleet.replicas.values()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            router.failed(replica, "connect", "Connection refused")
        router.answered(replica)
        router.answered(replica)
    assert [line.partition(" replica=")[0] for line in caplog.messages] == [
        "replica_failing",
        "replica_answers",
    ]


def test_a_replica_that_leaves_takes_its_counts_along() -> None:
    router = Router(fleet_of([A, B]), Policy(), random.Random(0))
    for replica in router.fleet.replicas.values():
        hold, _ = router.dispatch(replica)
        hold.release()
    router.fleet = fleet_of([B])
    assert set(router.tallies) == {B}
