"""Three rules of general load balancers, which look at no prompt.

- `round_robin`: the next one in turn (nginx's default, vLLM production-stack's `roundrobin`).
- `least_in_flight`: the fewest of this router's own requests in flight; a tie goes by lot
  (HAProxy's and nginx's `leastconn`, KubeAI's LeastLoad, Ray Serve with all replicas sampled).
- `two_choices`: two drawn at random, the one with fewer of its own in flight; a tie to the one
  drawn first, which is a lot as well (vllm-router's `power_of_two`, Envoy's LEAST_REQUEST).

Source: M. Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, IEEE TPDS 12(10),
2001; vllm-project/router, src/policies/power_of_two.rs (fa999f98).

Sees: its own requests in flight.
Simplified: vllm-router's power_of_two adds to its own count what the server's `/load` said up to
5 s before; vLLM answers 0 there unless it was told to count, which is not its default.
"""

from bisect import bisect_right
from collections.abc import Sequence

from ullage_tune.rivals.own import Own
from ullage_tune.workload import Request


class RoundRobin(Own):
    """The next after the last one, by number; after the highest the lowest."""

    _last = -1

    def pick(self, request: Request, now_s: float, present: Sequence[int]) -> int:
        """See `Own`."""
        self._last = present[bisect_right(present, self._last) % len(present)]
        return self._last


class LeastInFlight(Own):
    """The fewest in flight, by lot among equals."""

    def pick(self, request: Request, now_s: float, present: Sequence[int]) -> int:
        """See `Own`."""
        return self.dice.choice(self.fewest(present))


class TwoChoices(Own):
    """The better of two drawn at random; of one, that one."""

    def pick(self, request: Request, now_s: float, present: Sequence[int]) -> int:
        """See `Own`."""
        return self.fewest(self.dice.sample(present, min(2, len(present))))[0]
