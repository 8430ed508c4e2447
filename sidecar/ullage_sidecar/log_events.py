"""Every event that the sidecar logs, and what it means to whoever reads the log."""

from collections.abc import Mapping
from typing import Final

EVENTS: Final[Mapping[str, str]] = {
    "listening": "It serves: snapshots and metrics at `http`, plugins at `socket`.",
    "agent_check": "HAProxy's agent-checks are answered at `tcp`.",
    "stopped": "It has ended.",
    "state": "An engine stands otherwise than before (see the states), and `why`.",
    "source": "Who tells how an engine stands: its `plugin`, or its page (`scrape`).",
    "warm_up": "A warm-up has ended: `warm`, `given_up` or `broken_off`, and `why`.",
    "scrape_fails": "A server's plugin is not heard, and its `/metrics` cannot be read.",
    "scrape_works": "That is over.",
    "unmatched": "A vLLM speaks whose name no `[[engine]]` has.",
    "two_servers_of_one_name": "Two vLLM servers go by one name: one of them is ignored.",
    "malformed": "Something came that no plugin of this version sends.",
    "agent_check_misnamed": "HAProxy asks for an engine that is not there.",
    "was_away": "The sidecar itself was stopped, or got no CPU, for so long.",
    "drains_not_kept": "What is drained cannot be written down: a restart would forget it.",
    "drains_lost": "What was drained cannot be read: drain again.",
    "socket_bound_anew": "Somebody had deleted the socket's file: it is there again.",
    "socket_lost": "The socket's file cannot be made again: `why`.",
    "accept": "No file descriptors are left for plugins; tried again.",
    "receive": "A plugin's connection broke.",
}
