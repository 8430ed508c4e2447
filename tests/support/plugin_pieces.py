"""What tests of the plugin without vLLM speak of."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

Listen = Callable[[], Any]
Eventually = Callable[..., bool]


def scheduler_stats(running: int = 1) -> SimpleNamespace:
    return SimpleNamespace(
        num_running_reqs=running,
        num_waiting_reqs=0,
        num_skipped_waiting_reqs=0,
        kv_cache_usage=0.5,
        prefix_cache_stats=SimpleNamespace(queries=0, hits=0),
    )


def hearts() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ullage"]
