"""Is there anything to ask?"""

from typing import Final

from grafana.panel import ROUTER, Kind, Panel, Row, quantile, total

AT_A_GLANCE: Final = Row(
    "At a glance",
    (
        Panel(
            "Requests",
            "reqps",
            "Requests sent to replicas, per second.",
            ((total("dispatched_total"), "sent"),),
            Kind.NUMBER,
            width=4,
        ),
        Panel(
            "Refused",
            "percentunit",
            "Share of requests that got 503 for lack of headroom. Above 1 % for two minutes is an"
            " alert.",
            (
                (
                    f"{total('no_capacity_total')} "
                    f"/ ({total('no_capacity_total')} + {total('responses_total')})",
                    "refused",
                ),
            ),
            Kind.NUMBER,
            width=4,
            amber=0.001,
            red=0.01,
        ),
        Panel(
            "First byte, p99",
            "s",
            "From the whole request to the first byte of the body, as clients have it: 99 of 100 "
            "are sooner.",
            ((quantile(0.99, "time_to_first_byte_seconds"), "p99"),),
            Kind.NUMBER,
            width=4,
        ),
        Panel(
            "Replicas with headroom",
            "short",
            "How many may be given a request now, as the router sees it that sees most of them.",
            (
                (
                    "max(sum by (instance) (ullage_router_replica_standing"
                    f'{{{ROUTER}, standing=~"eligible|silent"}}))',
                    "with headroom",
                ),
            ),
            Kind.NUMBER,
            width=4,
            amber=2.0,
            red=1.0,
        ),
        Panel(
            "Waiting for room",
            "short",
            "Requests that wait in routers because no replica has headroom.",
            ((f"sum(ullage_router_queue_length{{{ROUTER}}})", "waiting"),),
            Kind.NUMBER,
            width=4,
            amber=1.0,
            red=64.0,
        ),
        Panel(
            "Routers and sidecars",
            "short",
            "How many of them Prometheus reaches.",
            (
                ('sum(up{job="ullage-router"})', "routers"),
                ('sum(up{job="ullage-sidecar"})', "sidecars"),
            ),
            Kind.NUMBER,
            width=4,
        ),
    ),
)
