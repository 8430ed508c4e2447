"""The router's metrics in Prometheus' form, made from its plain numbers when asked.

Labels are bounded: `replica` by the fleet (a replica that leaves takes its series along),
`sidecar` by the configuration, `code` by what replicas answer, the others by enums.
"""

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ullage_router.core.decide import Why
from ullage_router.core.fleet import Replica
from ullage_router.core.gate import State
from ullage_router.core.lineup import Standing, left_out, stand
from ullage_router.feed import SidecarFeed
from ullage_router.http.errors import NoRoom
from ullage_router.http.proxy import Proxy
from ullage_router.router import Router
from ullage_router.tally import Histogram, Tally

HELP: Final[Mapping[str, str]] = {
    "dispatched": "Requests sent to the replica, second tries included.",
    "in_flight": "Requests sent to the replica whose last byte has not come.",
    "responses": "Whole responses, by status code.",
    "failures": "Tries of which the client saw nothing, by kind: connect, closed, invalid, "
    "timeout, full.",
    "responses_cut": "Responses that ended before they were whole, after their first byte.",
    "clients_gone": "Requests whose client left before the answer was whole.",
    "response_bytes": "Bytes of response bodies passed on.",
    "response_chunks": "Pieces of response bodies passed on.",
    "time_to_first_byte_seconds": "From the whole request to the first byte of the body.",
    "duration_seconds": "From the whole request to the last byte of the body.",
    "score_at_decision": "Capacity score, 0..1, at each decision for the replica.",
    "replica_score": "Capacity score, 0..1, in the latest snapshot.",
    "replica_snapshot_age_seconds": "Age of the latest snapshot.",
    "replica_set_aside": "1 while the replica is left out: it gave no answer, or had no room.",
    "replica_ejected": "1 while the replica is left out until it has answered a probe.",
    "ejections": "Times the replica was left out because it failed again and again.",
    "cache_keys": "Cache keys whose replicas are remembered.",
    "replica_standing": "1 for what the replica is now: eligible, silent, full, down, …",
    "decisions": "Decisions, by the rule that settled them.",
    "refusals": "Answers given in a replica's place, by code.",
    "overload": "1 for how the router deals with requests now: open, queueing, refusing.",
    "overloads": "Times that it began to be without a replica with headroom.",
    "no_capacity": "Requests refused because no replica had headroom, by how that came: "
    "full_queue, displaced, waited, second_try.",
    "queued": "Requests that had to wait for a replica with headroom.",
    "queue_length": "Requests that wait now.",
    "queue_bytes": "Bytes of their bodies.",
    "queue_wait_seconds": "How long each that had to wait did so, whatever came of it.",
    "sidecar_polls": "Looks at the sidecar (answers, and lines of a watch), by result.",
    "second_tries": "Requests sent to another replica after a first one.",
    "second_tries_denied": "Requests not sent to another replica because `[retry]` forbade it.",
    "clients_stalled": "Clients cut off because they took none of their answer for too long.",
    "client_connections": "Open client connections.",
    "idle_upstream_connections": "Connections to replicas that wait for a request.",
    "handshakes_failed": "Connections that ended before TLS's handshake did.",
    "build_info": "Always 1; what runs.",
}
"""Every metric, by its name behind `ullage_router_`."""

LARGEST: Final = frozenset(
    f"ullage_router_{name}"
    for name in (
        "replica_score",
        "replica_snapshot_age_seconds",
        "replica_set_aside",
        "replica_ejected",
        "overload",
        "replica_standing",
        "build_info",
    )
)
"""Gauges that several workers have in common, each with a view of its own: the largest counts. Of
every other gauge each worker has a part, and the whole is the sum."""


def _counter(name: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"ullage_router_{name}", HELP[name], labels=labels)


def _gauge(name: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"ullage_router_{name}", HELP[name], labels=labels)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
        total += count
        buckets.append((str(bound), float(total)))
    return buckets


class RouterCollector(Collector):
    """Everything that the router counts."""

    def __init__(self, router: Router, proxy: Proxy, feeds: Mapping[str, SidecarFeed]) -> None:
        self._router = router
        self._proxy = proxy
        self._feeds = feeds

    def collect(self) -> Iterator[Metric]:
        """All metric families, as they stand now."""
        router = self._router
        replicas = [*router.fleet.replicas.values(), *router.leaving.values()]
        pairs = [(r.id, self._router.tallies.get(r.key) or Tally()) for r in replicas]
        yield from self._traffic(replicas, pairs)
        yield self._histogram("time_to_first_byte_seconds", ((i, t.first_byte_s) for i, t in pairs))
        yield self._histogram("duration_seconds", ((i, t.duration_s) for i, t in pairs))
        yield self._histogram("score_at_decision", ((i, t.score) for i, t in pairs))
        yield from self._fleet(replicas)
        yield from self._overload()
        yield from self._whole()

    def _traffic(
        self, replicas: Iterable[Replica], pairs: Iterable[tuple[str, Tally]]
    ) -> Iterator[Metric]:
        in_flight = _gauge("in_flight", "replica")
        for replica in replicas:
            in_flight.add_metric([replica.id], self._router.in_flight.by_replica[replica.key])
        dispatched = _counter("dispatched", "replica")
        cut = _counter("responses_cut", "replica")
        gone = _counter("clients_gone", "replica")
        ejections = _counter("ejections", "replica")
        size = _counter("response_bytes", "replica")
        chunks = _counter("response_chunks", "replica")
        responses = _counter("responses", "replica", "code")
        failures = _counter("failures", "replica", "kind")
        for name, tally in pairs:
            dispatched.add_metric([name], tally.dispatched)
            cut.add_metric([name], tally.cut)
            gone.add_metric([name], tally.client_gone)
            ejections.add_metric([name], tally.ejections)
            size.add_metric([name], tally.response_bytes)
            chunks.add_metric([name], tally.chunks)
            for code, count in sorted(tally.responses.items()):
                responses.add_metric([name, str(code)], count)
            for kind, count in sorted(tally.failures.items()):
                failures.add_metric([name, kind], count)
        yield from (
            in_flight,
            dispatched,
            responses,
            failures,
            ejections,
            cut,
            gone,
            size,
            chunks,
        )

    def _histogram(self, name: str, rows: Iterable[tuple[str, Histogram]]) -> Metric:
        family = HistogramMetricFamily(f"ullage_router_{name}", HELP[name], labels=["replica"])
        for replica, histogram in rows:
            family.add_metric([replica], _buckets(histogram), histogram.sum)
        return family

    def _overload(self) -> Iterator[Metric]:
        room = self._proxy.waiting
        state = _gauge("overload", "state")
        for each in State:
            state.add_metric([each.value], float(each is room.state))
        overloads = _counter("overloads")
        overloads.add_metric([], room.episodes)
        refused = _counter("no_capacity", "how")
        for how in NoRoom:
            refused.add_metric([how], room.refused[how])
        queued = _counter("queued")
        queued.add_metric([], room.queued)
        length = _gauge("queue_length")
        length.add_metric([], room.waiting)
        size = _gauge("queue_bytes")
        size.add_metric([], room.waiting_bytes)
        wait = HistogramMetricFamily(
            "ullage_router_queue_wait_seconds", HELP["queue_wait_seconds"], labels=[]
        )
        wait.add_metric([], _buckets(room.wait_s), room.wait_s.sum)
        yield from (state, overloads, refused, queued, length, size, wait)

    def _fleet(self, replicas: Iterable[Replica]) -> Iterator[Metric]:
        now_s = self._router.now_s()
        score = _gauge("replica_score", "replica")
        age = _gauge("replica_snapshot_age_seconds", "replica")
        aside = _gauge("replica_set_aside", "replica")
        ejected = _gauge("replica_ejected", "replica")
        struck, thrown = left_out(self._router.fleet, now_s, self._router.rules)
        standings = _gauge("replica_standing", "replica", "standing")
        for replica in replicas:
            if replica.snapshot is not None and replica.snapshot.capacity_score is not None:
                score.add_metric([replica.id], replica.snapshot.capacity_score)
            age_s = replica.age_s(now_s)
            if age_s is not None:
                age.add_metric([replica.id], age_s)
            aside.add_metric([replica.id], float(replica.key in struck))
            ejected.add_metric([replica.id], float(replica.key in thrown))
            now = stand(replica, now_s, self._router.rules.choose)
            for standing in Standing:
                standings.add_metric([replica.id, standing], float(standing is now))
        yield from (score, age, aside, ejected, standings)

    def _whole(self) -> Iterator[Metric]:
        decisions = _counter("decisions", "why")
        for why in Why:
            decisions.add_metric([why], self._router.decisions[why])
        refusals = _counter("refusals", "code")
        for code, count in sorted(self._router.refusals.items()):
            refusals.add_metric([code], count)
        polls = _counter("sidecar_polls", "sidecar", "result")
        for sidecar, feed in self._feeds.items():
            for result, count in sorted(feed.polls.items()):
                polls.add_metric([sidecar, result], count)
        second = _counter("second_tries")
        second.add_metric([], self._router.second_tries)
        denied = _counter("second_tries_denied")
        denied.add_metric([], self._router.tries_denied)
        stalled = _counter("clients_stalled")
        stalled.add_metric([], self._router.clients_stalled)
        clients = _gauge("client_connections")
        clients.add_metric([], len(self._proxy.clients))
        idle = _gauge("idle_upstream_connections")
        idle.add_metric([], self._proxy.pool.idle)
        keys = _gauge("cache_keys")
        keys.add_metric([], self._router.keys_remembered)
        failed = _counter("handshakes_failed")
        failed.add_metric([], self._proxy.handshakes_failed)
        build = _gauge("build_info", "version")
        build.add_metric([version("ullage")], 1.0)
        yield from (
            decisions,
            refusals,
            polls,
            second,
            denied,
            stalled,
            clients,
            idle,
            keys,
            failed,
            build,
        )
