"""A cluster that says what it is told to, and short ways to make requests and to send them."""

from collections.abc import Sequence

from ullage_tune.policy import Gauges, Hardware, Policy
from ullage_tune.workload import Request, Segment

HARDWARE = Hardware(max_num_seqs=256, blocks=1000, block_size=16)


class FakeCluster:
    """Every replica is `HARDWARE`; what is not told is nothing."""

    def __init__(self, replicas: int = 3) -> None:
        self.there = list(range(replicas))
        self.cached: dict[int, int] = {}
        self.pending: dict[int, int] = {}
        self.held: dict[int, int] = {}

    def present(self) -> Sequence[int]:
        return self.there

    def hardware(self, replica: int) -> Hardware:
        assert replica in self.there
        return HARDWARE

    def cached_tokens(self, replica: int, request: Request) -> int:
        assert replica in self.there
        return min(self.cached.get(replica, 0), request.prompt_tokens - 1)

    def pending_tokens(self, replica: int) -> int:
        assert replica in self.there
        return self.pending.get(replica, 0)

    def held_tokens(self, replica: int) -> int:
        assert replica in self.there
        return self.held.get(replica, 0)


class BlindCluster(FakeCluster):
    """One that tells nothing but who is there and what they were started with."""

    def cached_tokens(self, replica: int, request: Request) -> int:
        raise AssertionError("no KV events here")

    def pending_tokens(self, replica: int) -> int:
        raise AssertionError("only the omniscient may ask")

    held_tokens = pending_tokens


def request(*texts: int, tokens: int = 160, output: int = 10) -> Request:
    """A prompt of equally long segments."""
    return Request(0.0, tuple(Segment(text, tokens) for text in texts), output)


def send(policy: Policy, what: Request, replica: int, times: int = 1, at_s: float = 0.0) -> None:
    """As if it had been chosen, so often."""
    for _ in range(times):
        policy.sent(what, replica, at_s)


def idle(policy: Policy, replicas: int, at_s: float = 0.0) -> None:
    """All of them say that they have nothing to do."""
    for replica in range(replicas):
        policy.scraped(replica, Gauges(0, 0, 0.0), at_s)
