"""From pages of a server's `/metrics` to the events that its plugin would send.

Law
* A reading is new, with the next `seq`, when any figure of its engine differs from the last one's.
  Else the last reading is repeated, its instant included: a heartbeat. So an engine whose figures
  stand still makes no step: idle without work, hung with it.
* A page is of a new incarnation when its process began at another instant than the last page's
  (the two are compared as told: a clock that is set does not begin anything); where no page tells
  that, when the server was absent in between, or when a total went down.
* An incarnation began to serve when its page says, bounded by the machine's start and by now, for
  that is told by a clock that may be set; but not while the server was known to be absent, nor
  before the last page of the incarnation before it. Where nothing is known of it: long ago.
* Ranks are told as they are numbered over all servers of the model; a server with external or
  hybrid data-parallel balancing has some of them, all of which are on its page. How many others
  there are, no page tells: at least those below.
* A restarted sidecar calls the same process by the same name. Of one that tells no instant it does
  as well, unless that one has started anew before this sidecar's eyes.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from ullage_sidecar.core.reading import SCRAPE, Hello, Reading
from ullage_sidecar.sources.exposition import Figures, Page

TOTALS: Final = (
    "prompt_tokens",
    "generated_tokens",
    "preemptions",
    "prefix_queries",
    "prefix_hits",
)
_SIGNALS: Final = Reading._fields[3:]
"""What a reading has from its engine's figures, in order: all behind sender, seq and at_s."""


class Server(NamedTuple):
    """What a server is called, and what it does not tell."""

    name: str
    sender: int
    """Random 63-bit number; its ranks' are this and the rank, one changed by the other."""
    machine: str
    """Names this start of the machine."""
    max_num_seqs: int | None = None
    """As its operator told. `None`: to be learned."""


class Seen(NamedTuple):
    """What was seen of it. All instants but `process_start_s` are monotonic."""

    process_start_s: float | None = None
    """As the last page told it."""
    incarnations: int = 0
    """So many began before our eyes."""
    boot_id: str = ""
    """The present one. Empty: no page was read yet."""
    started_s: float = 0.0
    """When it began to serve."""
    page_s: float = 0.0
    """When the last page was asked for."""
    absent_s: float = 0.0
    """When nobody answered there, at the latest."""
    engines: Mapping[int, tuple[Figures, Reading]] = MappingProxyType({})
    """By rank."""


def absent(seen: Seen, now_s: float) -> Seen:
    """Nobody answers there."""
    return seen._replace(absent_s=max(now_s, seen.absent_s))


def rested(seen: Seen) -> Seen:
    """It was not asked for a while: the next page is compared with none."""
    ended = {rank: (Figures(), reading) for rank, (_, reading) in seen.engines.items()}
    return seen._replace(engines=ended)


def look(
    server: Server, seen: Seen, page: Page, at_s: float, wall_s: float
) -> tuple[Seen, list[Hello | Reading]]:
    """Take in a page that was asked for at `at_s`, `wall_s` by the clock on the wall.

    Hello and reading of each engine, in this order.
    """
    if not seen.boot_id or _is_new(seen, page):
        began = page.process_start_s
        nth = seen.incarnations + bool(seen.boot_id)
        told = nth if began is None else f"{began:.3f}"
        seen = seen._replace(
            incarnations=nth,
            boot_id=f"{server.machine}-{SCRAPE}-{told}",
            started_s=max(seen.absent_s, seen.page_s, _started_s(page, at_s, wall_s)),
            engines={},
        )
    engines = {
        rank: (figures, _reading(server.sender ^ rank, seen.engines.get(rank), figures, at_s))
        for rank, figures in page.engines.items()
    }
    seen = seen._replace(process_start_s=page.process_start_s, page_s=at_s, engines=engines)
    return seen, list(_events(server, seen))


def _is_new(seen: Seen, page: Page) -> bool:
    if None not in (seen.process_start_s, page.process_start_s):
        return seen.process_start_s != page.process_start_s
    return seen.absent_s > seen.page_s or any(
        _went_down(before, page.engines[rank])
        for rank, (before, _) in seen.engines.items()
        if rank in page.engines
    )


def _went_down(before: Figures, now: Figures) -> bool:
    totals = ((getattr(before, name), getattr(now, name)) for name in TOTALS)
    return any(old is not None and new is not None and new < old for old, new in totals)


def _started_s(page: Page, at_s: float, wall_s: float) -> float:
    began_s = page.process_start_s if page.serves_since_s is None else page.serves_since_s
    if began_s is None:
        return 0.0
    return min(at_s, max(0.0, at_s - (wall_s - began_s)))


def _reading(
    sender: int, last: tuple[Figures, Reading] | None, figures: Figures, at_s: float
) -> Reading:
    if last is not None and last[0] == figures:
        return last[1]
    seq = 1 if last is None else last[1].seq + 1
    return Reading(sender, seq, at_s, *(getattr(figures, name) for name in _SIGNALS))


def _events(server: Server, seen: Seen) -> Iterator[Hello | Reading]:
    for rank, (figures, reading) in seen.engines.items():
        yield Hello(
            sender=reading.sender,
            name=server.name,
            boot_id=seen.boot_id,
            pid=0,
            started_s=seen.started_s,
            engine_index=rank,
            data_parallel_size=max(seen.engines) + 1,
            first_rank=min(seen.engines),
            ranks_here=len(seen.engines),
            models=figures.models,
            total_blocks=figures.total_blocks,
            block_size=figures.block_size,
            max_num_seqs=server.max_num_seqs,
            source=SCRAPE,
        )
        yield reading
