"""What is heard of one vLLM engine: who it is (`Hello`) and how it stands (`Reading`).

The plugin in its server says both, or they are read from the server's own `/metrics`.

Rule: a value that vLLM did not give is `None`, never 0. Unknown is not idle, and not full.

Instants (`*_s` ending in `at_s`, `started_s`) are seconds on the node's monotonic clock, which
every process of a host shares and which no one can set back.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

PLUGIN: Final = "plugin"
SCRAPE: Final = "scrape"


@dataclass(frozen=True, slots=True)
class Hello:
    """Identity and capacity of one engine, as one of vLLM's API processes sees it.

    An engine is named by (`name`, `engine_index`); one incarnation of it by `boot_id`; one
    API process that speaks for it by `sender`. Several senders may speak for one engine.
    """

    sender: int
    """Random 63-bit number of the speaking stat logger."""
    name: str
    """The server's name: `ULLAGE_ENGINE`, by default `vllm`."""
    boot_id: str
    """Changes when the server restarts, and is the same in all its API processes."""
    pid: int
    """0: not told."""
    started_s: float
    """When the server began to serve, on the monotonic clock."""
    engine_index: int = 0
    """Data-parallel rank of the engine, 0 .. `data_parallel_size` - 1."""
    data_parallel_size: int = 1
    first_rank: int = 0
    """The lowest rank that this server has itself; it counts its engines from there."""
    ranks_here: int | None = None
    """How many ranks this server has itself. `None`: all. With vLLM's external or hybrid balancing
    the others belong to other servers."""
    models: tuple[str, ...] = ()
    total_blocks: int | None = None
    """KV blocks of *this* engine (vLLM sums them over data-parallel engines)."""
    block_size: int | None = None
    """Tokens per KV block."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    vllm_version: str | None = None
    unstepped: int = 0
    """Engine steps whose tokens this sender was told of, but not their scheduler stats."""
    dropped: int = 0
    """Datagrams this sender could not hand over since it started (nobody listened, or looked)."""
    said_s: float | None = None
    """When this was said, on the monotonic clock: it may have lain in a queue since."""
    source: str = PLUGIN
    """`PLUGIN` or `SCRAPE`. Nobody says it: it is known from where the hello came."""


class Reading(NamedTuple):
    """One engine step's scheduler stats. Counters are totals since the sender started.

    Totals, not deltas, so that a lost datagram loses nothing but its moment.
    """

    sender: int
    seq: int
    """1, 2, 3, …: the sender's steps. A gap is a lost datagram, a repeat is a heartbeat.

    Of a scrape: 1 more whenever something has changed since the last one."""
    at_s: float
    """When the step was recorded, on the monotonic clock."""
    running: int | None
    waiting: int | None
    """Waiting requests, those that vLLM calls deferred or skipped included."""
    kv_usage: float | None
    """Share of the KV blocks in use, 0..1; blocks that are only cached count as free."""
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    preemptions: int | None = None
    prefix_queries: int | None = None
    """Tokens looked up in the prefix cache."""
    prefix_hits: int | None = None
    """Tokens found there."""
