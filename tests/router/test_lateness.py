"""Is the router itself what holds requests up?"""

import asyncio
import time
from collections.abc import Iterator

import pytest

from data_plane import eventually
from ullage_router import lateness
from ullage_router.lateness import BOUNDS, watch_lateness
from ullage_router.tally import Histogram


@pytest.fixture
def late_s(monkeypatch: pytest.MonkeyPatch) -> Iterator[Histogram]:
    """What is seen of this loop, looked at often."""
    monkeypatch.setattr(lateness, "EVERY_S", 0.005)
    return Histogram(BOUNDS)


async def test_a_loop_that_was_held_up_is_late_by_as_much(late_s: Histogram) -> None:
    watching = asyncio.ensure_future(watch_lateness(late_s))
    await eventually(lambda: sum(late_s.counts))
    before = late_s.sum
    time.sleep(0.05)  # noqa: ASYNC251 -- what holds the loop up
    seen = sum(late_s.counts)
    await eventually(lambda: sum(late_s.counts) > seen)
    watching.cancel()
    assert late_s.sum - before >= 0.04


async def test_a_timer_that_rings_early_is_not_late(
    late_s: Histogram, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = iter(float(100 - second) for second in range(100))  # A clock that runs back.
    monkeypatch.setattr(lateness, "perf_counter", lambda: next(now_s))
    watching = asyncio.ensure_future(watch_lateness(late_s))
    await eventually(lambda: sum(late_s.counts))
    watching.cancel()
    assert (late_s.sum, late_s.counts[0]) == (0.0, sum(late_s.counts))
