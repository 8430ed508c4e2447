"""The routers that people use, as policies of the lab.

Each module states its rule, its defaults, where both come from, what the original sees and how
fresh, and every simplification. What is common to all: a request is sent at once or not at all (no
router queues here), none refuses, health checks and retries are the lab's, and several routers of
one kind do not talk to each other. The interval at which servers are scraped is the lab's
(`Scenario.scrape_s`); who reads less often than that skips.
"""

from collections.abc import Mapping

from ullage_tune.policy import MakePolicy
from ullage_tune.rivals.dynamo import Dynamo
from ullage_tune.rivals.kubeai import KubeAi
from ullage_tune.rivals.llm_d import LlmD, LlmDPrecise
from ullage_tune.rivals.omniscient import Omniscient
from ullage_tune.rivals.plain import LeastInFlight, RoundRobin, TwoChoices
from ullage_tune.rivals.production_stack import ProductionStackPrefixAware
from ullage_tune.rivals.smg import (
    SmgCacheAware,
    SmgExpectedWait,
    SmgLeastLoad,
    SmgLeastRequests,
)
from ullage_tune.rivals.vllm_router import VllmRouterCacheAware

RIVALS: Mapping[str, MakePolicy] = {
    "round_robin": RoundRobin,
    "least_in_flight": LeastInFlight,
    "two_choices": TwoChoices,
    "vllm_router_cache_aware": VllmRouterCacheAware,
    "production_stack_prefix_aware": ProductionStackPrefixAware,
    "smg_cache_aware": SmgCacheAware,
    "smg_expected_wait": SmgExpectedWait,
    "smg_least_requests": SmgLeastRequests,
    "smg_least_load": SmgLeastLoad,
    "llm_d": LlmD,
    "llm_d_precise": LlmDPrecise,
    "dynamo": Dynamo,
    "kubeai": KubeAi,
    "omniscient": Omniscient,
}
"""By the name that tables show. `omniscient` is no rival but the bound."""
