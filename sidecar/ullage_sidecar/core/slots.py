"""How many sequences an engine runs at once, where nobody tells: learned from its queue.

    most = the highest `running` seen since requests were first seen to wait

vLLM lets requests wait when all its sequence slots are taken; then `running` is `max_num_seqs`. It
also lets them wait for KV blocks, or for their turn to be prefilled: then `running` is less, and so
is the estimate until more are seen to run. Too low an estimate makes a server look fuller than it
is, which costs some of its share of the traffic; too high a one would overfill it.

Before anything has waited the answer is unknown: `running` alone tells of the load, not the limit.
"""


def learned(most: int | None, running: int | None, waiting: int | None) -> int | None:
    """The estimate after one more reading. `None`: unknown."""
    if not running or (most is None and not waiting):
        return most
    return max(running, most or 0)
