"""What chooses a replica in the lab, and what it may know.

A policy is one router's: several routers are several policies, each of which sees its own requests
only. It is told what a router sees: what it sent, first bytes, ends; and what servers say when they
are asked (`scraped`), or what their sidecars say.

Replicas are numbers, from 0 on; one that joins has the next one. `Cluster` is what there is to ask.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, Protocol

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


class Cluster(Protocol):
    """The replicas, as a policy may see them."""

    def present(self) -> Sequence[int]:
        """Those that may be chosen: started, and not known to be gone. Never empty."""

    def hardware(self, replica: int) -> Hardware:
        """What it was started with."""

    # The rest is for those who are told it in reality, and for the omniscient.

    def cached_tokens(self, replica: int, request: Request) -> int:
        """Tokens of the prompt's beginning that its KV cache holds now: for those who index the
        engine's KV events."""

    def pending_tokens(self, replica: int) -> int:
        """Prompt tokens that it has yet to compute, of all that it was sent: for the omniscient."""

    def held_tokens(self, replica: int) -> int:
        """Tokens that all its requests will have held in the cache when they end: likewise."""


class Policy(Protocol):
    """One router's way of choosing."""

    def choose(self, request: Request, now_s: float) -> int | None:
        """The replica for it; `None`: it is refused. Called once for each request."""

    def sent(self, request: Request, replica: int, now_s: float) -> None:
        """It has gone there."""

    def first_token(self, request: Request, replica: int, now_s: float) -> None:
        """The first byte of its answer has come."""

    def finished(self, request: Request, replica: int, now_s: float) -> None:
        """Its answer has ended, or broken off (perhaps without a first byte)."""

    def scraped(self, replica: int, gauges: Gauges, now_s: float) -> None:
        """A server has said how it stands: every `Scenario.scrape_s` seconds."""


MakePolicy = Callable[[Cluster, Random], Policy]
"""Makes one router's policy, with dice of its own."""
