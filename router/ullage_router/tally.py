"""What happened to the requests of one replica, in plain numbers.

Counting is on the path of every chunk, so a count is an attribute, and a histogram a list;
`metrics` turns them into Prometheus' form when it is asked.
"""

from bisect import bisect_left
from collections import Counter
from typing import Final

SCORE_BOUNDS: Final = (0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SECONDS_BOUNDS: Final = (
    *(
        0.005,
        0.01,
        0.025,
        0.05,
        0.1,
        0.25,
        0.5,
        1.0,
        2.5,
        5.0,
        10.0,
        20.0,
        40.0,
        80.0,
        160.0,
        320.0,
    ),
)


class Histogram:
    """Counts by upper bound, the last one infinite, and the sum of what was seen."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Tally:
    """One replica's counts since the router started, or since the replica joined."""

    __slots__ = (
        "cached_tokens",
        "chunks",
        "client_gone",
        "cut",
        "dispatched",
        "duration_s",
        "ejections",
        "failures",
        "first_byte_s",
        "prompt_tokens",
        "response_bytes",
        "responses",
        "score",
    )

    def __init__(self) -> None:
        self.dispatched = 0
        """Requests sent there, second tries included."""
        self.prompt_tokens = 0
        """Estimated tokens of their prompts."""
        self.cached_tokens = 0
        """Of these, those that were expected in its KV cache."""
        self.responses: Counter[int] = Counter()
        """Whole responses by status."""
        self.failures: Counter[str] = Counter()
        """Tries that failed before the client got a byte, by `Failure`."""
        self.ejections = 0
        """How often it was left out because it failed."""
        self.cut = 0
        """Responses that ended before they were whole, after the client got a byte."""
        self.client_gone = 0
        """Requests whose client left first."""
        self.chunks = 0
        """Pieces of response bodies passed on."""
        self.response_bytes = 0
        """Bytes of response bodies passed on."""
        self.score = Histogram(SCORE_BOUNDS)
        """Capacity score at the moment of each decision that knew one."""
        self.first_byte_s = Histogram(SECONDS_BOUNDS)
        """From the whole request to the first byte of the body."""
        self.duration_s = Histogram(SECONDS_BOUNDS)
        """From the whole request to the last byte of the body."""
