"""Several workers' pages made one: what is added up, what is not, and that counts only grow."""

import asyncio
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from ullage_router.aggregate import (
    Families,
    Family,
    decisions,
    health,
    merge,
    metrics,
    parse,
    replicas,
    total,
)
from ullage_router.exposition import exposition
from ullage_router.families import HELP, LARGEST

P = "ullage_router_"


def page(
    dispatched: Mapping[str, int],
    *,
    in_flight: int = 0,
    score: float = 0.5,
    seconds: tuple[int, ...] = (0, 0, 0),
) -> Families:
    """What a worker with these counts, by replica, answers; read as the supervisor reads it."""
    counter = CounterMetricFamily(f"{P}dispatched", "Sent.", labels=["replica"])
    gauge = GaugeMetricFamily(f"{P}in_flight", "Now.", labels=["replica"])
    scores = GaugeMetricFamily(f"{P}replica_score", "Score.", labels=["replica"])
    histogram = HistogramMetricFamily(f"{P}duration_seconds", "Time.", labels=["replica"])
    for name, count in dispatched.items():
        counter.add_metric([name], count)
        gauge.add_metric([name], in_flight)
        scores.add_metric([name], score)
        buckets = list(zip(("1.0", "2.0", "+Inf"), seconds, strict=True))
        histogram.add_metric([name], buckets, float(sum(seconds)))
    text = asyncio.run(exposition([counter, gauge, scores, histogram]))
    return parse(text.decode())


def value(families: Families, name: str, **labels: str) -> float | None:
    family = families[P + name.removesuffix("_total").removesuffix("_bucket")]
    return family.samples.get((P + name, tuple(sorted(labels.items()))))


def test_counts_are_added_up_histograms_too() -> None:
    merged = merge([page({"a": 3}, seconds=(1, 2, 2)), page({"a": 4, "b": 1}, seconds=(0, 1, 5))])
    assert value(merged, "dispatched_total", replica="a") == 7.0
    assert value(merged, "dispatched_total", replica="b") == 1.0
    buckets = [
        value(merged, "duration_seconds_bucket", replica="a", le=le)
        for le in ("1.0", "2.0", "+Inf")
    ]
    assert buckets == [1.0, 3.0, 7.0]


def test_of_gauges_each_has_a_part_or_all_have_a_view() -> None:
    merged = merge([page({"a": 0}, in_flight=3, score=0.2), page({"a": 0}, in_flight=4, score=0.7)])
    assert value(merged, "in_flight", replica="a") == 7.0
    assert value(merged, "replica_score", replica="a") == 0.7


def test_only_metrics_that_exist_are_declared_to_be_views() -> None:
    of_the_process = {"process_start_time_seconds"}
    assert {P + name for name in HELP} | of_the_process >= LARGEST


def test_ways_of_routing_are_not_added_up() -> None:
    """As many workers as there are may be of one mind: it is 1 all the same."""
    by = (("by", "score"),)
    told = {f"{P}routing_by": Family("gauge", "", {(f"{P}routing_by", by): 1.0})}
    assert value(merge([told, told]), "routing_by", by="score") == 1.0


def test_of_workers_started_at_different_times_the_latest_start_counts() -> None:
    """The sum of two would lie in a far future."""
    name = "process_start_time_seconds"
    workers = [{name: Family("gauge", "", {(name, ()): at})} for at in (1_000.0, 2_000.0)]
    assert merge(workers)[name].samples == {(name, ()): 2_000.0}


def test_a_worker_that_has_ended_leaves_its_counts_and_no_gauge() -> None:
    departed = total([page({"a": 5}, in_flight=2), page({"a": 1})])
    merged = merge([page({"a": 1}, in_flight=1)], [departed])
    assert value(merged, "dispatched_total", replica="a") == 7.0
    assert value(merged, "in_flight", replica="a") == 1.0


def test_a_replica_that_no_worker_knows_vanishes_and_returns_with_all_its_counts() -> None:
    departed = total([page({"a": 5, "b": 5})])
    merged = merge([page({"a": 1})], [departed])
    assert value(merged, "dispatched_total", replica="b") is None
    assert value(merge([page({"b": 1})], [departed]), "dispatched_total", replica="b") == 6.0


def test_while_no_worker_answers_all_that_was_counted_stands() -> None:
    merged = merge([], [page({"a": 5}, in_flight=3)])
    assert value(merged, "dispatched_total", replica="a") == 5.0
    assert P + "in_flight" not in merged


def test_what_is_merged_reads_as_what_one_worker_says() -> None:
    one = page({"a": 5, 'odd "name"\\\n': 1}, seconds=(1, 2, 3))
    assert parse(asyncio.run(exposition(metrics(one))).decode()) == one


def counted(number: int) -> Families:
    series = (f"{P}dispatched_total", (("replica", "a"),))
    return {f"{P}dispatched": Family("counter", "Sent.", {series: float(number)})}


steps = st.tuples(
    st.integers(0, 2),  # The worker,
    st.sampled_from(["count", "die", "silent"]),  # and what it does before the next look.
    st.integers(0, 5),
)


@given(st.lists(steps, max_size=30))
def test_whatever_workers_do_counts_never_go_backwards(history: list[tuple[int, str, int]]) -> None:
    counts = [0, 0, 0]
    seen: list[Families] = [counted(0)] * 3
    departed: Families = {}
    shown = 0.0
    for worker, event, number in history:
        counts[worker] += number
        answering = set(range(3))
        if event == "die":
            departed = total([departed, seen[worker]])
            counts[worker], seen[worker] = 0, {}
        elif event == "silent":
            answering.remove(worker)
        for index in answering:
            seen[index] = counted(counts[index])
        others = [departed, *(seen[index] for index in set(range(3)) - answering)]
        now = value(merge([seen[i] for i in answering], others), "dispatched_total", replica="a")
        assert now is not None
        assert now >= shown
        shown = now


def row(url: str = "http://a:1", **changes: object) -> dict[str, object]:
    fresh = {"url": url, "dp_rank": None, "age_s": 0.5, "in_flight": 0, "dispatched": 0}
    return {**fresh, **changes}


def replicas_of(*rows: dict[str, object], routing_by: str = "score", problem: str = "") -> dict:
    sidecar = {"url": "http://s:1", "problem": problem, "faults": []}
    return {"routing_by": routing_by, "replicas": list(rows), "sidecars": [sidecar], "sources": []}


def test_a_row_is_the_latest_view_with_the_counts_of_all() -> None:
    merged = replicas(
        [
            replicas_of(row(in_flight=1, dispatched=10, age_s=0.4, capacity_score=0.1)),
            replicas_of(row(in_flight=2, dispatched=20, age_s=0.1, capacity_score=0.2)),
            replicas_of(row(in_flight=3, dispatched=30, age_s=None, capacity_score=None)),
        ]
    )
    assert merged["replicas"] == [
        row(in_flight=6, dispatched=60, age_s=0.1, capacity_score=0.2),
    ]


def test_ranks_of_one_server_stay_apart() -> None:
    ranks = [row(dp_rank=0), row(dp_rank=1)]
    assert replicas([replicas_of(*ranks), replicas_of(*ranks)])["replicas"] == ranks


def test_one_workers_trouble_with_a_sidecar_shows() -> None:
    merged = replicas([replicas_of(), replicas_of(problem="Connection refused")])
    assert [s["problem"] for s in merged["sidecars"]] == ["Connection refused"]


@pytest.mark.parametrize(
    ("ways", "shown"),
    [(("score", "score"), "score"), (("score", "own_counts"), "mixed"), ((), "score")],
)
def test_how_requests_are_routed_is_what_all_workers_agree_on(
    ways: tuple[str, ...], shown: str
) -> None:
    assert replicas([replicas_of(routing_by=way) for way in ways])["routing_by"] == shown


def test_decisions_are_in_order_newest_first_each_with_its_worker() -> None:
    pages = {1: [{"at": 5.0}, {"at": 1.0}], 2: [{"at": 3.0}]}
    assert decisions(pages) == [
        {"at": 5.0, "worker": 1},
        {"at": 3.0, "worker": 2},
        {"at": 1.0, "worker": 1},
    ]
    assert len(decisions({1: [{"at": 0.0}] * 256, 2: [{"at": 1.0}] * 256})) == 256


@pytest.mark.parametrize(
    ("eligible", "stopping", "status"),
    [((0, 2), False, 200), ((0, 0), False, 503), ((), False, 503), ((2, 2), True, 503)],
)
def test_the_router_is_well_while_one_worker_is(
    eligible: tuple[int, ...], stopping: bool, status: int
) -> None:
    pages = [{"eligible": n, "serving": n, "replicas": 2, "stopping": False} for n in eligible]
    got, content = health(pages, stopping=stopping)
    assert (got, content["eligible"]) == (status, max(eligible, default=0))
    assert content["stopping"] is stopping
