"""What chooses a replica in the lab, and what it may know.

A policy is one router's: several routers are several policies, each of which sees its own requests
only. It is told what a router sees: what it sent, first bytes, ends; and what servers say when they
are asked (`scraped`), or what their sidecars say.

Replicas are numbers, from 0 on; one that joins has the next one. `Cluster` is what there is to ask.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple, Protocol

from ullage_tune.workload import Request


class Gauges(NamedTuple):
    """What a server's `/metrics` says."""

    running: int
    waiting: int
    kv_usage: float
    """Share of the KV blocks in use, 0..1."""


class Hardware(NamedTuple):
    """What is known of a replica beforehand, as from its command line."""

    max_num_seqs: int
    blocks: int
    block_size: int
    """Tokens per block."""


OnStep = Callable[[Any, Any], None]
"""Called at the end of each step of one engine with vLLM's scheduler stats and iteration stats, as
a stat logger is."""


class Cluster(Protocol):
    """The replicas, as a policy may see them."""

    def present(self) -> Sequence[int]:
        """Those that may be chosen: started, and not known to be gone. Never empty."""

    def hardware(self, replica: int) -> Hardware:
        """What it was started with."""

    def now_s(self) -> float:
        """Seconds since the workload began; a moment before that while the cluster starts."""

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Have something called `delay_s` seconds from now."""

    def on_join(self, call: Callable[[int], None]) -> None:
        """Have each replica that joins told."""

    common: dict[str, Any]
    """What the routers of one run share with each other, by name."""

    # The rest is for those who are told it in reality, and for the omniscient.

    def answers(self, replica: int) -> bool:
        """Does its `/health` say 200?"""

    def began_s(self, replica: int) -> float:
        """When its server began to serve: well before 0 for those that are there at first."""

    def hear(self, replica: int, call: OnStep) -> None:
        """Have each step of its engine told."""

    def cached_tokens(self, replica: int, request: Request) -> int:
        """Tokens of the prompt's beginning that its KV cache holds now: for those who index the
        engine's KV events."""

    def pending_tokens(self, replica: int) -> int:
        """Prompt tokens that it has yet to compute, of all that it was sent: for the omniscient."""

    def held_tokens(self, replica: int) -> int:
        """Tokens that all its requests will have held in the cache when they end: likewise."""


class Policy(Protocol):
    """One router's way of choosing."""

    patience_s: float
    """How long a request waits for which there is no replica; 0: it is refused at once."""

    def choose(self, request: Request, now_s: float, without: int | None = None) -> int | None:
        """The replica for it; `None`: there is none now. It is asked again while patience lasts.

        `without`: the one that has just failed to serve it.
        """

    def sent(self, request: Request, replica: int, now_s: float) -> None:
        """It has gone there."""

    def first_token(self, request: Request, replica: int, now_s: float) -> None:
        """The first byte of its answer has come."""

    def finished(self, request: Request, replica: int, now_s: float) -> None:
        """Its answer has ended."""

    def failed(self, request: Request, replica: int, now_s: float) -> None:
        """Its answer has broken off, or there was none."""

    def scraped(self, replica: int, gauges: Gauges, now_s: float) -> None:
        """A server has said how it stands: every `Scenario.scrape_s` seconds."""


MakePolicy = Callable[[Cluster, Random], Policy]
"""Makes one router's policy, with dice of its own."""
