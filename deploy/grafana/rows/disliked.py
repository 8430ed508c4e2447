"""Why is this replica disliked?"""

from typing import Final

from grafana.panel import REPLICA, Kind, Panel, Row, of_engine, per_replica, rate, seen

_NOT_WELL: Final = f'{REPLICA}, code!="200"'

DISLIKED: Final = Row(
    "Why is this replica disliked? (choose it at the top)",
    (
        Panel(
            "Standing",
            "short",
            "What routers make of it: eligible by its score; silent, judged by own counts; full; "
            "lost, its sidecar has been silent for a minute; or the state that bars it.",
            (
                (
                    "max by (replica, standing) "
                    f"(ullage_router_replica_standing{{{REPLICA}}}) == 1",
                    "{{replica}}: {{standing}}",
                ),
            ),
            Kind.STATES,
            width=12,
        ),
        Panel(
            "Left out",
            "short",
            "By how many routers: set aside for a second after a failure or a 503, or ejected "
            "until it answers a probe.",
            (
                (seen("sum", "replica_set_aside"), "{{replica}}: set aside"),
                (seen("sum", "replica_ejected"), "{{replica}}: ejected"),
            ),
            Kind.STATES,
            width=12,
        ),
        Panel(
            "What its score is made of",
            "percentunit",
            "The parts add up to the score before penalty and warm-up, at most 1. The one that "
            "has shrunk is the reason: free KV blocks, free sequence slots, or the waiting queue.",
            ((of_engine("score_part"), "{{replica}} {{term}}"),),
            stacked=True,
            most=1.0,
        ),
        Panel(
            "Factors on its score",
            "percentunit",
            "The score is multiplied by these: the penalty for a queue (1: none), and that of its"
            " state (0 while starting, warming, draining, hung or down; half while it ramps up).",
            (
                (of_engine("penalty_factor"), "{{replica}} queue"),
                (of_engine("warm_up_factor"), "{{replica}} state"),
            ),
            most=1.0,
        ),
        Panel(
            "Score by size of request",
            "percentunit",
            "Short prompts want sequence slots, long ones KV blocks: a replica may be full for "
            "some only.",
            ((of_engine("capacity_score_by_class"), "{{replica}} {{class}}"),),
            most=1.0,
        ),
        Panel(
            "Free KV blocks",
            "percentunit",
            "Smoothed over five seconds, and where the trend leads in three: the lower one counts.",
            (
                (of_engine("smoothed_free_block_ratio"), "{{replica}} smoothed"),
                (of_engine("predicted_free_block_ratio"), "{{replica}} in 3 s"),
            ),
            most=1.0,
        ),
        Panel(
            "Running and waiting",
            "short",
            "Sequences as vLLM last reported them, and the most that it runs at once.",
            (
                (of_engine("running_requests"), "{{replica}} running"),
                (of_engine("waiting_requests"), "{{replica}} waiting"),
                (of_engine("max_running_requests"), "{{replica}} max_num_seqs"),
            ),
        ),
        Panel(
            "KV blocks will be gone in",
            "s",
            "If they go on falling as now. No line: they do not fall.",
            ((of_engine("exhaustion_seconds"), "{{replica}}"),),
        ),
        Panel(
            "State",
            "short",
            "What its sidecar says of it. Hung: it has work and makes no step.",
            ((f"({of_engine('state')}) == 1", "{{replica}}: {{state}}"),),
            Kind.STATES,
        ),
        Panel(
            "Drained",
            "short",
            "1 while its operator has taken it out of service (ullage-sidecar drain).",
            ((of_engine("drained"), "{{replica}}"),),
            Kind.STATES,
        ),
        Panel(
            "Who tells how it stands",
            "short",
            "Its plugin, a scrape of its /metrics, or nobody: then it has no score, and routers "
            "go by what they have sent it.",
            ((f"({of_engine('source')}) == 1", "{{replica}}: {{source}}"),),
            Kind.STATES,
        ),
        Panel(
            "Age of its snapshot",
            "s",
            "In the router. From 3 s on (choose.stale_after_s) it no longer vouches.",
            ((seen("max", "replica_snapshot_age_seconds"), "{{replica}}"),),
            amber=1.5,
            red=3.0,
        ),
        Panel(
            "Failures",
            "reqps",
            "Tries of which the client saw nothing, by kind, and answers cut off, per second.",
            (
                (
                    f"sum by (replica, kind) ({rate('failures_total', REPLICA)}) > 0",
                    "{{replica}} {{kind}}",
                ),
                (per_replica("responses_cut_total"), "{{replica}} cut off"),
            ),
        ),
        Panel(
            "Answers other than 200",
            "reqps",
            "By status code, per second.",
            (
                (
                    f"sum by (replica, code) ({rate('responses_total', _NOT_WELL)})",
                    "{{replica}} {{code}}",
                ),
            ),
        ),
        Panel(
            "Seconds of a decode step",
            "s",
            "As learned. Where steps are slow, requests are expected to wait longer, and fewer "
            "are sent.",
            ((of_engine("step_seconds"), "{{replica}}"),),
        ),
        Panel(
            "Prompt tokens computed per second",
            "short",
            "As learned; the other half of what a request is expected to wait.",
            ((of_engine("prefill_tokens_per_second"), "{{replica}}"),),
        ),
    ),
)
