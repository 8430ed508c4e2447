"""Every load of the benchmark, in the order in which they are measured.

Left out: 1,024 streams with 10 ms ticks. That is 102,400 chunks a second; on two cores client and
backends alone reach some 65,000, and each proxy 23,000 to 42,000: it would measure the queue.
"""

from half_load import HalfLoad
from memory import Memory
from prompts import Prompts
from sample import Load
from wrk_load import WrkLoad


def every_load() -> list[Load]:
    """Memory first, while the processes are fresh."""
    return [
        Memory(),
        WrkLoad("unary", connections=32),
        WrkLoad("streams", connections=256, tick_ms=10),
        WrkLoad("streams-50ms", connections=256, tick_ms=50),
        WrkLoad("streams-1024", connections=1024, tick_ms=50),
        Prompts(),
        HalfLoad(),
    ]
