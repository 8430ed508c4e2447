"""What ships, in the lab's loop: without vLLM, on replicas that only answer."""

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from ullage_sidecar.core.warmup import WarmUpSettings
from ullage_tune.ours import OurRouter, Ours, number_of, server_of
from ullage_tune.policy import Hardware, OnStep
from ullage_tune.workload import Request, Segment


class Idle:
    """A cluster whose engines do nothing, in a time of its own."""

    def __init__(self, replicas: int) -> None:
        self.common: dict[str, Any] = {}
        self.began = [-3600.0] * replicas
        self.gone: set[int] = set()
        self._at_s = 0.0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._joiners: list[Callable[[int], None]] = []

    def run_until(self, end_s: float) -> None:
        while self._agenda and self._agenda[0][0] <= end_s:
            self._at_s, _, call = heappop(self._agenda)
            call()
        self._at_s = end_s

    def join(self) -> None:
        self.began.append(self._at_s)
        for call in self._joiners:
            call(len(self.began) - 1)

    def present(self) -> list[int]:
        return list(range(len(self.began)))

    def hardware(self, replica: int) -> Hardware:
        return Hardware(256, 1000, 16)

    def now_s(self) -> float:
        return self._at_s

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        heappush(self._agenda, (self._at_s + delay_s, next(self._order), call))

    def on_join(self, call: Callable[[int], None]) -> None:
        self._joiners.append(call)

    def answers(self, replica: int) -> bool:
        return replica not in self.gone

    def began_s(self, replica: int) -> float:
        return self.began[replica]

    def hear(self, replica: int, call: OnStep) -> None:
        """There is nothing to hear."""


TEXTS = count(10_000)
"""None comes twice: what is known somewhere would go there."""


def chosen(router: OurRouter, cluster: Idle, requests: int = 200) -> Counter[int | None]:
    """Where so many go, each ended before the next one comes."""
    seen: Counter[int | None] = Counter()
    for _ in range(requests):
        request = Request(cluster.now_s(), (Segment(next(TEXTS), 50),), 5)
        replica = router.choose(request, cluster.now_s())
        seen[replica] += 1
        if replica is not None:
            router.finished(request, replica, cluster.now_s())
    return seen


def test_a_server_has_a_url_and_the_url_its_number() -> None:
    assert [number_of(server_of(number)) for number in (0, 7, 128)] == [0, 7, 128]


def test_idle_replicas_that_have_long_served_share_evenly() -> None:
    cluster = Idle(2)
    router = Ours()(cluster, Random(1))  # type: ignore[arg-type]
    cluster.run_until(2.0)
    seen = chosen(router, cluster)
    assert seen.keys() == {0, 1}
    assert min(seen.values()) > 60


def test_one_that_joins_is_chosen_by_all_routers_once_its_uptime_allows_it() -> None:
    cluster, settings = Idle(2), WarmUpSettings(rounds=0)
    routers = [Ours()(cluster, Random(seed)) for seed in (1, 2)]  # type: ignore[arg-type]
    cluster.run_until(10.0)
    cluster.join()
    cluster.run_until(10.0 + settings.zero_until_s - 2.0)
    assert all(2 not in chosen(router, cluster) for router in routers)
    cluster.run_until(10.0 + settings.ramp_until_s + 2.0)
    assert all(chosen(router, cluster)[2] > 40 for router in routers)


def test_one_that_is_gone_is_chosen_no_more() -> None:
    cluster = Idle(2)
    router = Ours()(cluster, Random(1))  # type: ignore[arg-type]
    cluster.run_until(2.0)
    cluster.gone.add(0)
    cluster.run_until(5.0)
    assert chosen(router, cluster).keys() == {1}
