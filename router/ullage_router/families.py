"""The router's metrics by name: what each means, and what the parts of several workers make.

A name here stands behind `ullage_router_`; a counter's has `_total` behind it on the page.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from ullage_router.tally import Histogram

PREFIX: Final = "ullage_router_"

HELP: Final[Mapping[str, str]] = {
    "dispatched": "Requests sent to the replica, second tries included.",
    "prompt_tokens": "Estimated prompt tokens of these requests.",
    "cached_prompt_tokens": "Of these, the ones expected in the replica's KV cache already; only "
    "`least_wait` expects any.",
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
    "hot_keys": "Keys that come too often for one replica, of the 4,096 latest; none by "
    "`least_wait`.",
    "replica_standing": "1 for what the replica is now: eligible, silent, full, down, …",
    "decisions": "Decisions, by the rule that settled them.",
    "routing_by": "1 for what the next request is judged by: score, own_counts, full, no_replica.",
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
    "sidecar_failing": "1 while the latest look at the sidecar has failed; 0 before the first.",
    "sidecar_heard_age_seconds": "Since the sidecar last spoke; absent until it has.",
    "second_tries": "Requests sent to another replica after a first one.",
    "second_tries_denied": "Requests not sent to another replica because `[retry]` forbade it.",
    "discovery_looks": "Looks at a source that lists servers (a file, a name), by how they ended.",
    "discovery_failing": "1 while some of what the source says, or all, is not taken: what it said "
    "before holds.",
    "discovery_servers": "Servers that are known of the source.",
    "second_tries_exhausted": "1 while `[retry]` forbids a further one; how many workers' does.",
    "clients_stalled": "Clients cut off because they took none of their answer for too long.",
    "client_connections": "Open client connections.",
    "client_connections_limit": "The most that there may be: `limits.max_connections`, or as many "
    "as the open files suffice for.",
    "idle_upstream_connections": "Connections to replicas that wait for a request.",
    "handshakes_failed": "Connections that ended before TLS's handshake did.",
    "event_loop_lateness_seconds": "How much too late a timer of the router rang, ten times a "
    "second: all that a client sees of the router may come so late.",
    "build_info": "Always 1; what runs.",
}
"""Every metric, by its name behind `ullage_router_`."""

LARGEST: Final = frozenset(
    {
        *(
            f"{PREFIX}{name}"
            for name in (
                "replica_score",
                "replica_snapshot_age_seconds",
                "replica_set_aside",
                "replica_ejected",
                "hot_keys",
                "overload",
                "replica_standing",
                "routing_by",
                "sidecar_failing",
                "sidecar_heard_age_seconds",
                "discovery_failing",
                "discovery_servers",
                "build_info",
            )
        ),
        "process_start_time_seconds",
    }
)
"""Gauges that several workers have in common, each with a view of its own: the largest counts. Of
every other gauge each worker has a part, and the whole is the sum."""


def counter(name: str, *labels: str) -> CounterMetricFamily:
    """An empty family, as all of these."""
    return CounterMetricFamily(f"{PREFIX}{name}", HELP[name], labels=labels)


def gauge(name: str, *labels: str) -> GaugeMetricFamily:
    """See `counter`."""
    return GaugeMetricFamily(f"{PREFIX}{name}", HELP[name], labels=labels)


def one(family: CounterMetricFamily | GaugeMetricFamily, value: float) -> Metric:
    """A family of this single series, without labels."""
    family.add_metric([], value)
    return family


def histogram(name: str, rows: Iterable[tuple[list[str], Histogram]], *labels: str) -> Metric:
    """The family of these, by the values of their labels."""
    family = HistogramMetricFamily(f"{PREFIX}{name}", HELP[name], labels=labels)
    for values, seen in rows:
        family.add_metric(values, _buckets(seen), seen.sum)
    return family


def _buckets(seen: Histogram) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for bound, count in zip((*seen.bounds, "+Inf"), seen.counts, strict=True):
        total += count
        buckets.append((str(bound), float(total)))
    return buckets
