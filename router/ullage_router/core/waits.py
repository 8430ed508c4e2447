"""How long a request would wait at each candidate, for its first token and between the others,
and a draw by that.

    wait   = (backlog + WORK · uncached + ANSWER · (requests + held / CONTEXT)) · token_s + crowd
    weight = exp(-(wait - the least wait) / (temperature · the typical step_s))

    backlog    prompt tokens sent there whose requests have had no first byte: this router's own,
               exactly, and of other routers' as many as their waiting requests may have
    uncached   tokens of this prompt that the replica has yet to compute (see `prefixes`)
    requests   in flight there: each adds a token to every step of the answer
    held       tokens in its KV pool, which every step reads: a token of compute for each `CONTEXT`
    token_s    seconds of a token of compute: 1 / the snapshot's `prefill_tokens_per_s`
    crowd      CROWD · the typical step_s · what the KV pool will be filled beyond `ROOM`, in shares
               of it, and what there are of requests, this one too, beyond `max_num_seqs`, in shares
               of that

What is stalled (see `Snapshot`) is expected to be so for `STALL_S` more. What has to be computed
counts more than what others have asked for already: it delays all that
come after it, too. The draw is nearly the least wait, and spreads what is about equal, so that
several routers that look at the same picture do not all run to one replica. What a prompt has that
nobody is known to know throws the dice, the same ones in all routers.

Whose speeds are not known yet, or whose requests, is taken for a typical one: the median of those
that are known, or else `TOKEN_S`, `STEP_S` and none: of a silent one others have made as much use.
Where nothing is known of any, this is the least backlog.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import exp, inf
from random import Random
from statistics import median
from typing import Final, NamedTuple

import msgspec

from ullage_router.core.inflight import InFlight
from ullage_shared.snapshot import Snapshot

WORK: Final = 2.0
"""How often a request's own tokens count. This and the four below are what did well in the lab on
Mooncake's trace, chats, agents and mixed prompts; the best is flat."""
ANSWER: Final = 150.0
"""Steps of an answer that others make longer. Answers have hundreds, but a later token is waited
for less than a first one."""
CONTEXT: Final = 1000.0
"""Tokens whose keys and values are read in the time that computing one takes: 800 where a model of
8B parameters is on an H100, 3,000 where one of 70B is on four, by their data sheets."""
CROWD: Final = 1000.0
"""Steps that a whole pool, or as many requests as run at once, too much are as bad as. No time: a
cost, to keep away from preemptions and from queues that wait for others to end."""
ROOM: Final = 0.85
"""Share of the KV pool, 0..1."""
STALL_S: Final = 3.0
"""How much longer what has made no step for a while will need until it makes one, if it does: as
long as sidecars wait before they say so."""
TOKEN_S: Final = 1e-4
STEP_S: Final = 0.02
"""Of a large model on few GPUs: a small one waits less everywhere, and all by as much."""
LEAST_UNCACHED: Final = 16
"""Tokens: vLLM computes the last block of a prompt anew, whatever it has."""
_FAR: Final = 30.0
"""Temperatures from the least wait: never drawn."""


class Pace(msgspec.Struct, frozen=True, gc=False):
    """What a replica's snapshot says of how fast it gets through what it has."""

    token_s: float | None = None
    """Seconds per uncached prompt token; None: not known yet."""
    step_s: float | None = None
    """Seconds of a step; None: not known yet."""
    requests: int | None = None
    """Running and waiting there; None: not known."""
    waiting: int | None = None
    used: float = 0.0
    """Share of the KV pool in use, 0..1."""
    pool_tokens: int = 0
    """What the KV pool can hold; 0: unknown, and so is what is in use."""
    most: int = 0
    """Requests that run at once; 0: unknown."""
    stalled: bool = False
    """It has made no step for a while."""


UNKNOWN: Final = Pace()


def moves(pace: Pace) -> bool:
    """Do those that wait there wait for prompts to be computed only, and for no blocks or sequences
    that others must give back?"""
    if pace.requests is None or pace.used >= ROOM or pace.stalled:
        return False
    return not pace.most or pace.requests - (pace.waiting or 0) < pace.most


def pace_of(snapshot: Snapshot | None) -> Pace:
    """What waits are reckoned with; None: nothing is known."""
    if snapshot is None:
        return UNKNOWN
    total, free, size = snapshot.total_blocks, snapshot.free_blocks, snapshot.block_size
    speed = snapshot.prefill_tokens_per_s
    return Pace(
        None if speed is None else 1.0 / speed,
        snapshot.step_s,
        None if snapshot.running is None else snapshot.running + (snapshot.waiting or 0),
        snapshot.waiting,
        1.0 - free / total if total and free is not None else 0.0,
        total * size if total and size else 0,
        snapshot.max_num_seqs or 0,
        snapshot.stalled,
    )


class Typical(msgspec.Struct, frozen=True, gc=False):
    """What stands in for what is not known. `measured`: is any speed known?"""

    token_s: float
    step_s: float
    requests: float = 0.0
    waiting: float = 0.0
    most: float = 0.0
    held: float = 0.0
    measured: bool = False


def typical_of(paces: Sequence[Pace]) -> Typical:
    """Of these candidates."""
    token_s = [pace.token_s for pace in paces if pace.token_s is not None]
    step_s = [pace.step_s for pace in paces if pace.step_s is not None]
    requests = [pace.requests for pace in paces if pace.requests is not None]
    waiting = [pace.waiting for pace in paces if pace.waiting is not None]
    most = [pace.most for pace in paces if pace.most]
    held = [pace.used * pace.pool_tokens for pace in paces if pace.pool_tokens]
    return Typical(
        median(token_s) if token_s else TOKEN_S,
        median(step_s) if step_s else STEP_S,
        median(requests) if requests else 0.0,
        median(waiting) if waiting else 0.0,
        median(most) if most else 0.0,
        median(held) if held else 0.0,
        bool(token_s),
    )


class Row(NamedTuple):
    """One candidate's wait, but for what a request adds to it."""

    wait_s: float
    """Of a request with nothing to compute, while there is room."""
    token_s: float
    """What each of its uncached tokens adds."""
    room: float
    """Tokens until the KV pool is filled to `ROOM`; below 0: it is beyond; infinite: unknown."""
    crowd_s: float
    """What each token beyond that adds besides."""
    begins_s: float
    """Until its turn comes: no cost that is not time."""
    slots: float
    """How many more until as many are there as run at once; infinite: unknown."""


def late(row: Row, uncached: int, beyond_s: float) -> bool:
    """Would a request with so many uncached tokens wait longer than that for its turn? So it would
    where others must give back blocks or sequences first: nobody knows when. (That many may wait in
    a queue is a bound, too: one that has stopped to move looks as if it did for a while.)"""
    return uncached > row.room or row.slots <= 0.0 or row.begins_s > beyond_s


def waits_of(rows: Sequence[Row], uncached: Sequence[int]) -> list[float]:
    """The wait at each, in seconds, of a request with so many uncached tokens there."""
    return [
        wait_s + tokens * token_s
        if tokens <= room
        else wait_s + tokens * token_s + (tokens - room) * crowd_s
        for (wait_s, token_s, room, crowd_s, _, _), tokens in zip(rows, uncached, strict=True)
    ]


def row_of(key: str, pace: Pace, typical: Typical, load: InFlight) -> Row:
    """How the replica `key` stands now."""
    token_s, step_s = pace.token_s or typical.token_s, typical.step_s
    backlog, own = float(load.pending.get(key, 0)), load.by_replica.get(key, 0)
    requests = typical.requests if pace.requests is None else pace.requests
    others = typical.waiting if pace.waiting is None else pace.waiting
    others -= load.unbegun.get(key, 0)
    if others > 0:
        backlog += others * load.mean_tokens
    requests = max(own, requests)
    pool = pace.pool_tokens
    begins_s = backlog * token_s + (STALL_S if pace.stalled else 0.0)
    held = pace.used * pool if pool else typical.held
    wait_s = begins_s + ANSWER * (requests + held / CONTEXT) * token_s
    most = pace.most or typical.most
    if most and requests >= most:  # It will wait until as many have ended.
        wait_s += CROWD * step_s * (requests + 1 - most) / most
    return Row(
        wait_s,
        WORK * token_s,
        (ROOM - pace.used) * pool - backlog if pool else inf,
        CROWD * step_s / pool if pool else 0.0,
        begins_s,
        most - requests if most else inf,
    )


def weights_of(waits: Sequence[float], temperature_s: float) -> list[float]:
    """At what odds each is drawn, the least wait at 1; at a temperature of 0, no other."""
    least = min(waits)
    if temperature_s <= 0.0:
        return [float(wait == least) for wait in waits]
    far = least + _FAR * temperature_s
    # Beside a long wait a low temperature is lost: then the least is as far as `far`.
    return [exp((least - wait) / temperature_s) if wait <= far else 0.0 for wait in waits]


def drawn(weights: Sequence[float], rng: Random) -> int:
    """One of them, at these odds; one at least is not 0."""
    up_to = [*accumulate(weights)]
    return min(bisect_right(up_to, rng.random() * up_to[-1]), len(up_to) - 1)  # A crumb too many.
