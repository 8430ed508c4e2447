"""NVIDIA Dynamo's KV router: the fewest blocks to prefill and to hold.

    prefill = (prompt tokens yet to prefill there + this prompt's) / block size − overlap
    decode  = distinct blocks of the requests active there + those that this one would add
    cost    = 1.0 · prefill + decode            the least wins, a tie by lot

`overlap` are the blocks of this prompt that the replica's KV cache holds, from its KV events. A
request counts as yet to prefill, with its tokens less its overlap when it was sent, until its first
token; its prompt's blocks are active until it ends, each prefix once however many have it. (The
original keeps prefill from falling below 0, which an overlap shorter than the prompt cannot do.)

With a temperature above 0 (the default is 0) the draw is random instead, by
exp(−(cost − least) / (most − least) / temperature).

Source: ai-dynamo/dynamo, lib/kv-router/src/scheduling/selector/default.rs (07a6c9ce) for the cost,
the ties and the softmax, scheduling/config.rs (0243c51b) for the defaults: overlap_score_credit 1,
prefill_load_scale 1, router_temperature 0, router_track_active_blocks on,
router_track_output_blocks off, overlap_score_credit_decay and decode_active_request_weight 0.

Sees: its own requests, and KV events.
Simplified: KV events come at once; the queue before dispatch (off by default), the decay of a
prefill's load over time (off without a performance model), and host and disk tiers are not
modelled. Several routers do not tell each other of their requests (router_replica_sync is off by
default).
"""

from collections.abc import Collection, Sequence
from math import exp
from random import Random

from ullage_tune.policy import Cluster
from ullage_tune.rivals.chain import chain
from ullage_tune.rivals.own import Own, cheapest
from ullage_tune.workload import Request


class Dynamo(Own):
    """The rule above; temperature ≥ 0."""

    def __init__(self, cluster: Cluster, dice: Random, temperature: float = 0.0) -> None:
        super().__init__(cluster, dice)
        self._temperature = temperature
        self._yet_to_prefill: dict[int, dict[int, int]] = {}
        """Replica: request: tokens."""
        self._prefill_tokens: dict[int, int] = {}
        self._active: dict[int, dict[int, int]] = {}
        """Prefix: replica: requests that have it."""
        self._active_blocks: dict[int, int] = {}
        self._block_sizes: dict[int, int] = {}

    def changed(self, present: Sequence[int], gone: Collection[int]) -> None:
        """See `Own`: its requests are no more."""
        for replica in gone:
            for table in (self._yet_to_prefill, self._prefill_tokens, self._active_blocks):
                table.pop(replica, None)
            for name in [name for name, held in self._active.items() if replica in held]:
                self._let_go(name, replica)

    def pick(self, request: Request, now_s: float, present: Sequence[int]) -> int:
        """See `Own`."""
        block_size = self.cluster.hardware(present[0]).block_size
        shared: dict[int, int] = {}
        whole = 0
        for name, blocks in chain(request, block_size):
            whole += blocks
            for replica in self._active.get(name, ()):
                shared[replica] = shared.get(replica, 0) + blocks
        costs: list[tuple[float, int]] = []
        for replica in present:
            overlap = self.cluster.cached_tokens(replica, request) // block_size
            tokens = self._prefill_tokens.get(replica, 0) + request.prompt_tokens
            decode = self._active_blocks.get(replica, 0) + whole - shared.get(replica, 0)
            costs.append((tokens / block_size - overlap + decode, replica))
        if self._temperature > 0.0:
            return self._drawn(costs)
        return self.dice.choice(cheapest(costs))

    def _drawn(self, costs: Sequence[tuple[float, int]]) -> int:
        least, most = min(costs)[0], max(costs)[0]
        scale = (most - least) * self._temperature or 1.0
        weights = [exp((least - cost) / scale) for cost, _ in costs]
        return self.dice.choices([replica for _, replica in costs], weights)[0]

    def sent(self, request: Request, replica: int, now_s: float) -> None:
        """See `Policy`."""
        super().sent(request, replica, now_s)
        block_size = self._block_sizes[replica] = self.cluster.hardware(replica).block_size
        overlap = self.cluster.cached_tokens(replica, request) // block_size * block_size
        tokens = max(0, request.prompt_tokens - overlap)
        self._yet_to_prefill.setdefault(replica, {})[id(request)] = tokens
        self._prefill_tokens[replica] = self._prefill_tokens.get(replica, 0) + tokens
        for name, blocks in chain(request, block_size):
            held = self._active.setdefault(name, {})
            if replica not in held:
                self._active_blocks[replica] = self._active_blocks.get(replica, 0) + blocks
            held[replica] = held.get(replica, 0) + 1

    def first_token(self, request: Request, replica: int, now_s: float) -> None:
        """See `Policy`."""
        self._prefilled(request, replica)

    def finished(self, request: Request, replica: int, now_s: float) -> None:
        """See `Policy`."""
        super().finished(request, replica, now_s)
        self._prefilled(request, replica)
        for name, blocks in chain(request, self._block_sizes.get(replica, 1)):
            held = self._active.get(name, {})
            if replica not in held:
                continue
            held[replica] -= 1
            if held[replica] == 0:
                self._active_blocks[replica] -= blocks
                self._let_go(name, replica)

    def _prefilled(self, request: Request, replica: int) -> None:
        tokens = self._yet_to_prefill.get(replica, {}).pop(id(request), 0)
        if tokens:
            self._prefill_tokens[replica] -= tokens

    def _let_go(self, name: int, replica: int) -> None:
        held = self._active[name]
        del held[replica]
        if not held:
            del self._active[name]
