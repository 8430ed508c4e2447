"""Are we out of capacity?"""

from typing import Final

from grafana.panel import NODE, REPLICA, ROUTER, Kind, Panel, Row, quantile, rate

CAPACITY: Final = Row(
    "Are we out of capacity?",
    (
        Panel(
            "Gate",
            "short",
            "How routers deal with requests: open, at once; queueing, some wait for headroom; "
            "refusing, some were refused a moment ago. Not open for a minute is an alert.",
            ((f"max by (state) (ullage_router_overload{{{ROUTER}}})", "{{state}}"),),
            Kind.STATES,
        ),
        Panel(
            "Refused, by how",
            "reqps",
            "503 no_capacity per second. waited: for as long as it may; full_queue: no place was "
            "left; second_try: a replica failed, and the others are full; displaced: by one of "
            "higher priority.",
            ((f"sum by (how) ({rate('no_capacity_total')})", "{{how}}"),),
            stacked=True,
        ),
        Panel(
            "Replicas by standing",
            "short",
            "As the router counts them that counts most: only eligible and silent ones are "
            "given requests.",
            (
                (
                    "max by (standing) (sum by (instance, standing) "
                    f"(ullage_router_replica_standing{{{ROUTER}}}))",
                    "{{standing}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Queue",
            "short",
            "Requests that wait in routers (queue.max_requests for each worker).",
            ((f"sum by (instance) (ullage_router_queue_length{{{ROUTER}}})", "{{instance}}"),),
        ),
        Panel(
            "Bytes that wait",
            "bytes",
            "Bodies of the requests in the queue (queue.max_bytes for each worker).",
            ((f"sum by (instance) (ullage_router_queue_bytes{{{ROUTER}}})", "{{instance}}"),),
        ),
        Panel(
            "Wait in the queue",
            "s",
            "Of those that had to wait, whatever came of it. 2 s (queue.max_wait_s) means refused.",
            (
                (quantile(0.5, "queue_wait_seconds"), "p50"),
                (quantile(0.99, "queue_wait_seconds"), "p99"),
            ),
        ),
        Panel(
            "Had to wait",
            "reqps",
            "Requests that found no headroom at first, per second, and overloads that began.",
            (
                (f"sum({rate('queued_total')})", "queued"),
                (f"sum({rate('overloads_total')})", "overloads"),
            ),
        ),
        Panel(
            "Second tries",
            "reqps",
            "Requests sent to another replica after a first one failed, per second, and those "
            "that [retry] did not allow.",
            (
                (f"sum({rate('second_tries_total')})", "second tries"),
                (f"sum({rate('second_tries_denied_total')})", "denied"),
                (f"sum(ullage_router_second_tries_exhausted{{{ROUTER}}})", "budgets spent now"),
            ),
        ),
        Panel(
            "KV blocks in use",
            "percentunit",
            "Of each engine. All of them high: more replicas. Some: see whether load is balanced.",
            ((f"ullage_sidecar_kv_cache_usage_ratio{{{NODE}}}", "{{instance}} {{engine}}"),),
            most=1.0,
            amber=0.85,
            red=0.95,
        ),
        Panel(
            "Refused, by code",
            "reqps",
            "Answers that routers gave in a replica's place, by code, per second.",
            ((f"sum by (code) ({rate('refusals_total')})", "{{code}}"),),
            stacked=True,
        ),
        Panel(
            "Requests preempted",
            "reqps",
            "By vLLM, per second: it ran out of KV blocks and computes them again later.",
            (
                (
                    f"rate(ullage_sidecar_preemptions_total{{{NODE}}}[$__rate_interval])",
                    "{{instance}} {{engine}}",
                ),
            ),
        ),
        Panel(
            "Ejections",
            "short",
            "Times in the last five minutes that a replica was left out because it failed again "
            "and again.",
            (
                (
                    f"sum by (replica) (increase(ullage_router_ejections_total{{{REPLICA}}}[5m]))",
                    "{{replica}}",
                ),
            ),
        ),
    ),
)
