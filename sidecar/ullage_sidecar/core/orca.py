"""A load report in ORCA's terms, as JSON: what load balancers of another make understand.

The fields of `xds.data.orca.v3.OrcaLoadReport` (github.com/cncf/xds), by the names of the proto:

    application_utilization             0..1    1 − capacity score: what is used up
    named_metrics
      kv_cache_usage_perc               0..1    KV blocks in use, as last reported
      num_requests_running              >= 0    sequences that run, as last reported
      num_requests_waiting              >= 0    requests that wait, as last reported

A field that is unknown is absent: 0 would be "idle". Absent always are `rps_fractional` and `eps`,
which nobody here counts, and `cpu_utilization` and `mem_utilization`, of which readers would make a
utilization that says nothing of a vLLM. The named metrics go by vLLM's own names, as in its ORCA
headers. Several ranks: means of the ratios, sums of the counts, each known only if all of them are.

Who reads what: Envoy's client_side_weighted_round_robin takes a report from an answer's header
`endpoint-load-metrics: JSON {…}`; gRPC's weighted_round_robin (A58) from trailers, as protobuf.
Both weigh by `rps_fractional` ÷ `application_utilization`, and neither asks over HTTP: who attaches
this report to answers adds the requests per second that it counts itself.
"""

from collections.abc import Sequence
from typing import Final

from ullage_shared.snapshot import Snapshot
from ullage_sidecar.core.render import DIGITS

RESERVED_BLOCKS: Final = 1
"""Of vLLM's blocks, for itself: never free, never used by a request."""


Metrics = dict[str, float]
Report = dict[str, float | Metrics]


def report(meant: Sequence[Snapshot]) -> Report:
    """The load of these replicas, at least one."""
    capacity = _mean([replica.capacity_score for replica in meant])
    named = {
        "kv_cache_usage_perc": _mean([_usage(replica) for replica in meant]),
        "num_requests_running": _sum([replica.running for replica in meant]),
        "num_requests_waiting": _sum([replica.waiting for replica in meant]),
    }
    known: Metrics = {name: value for name, value in named.items() if value is not None}
    told: Report = {}
    if capacity is not None:
        told["application_utilization"] = round(1.0 - capacity, DIGITS)
    if known:
        told["named_metrics"] = known
    return told


def _usage(replica: Snapshot) -> float | None:
    if replica.free_blocks is None or replica.total_blocks is None:
        return None
    usable = replica.total_blocks - RESERVED_BLOCKS
    return 1.0 - replica.free_blocks / usable if usable > 0 else None


def _mean(values: Sequence[float | None]) -> float | None:
    total = _sum(values)
    return None if total is None else round(total / len(values), DIGITS)


def _sum(values: Sequence[float | None]) -> float | None:
    """Their sum; `None` if one is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
