"""Is the router itself the bottleneck? Or a sidecar?"""

from typing import Final

from grafana.panel import NODE, ROUTER, Panel, Row, quantile, rate

_OF_ROUTER: Final = f'{ROUTER}, job="ullage-router"'
_CPU: Final = f"rate(process_cpu_seconds_total{{{_OF_ROUTER}}}[$__rate_interval])"
_SIDECAR_CPU: Final = (
    f'rate(process_cpu_seconds_total{{{NODE}, job="ullage-sidecar"}}[$__rate_interval])'
)

BOTTLENECK: Final = Row(
    "Is the router the bottleneck?",
    (
        Panel(
            "Lateness",
            "s",
            "How late the router's own thread is, looked at ten times a second in each worker. "
            "What is ready waits so long before it is passed on. Above 50 ms is an alert.",
            (
                (quantile(0.5, "event_loop_lateness_seconds", "instance"), "{{instance}} p50"),
                (quantile(0.99, "event_loop_lateness_seconds", "instance"), "{{instance}} p99"),
            ),
            amber=0.01,
            red=0.05,
        ),
        Panel(
            "CPU",
            "short",
            "Cores in use, all workers together. One worker can use one core.",
            ((f"sum by (instance) ({_CPU})", "{{instance}}"),),
        ),
        Panel(
            "CPU per request",
            "s",
            "All that the router did, by requests sent. It grows with chunks of answers and with "
            "long prompts.",
            (
                (
                    f"sum by (instance) ({_CPU}) "
                    f"/ (sum by (instance) ({rate('dispatched_total')}) > 0)",
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            "Client connections",
            "percentunit",
            "Open ones, as a share of how many there may be. At 100 % newcomers get 503 "
            "router_overloaded.",
            (
                (
                    f"ullage_router_client_connections{{{ROUTER}}} "
                    f"/ ullage_router_client_connections_limit{{{ROUTER}}}",
                    "{{instance}}",
                ),
            ),
            most=1.0,
            amber=0.5,
            red=0.8,
        ),
        Panel(
            "Open files",
            "percentunit",
            "As a share of how many there may be (LimitNOFILE). Each request holds two.",
            (
                (
                    f"process_open_fds{{{_OF_ROUTER}}} / process_max_fds{{{_OF_ROUTER}}}",
                    "{{instance}}",
                ),
            ),
            most=1.0,
            amber=0.5,
            red=0.8,
        ),
        Panel(
            "Memory",
            "bytes",
            "Resident, all workers together.",
            ((f"process_resident_memory_bytes{{{_OF_ROUTER}}}", "{{instance}}"),),
        ),
        Panel(
            "Pieces of answers",
            "ops",
            "Passed on per second: what a router mostly works for when answers are streamed.",
            ((f"sum by (instance) ({rate('response_chunks_total')})", "{{instance}}"),),
        ),
        Panel(
            "Connections",
            "short",
            "Of clients, and idle ones to replicas.",
            (
                (f"ullage_router_client_connections{{{ROUTER}}}", "{{instance}} clients"),
                (f"ullage_router_idle_upstream_connections{{{ROUTER}}}", "{{instance}} idle"),
            ),
        ),
        Panel(
            "Clients that went wrong",
            "reqps",
            "Per second: those that left before their answer was whole, that took nothing of it "
            "for too long, and that failed TLS's handshake.",
            (
                (f"sum({rate('clients_gone_total')})", "left"),
                (f"sum({rate('clients_stalled_total')})", "stalled"),
                (f"sum({rate('handshakes_failed_total')})", "no handshake"),
            ),
        ),
        Panel(
            "Workers",
            "short",
            "Of routers with several: those that serve, those that do not answer, and those "
            "started in the place of one that died, in the last five minutes.",
            (
                (f"ullage_router_workers{{{ROUTER}}}", "{{instance}} serve"),
                (f"ullage_router_workers_silent{{{ROUTER}}}", "{{instance}} silent"),
                (
                    f"increase(ullage_router_worker_restarts_total{{{ROUTER}}}[5m])",
                    "{{instance}} restarted",
                ),
            ),
        ),
        Panel(
            "Looks at sidecars",
            "ops",
            "Documents and lines received per second, and looks that failed, by result.",
            ((f"sum by (result) ({rate('sidecar_polls_total')})", "{{result}}"),),
        ),
        Panel(
            "Sidecars last heard",
            "s",
            "How long ago, by the router that has not heard it for longest.",
            (
                (
                    f"max by (sidecar) (ullage_router_sidecar_heard_age_seconds{{{ROUTER}}})",
                    "{{sidecar}}",
                ),
                (
                    f"max by (sidecar) (ullage_router_sidecar_failing{{{ROUTER}}}) > 0",
                    "{{sidecar}} fails",
                ),
            ),
            amber=1.5,
            red=3.0,
        ),
        Panel(
            "CPU of sidecars",
            "short",
            "Cores in use.",
            ((_SIDECAR_CPU, "{{instance}}"),),
        ),
        Panel(
            "Engine steps heard",
            "ops",
            "Per second, and those missed by their numbers.",
            (
                (
                    f"rate(ullage_sidecar_readings_received_total{{{NODE}}}[$__rate_interval])",
                    "{{instance}} {{engine}}",
                ),
                (
                    f"rate(ullage_sidecar_readings_lost_total{{{NODE}}}[$__rate_interval])",
                    "{{instance}} {{engine}} lost",
                ),
            ),
        ),
        Panel(
            "What sidecars refuse",
            "ops",
            "Datagrams that reached no engine, by why (malformed: another version; rival: two "
            "servers of one name), and /health without a 200, per second.",
            (
                (
                    "sum by (why) "
                    f"(rate(ullage_sidecar_datagrams_ignored_total{{{NODE}}}[$__rate_interval]))",
                    "{{why}}",
                ),
                (
                    "sum by (instance, server) "
                    f"(rate(ullage_sidecar_health_check_failures_total{{{NODE}}}[$__rate_interval]))",
                    "{{instance}} {{server}} /health",
                ),
            ),
        ),
    ),
)
