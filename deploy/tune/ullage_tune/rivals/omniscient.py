"""The bound: a policy that knows what no router can, and sends each request where it is best off.

    cost_s = pace · (pending + uncached) + full_s + 0.5 · pace · uncached + 2 · held / capacity

    pending    prompt tokens that the replica has yet to compute, of all that it was sent, by anyone
    uncached   tokens of this prompt that its KV cache does not hold
    pace       seconds that it takes for one prompt token
    full_s     how long it is until the KV cache has room for this request, its answer included
    held       tokens that all its requests will hold when they end; capacity: of its KV cache

The first two terms are this request's time to first token. The third is what its own work costs
those that come after it, so that a cached prefix is worth more than a queue that is as short
elsewhere. The last one spreads decoding, which slows all that is decoded beside it. The least cost
wins, ties by lot.

`full_s` plays the ends of the requests that are there in their order, each at the pace at which
answers go there, until what this one lacks is free. `pace` and the pace of answers are learned from
first tokens and ends, each replica's own leaning on the fleet's until it has shown enough; so a
slow replica is known as such after a few answers.

Not a strict bound: it is greedy, one request at a time, and knows nothing of those to come. The
weights of the last two terms are the best of those tried (0, 0.5, 1, 3; 0.5, 2, 5) on slices of a
trace, where the best and the worst means lie within 10 %.
"""

from collections.abc import Collection, Sequence
from random import Random
from typing import NamedTuple

from ullage_tune.policy import Cluster
from ullage_tune.rivals.own import Own, cheapest
from ullage_tune.workload import Request

PACE_S = 1e-4
"""Of a prompt token, before any was seen."""
ANSWER_PACE_S = 0.03
"""Of a token of an answer, likewise."""
LEARNED_OVER = 20.0
"""So many requests weigh as much as the fleet's pace does."""
MEMORY = 0.98
FLEET_MEMORY = 0.995
"""What a sample weighs when the next one has come: of one replica, and of any."""
OWN_WORK = 0.5
"""Of a prompt's own work, what it is taken to cost others."""
DECODING_S = 2.0
"""What a full KV cache is taken to cost."""


class Pace:
    """Seconds for each unit of work, of every replica."""

    def __init__(self, pace_s: float) -> None:
        self._fleet = (pace_s, 1.0)
        self._each: dict[int, tuple[float, float, float]] = {}

    def learn(self, replica: int, work: float, took_s: float) -> None:
        """It took so long for so much."""
        seconds, units = self._fleet
        self._fleet = seconds * FLEET_MEMORY + took_s, units * FLEET_MEMORY + work
        seconds, units, samples = self._each.get(replica, (0.0, 0.0, 0.0))
        self._each[replica] = (
            seconds * MEMORY + took_s,
            units * MEMORY + work,
            samples * MEMORY + 1.0,
        )

    def of(self, replica: int) -> float:
        """Its pace, leaning on the fleet's."""
        fleet_s = self._fleet[0] / self._fleet[1]
        seconds, units, samples = self._each.get(replica, (0.0, 0.0, 0.0))
        if not units:
            return fleet_s
        return (fleet_s * LEARNED_OVER + seconds / units * samples) / (LEARNED_OVER + samples)


class Sent(NamedTuple):
    """A request on its replica."""

    at_s: float
    work: int
    """Prompt tokens to be computed until its first one."""
    tokens: int
    """That it will hold at its end."""
    first_s: float | None


class Omniscient(Own):
    """The rule above."""

    def __init__(self, cluster: Cluster, dice: Random) -> None:
        super().__init__(cluster, dice)
        self._pace = Pace(PACE_S)
        self._answers = Pace(ANSWER_PACE_S)
        self._there: dict[int, dict[int, tuple[Request, Sent]]] = {}
        self._works: dict[int, int] = {}

    def changed(self, present: Sequence[int], gone: Collection[int]) -> None:
        """See `Own`."""
        for replica in gone:
            self._there.pop(replica, None)

    def pick(self, request: Request, now_s: float, present: Sequence[int]) -> int:
        """See `Own`."""
        costs: list[tuple[float, int]] = []
        for replica in present:
            hardware = self.cluster.hardware(replica)
            uncached = request.prompt_tokens - self.cluster.cached_tokens(replica, request)
            work = self.cluster.pending_tokens(replica) + uncached
            self._works[replica] = work
            pace_s = self._pace.of(replica)
            held = self.cluster.held_tokens(replica)
            capacity = hardware.blocks * hardware.block_size
            lacking = held + request.prompt_tokens + request.output_tokens - capacity
            cost_s = pace_s * (work + OWN_WORK * uncached) + DECODING_S * held / capacity
            if lacking > 0:
                cost_s += self._full_s(replica, lacking, held, now_s)
            costs.append((cost_s, replica))
        return self.dice.choice(cheapest(costs))

    def _full_s(self, replica: int, lacking: int, held: int, now_s: float) -> float:
        """Until so many tokens are free; those of other routers end as our own do."""
        there = self._there.get(replica, {}).values()
        ours = sum(sent.tokens for _, sent in there)
        share = ours / held if held else 1.0
        pace_s, answer_s = self._pace.of(replica), self._answers.of(replica)
        ends = []
        for request, sent in there:
            first_s = sent.first_s if sent.first_s is not None else sent.at_s + pace_s * sent.work
            ends.append((max(0.0, first_s + answer_s * request.output_tokens - now_s), sent.tokens))
        left, full_s = lacking * share, 0.0
        for end_s, tokens in sorted(ends):
            if left <= 0:
                break
            left, full_s = left - tokens, end_s
        return full_s

    def sent(self, request: Request, replica: int, now_s: float) -> None:
        """See `Policy`."""
        super().sent(request, replica, now_s)
        tokens = request.prompt_tokens + request.output_tokens
        sent = Sent(now_s, self._works.get(replica, request.prompt_tokens), tokens, None)
        self._there.setdefault(replica, {})[id(request)] = request, sent

    def first_token(self, request: Request, replica: int, now_s: float) -> None:
        """See `Policy`."""
        there = self._there.get(replica, {})
        if id(request) in there:
            _, sent = there[id(request)]
            there[id(request)] = request, sent._replace(first_s=now_s)
            self._pace.learn(replica, sent.work, now_s - sent.at_s)

    def finished(self, request: Request, replica: int, now_s: float) -> None:
        """See `Policy`."""
        super().finished(request, replica, now_s)
        _, sent = self._there.get(replica, {}).pop(id(request), (request, None))
        if sent is not None and sent.first_s is not None:
            self._answers.learn(replica, request.output_tokens, now_s - sent.first_s)
