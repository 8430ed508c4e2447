"""Is affinity worth it?"""

from typing import Final

from grafana.panel import NODE, ROUTER, Panel, Row, per_replica, rate, total

_FOUND: Final = f"rate(ullage_sidecar_prefix_cache_hit_tokens_total{{{NODE}}}[$__rate_interval])"
_LOOKED_UP: Final = (
    f"rate(ullage_sidecar_prefix_cache_queried_tokens_total{{{NODE}}}[$__rate_interval])"
)
_HITS: Final = f'{ROUTER}, why=~"affinity.*|hot_key"'
_DECIDED: Final = f'{ROUTER}, why!~"full|no_replica"'

AFFINITY: Final = Row(
    "Is affinity worth it?",
    (
        Panel(
            "Prompt tokens not computed again",
            "percentunit",
            "Share of prompt tokens that routers expected in a replica's cache, and the share "
            "that vLLM found there. Found much less than expected: caches drop what routers count"
            " on, so there are too few KV blocks for these prefixes. (Only least_wait expects "
            "any.)",
            (
                (
                    f"{total('cached_prompt_tokens_total')} / {total('prompt_tokens_total')}",
                    "expected",
                ),
                (f"sum({_FOUND}) / sum({_LOOKED_UP})", "found by vLLM"),
            ),
            most=1.0,
        ),
        Panel(
            "Decisions",
            "reqps",
            "By the rule that settled them, per second. affinity: it went where its prefix is "
            "known (a hit). wait, new_key: nobody knows it, or who does is too busy. By weighted "
            "also affinity_by_chance: its replica has little room, and kept it; key_spilled: "
            "this request goes elsewhere; key_moved: its replica is full or gone; hot_key: shared.",
            ((f"sum by (why) ({rate('decisions_total')})", "{{why}}"),),
            stacked=True,
        ),
        Panel(
            "Hits",
            "percentunit",
            "Share of decisions that went where their prefix is known.",
            (
                (
                    f"sum({rate('decisions_total', _HITS)}) "
                    f"/ sum({rate('decisions_total', _DECIDED)})",
                    "hits",
                ),
            ),
            most=1.0,
        ),
        Panel(
            "Found in the cache, by replica",
            "percentunit",
            "Share of the prompt tokens looked up that vLLM found in its prefix cache.",
            (
                (
                    f"sum by (instance, engine) ({_FOUND}) "
                    f"/ sum by (instance, engine) ({_LOOKED_UP})",
                    "{{instance}} {{engine}}",
                ),
            ),
            most=1.0,
        ),
        Panel(
            "Prompt tokens saved",
            "short",
            "Prompt tokens per second that were expected in the caches, by replica: work not done"
            " again.",
            ((per_replica("cached_prompt_tokens_total"), "{{replica}}"),),
            stacked=True,
        ),
        Panel(
            "Keys",
            "short",
            "Cache keys that routers remember (affinity.max_keys for each worker), and of the "
            "latest those that are hot: so frequent that several replicas share them (weighted "
            "only).",
            (
                (f"sum(ullage_router_cache_keys{{{ROUTER}}})", "remembered"),
                (f"max(ullage_router_hot_keys{{{ROUTER}}})", "hot"),
            ),
        ),
    ),
)
