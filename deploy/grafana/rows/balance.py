"""Is load balanced?"""

from typing import Final

from grafana.panel import REPLICA, ROUTER, Panel, Row, per_replica, quantile, seen

_IN_FLIGHT: Final = f"sum by (replica) (ullage_router_in_flight{{{ROUTER}}})"

BALANCE: Final = Row(
    "Is load balanced?",
    (
        Panel(
            "Score",
            "percentunit",
            "Headroom as the sidecar judges it: 1 empty, 0 full. Close together is balanced. At "
            "or below 0.15 (choose.floor) a replica is given nothing.",
            ((seen("max", "replica_score"), "{{replica}}"),),
            most=1.0,
        ),
        Panel(
            "In flight",
            "short",
            "Requests whose last byte has not come, of all routers.",
            ((seen("sum", "in_flight"), "{{replica}}"),),
        ),
        Panel(
            "Most in flight ÷ mean",
            "short",
            "How far the busiest replica is from the mean of all: 1 is perfect. Among equal ones "
            "it should not stay above 2; a slow one should have less than the others.",
            ((f"max({_IN_FLIGHT}) / (avg({_IN_FLIGHT}) > 0)", "busiest ÷ mean"),),
            amber=2.0,
            red=4.0,
        ),
        Panel(
            "Prompt tokens to compute",
            "short",
            "Prompt tokens sent there per second, less those expected in its cache. This is the "
            "work, of which requests are only pieces: equal lines are what balancing is for.",
            (
                (
                    f"{per_replica('prompt_tokens_total')} "
                    f"- {per_replica('cached_prompt_tokens_total')}",
                    "{{replica}}",
                ),
            ),
        ),
        Panel(
            "Requests",
            "reqps",
            "Requests sent there per second. Long ones count as short ones here, so it need not "
            "be equal.",
            ((per_replica("dispatched_total"), "{{replica}}"),),
        ),
        Panel(
            "Bytes of answers",
            "Bps",
            "Bytes of response bodies passed on per second.",
            ((per_replica("response_bytes_total"), "{{replica}}"),),
        ),
        Panel(
            "First byte, p99",
            "s",
            "From the whole request to the first byte of the body, by replica.",
            (
                (
                    quantile(0.99, "time_to_first_byte_seconds", "replica", REPLICA),
                    "{{replica}}",
                ),
            ),
        ),
        Panel(
            "Duration, p95",
            "s",
            "From the whole request to the last byte of the body. Long answers take long: compare"
            " replicas, not moments.",
            ((quantile(0.95, "duration_seconds", "replica", REPLICA), "{{replica}}"),),
        ),
        Panel(
            "Score at decisions, lowest tenth",
            "percentunit",
            "Of the scores that replicas had when they were chosen, the tenth that was lowest: "
            "how full those are that have to be taken.",
            ((quantile(0.1, "score_at_decision", "replica", REPLICA), "{{replica}}"),),
            most=1.0,
        ),
    ),
)
