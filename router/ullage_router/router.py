"""The router's one owner of state: the fleet, the counts, the dice, the record of decisions."""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from random import Random
from typing import Final, NamedTuple

from ullage_router.core.ask import model_of
from ullage_router.core.decide import Decision, LineUp, draw, line_up
from ullage_router.core.fleet import Fleet, Replica, set_aside
from ullage_router.core.inflight import Hold, InFlight
from ullage_router.core.policy import Policy
from ullage_router.tally import Tally
from ullage_shared.log import line

_log: Final = logging.getLogger("ullage.router")
_REMEMBERED: Final = 256
_MOST_LINE_UPS: Final = 64


class Decided(NamedTuple):
    """A decision of the past, for people."""

    at: float
    """Unix seconds."""
    decision: Decision
    in_flight: int
    """The replica's requests in flight from this router, before this one."""
    second_try: bool
    request_id: bytes = b""
    """The client's, or the router's own."""


class Router:
    """Chooses, and counts what it chose."""

    def __init__(
        self,
        fleet: Fleet,
        policy: Policy,
        rng: Random,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = policy
        self.now_s = now_s
        self.in_flight = InFlight()
        self.decisions: Counter[str] = Counter()
        """By `Why`, refusals included."""
        self.refusals: Counter[str] = Counter()
        """Answers that the router gave in a replica's place, by code."""
        self.second_tries = 0
        """Requests sent to another replica after a first one."""
        self.tries_denied = 0
        """Second tries that the budget did not allow."""
        self.clients_stalled = 0
        """Clients cut off because they took nothing of their answer for too long."""
        self.recent: deque[Decided] = deque(maxlen=_REMEMBERED)
        self.tallies: dict[str, Tally] = {}
        """By replica key; a replica that leaves takes its tally along."""
        self.leaving: dict[str, Replica] = {}
        """Replicas that are no longer in the fleet, and have yet to finish what they have."""
        self._rng = rng
        self._failing: set[str] = set()
        self._fleet = fleet
        self._line_ups: dict[str | None, LineUp] = {}

    @property
    def policy(self) -> Policy:
        """The rules of choosing. May be replaced at any time."""
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self._policy = policy
        self._line_ups.clear()

    @property
    def fleet(self) -> Fleet:
        """The latest picture. Replaced whole, never changed."""
        return self._fleet

    @fleet.setter
    def fleet(self, fleet: Fleet) -> None:
        if fleet.replicas.keys() != self._fleet.replicas.keys():
            for key in fleet.replicas.keys() - self._fleet.replicas.keys():
                _log.info(line("replica_joined", replica=fleet.replicas[key].id))
            for key in self._fleet.replicas.keys() - fleet.replicas.keys():
                leaves = self._fleet.replicas[key]
                requests = self.in_flight.by_replica.get(key, 0)
                _log.info(line("replica_left", replica=leaves.id, requests=requests))
                if requests:
                    self.leaving[key] = leaves
                else:
                    self._forget(key)
            for key in self.leaving.keys() & fleet.replicas.keys():
                del self.leaving[key]
        self._fleet = fleet
        self._line_ups.clear()

    def choose(self, body: bytes, tried: Collection[str] = (), request_id: bytes = b"") -> Decision:
        """Choose for a request with this body; not among the keys in `tried`."""
        now_s = self.now_s()
        fleet = self._fleet
        model = model_of(body) if fleet.mixed else None
        if tried:
            lined_up = line_up(fleet, model, now_s, self._policy, tried)
        else:
            lined_up = self._line_up(model, now_s)
        decision = draw(lined_up, self.in_flight.by_replica, self._rng, self._policy)
        self.decisions[decision.why] += 1
        replica = decision.replica
        waiting = 0 if replica is None else self.in_flight.by_replica.get(replica.key, 0)
        self.recent.append(Decided(time.time(), decision, waiting, bool(tried), request_id))
        if replica is not None and decision.score is not None:
            tally = self.tallies.get(replica.key) or self.tally(replica)
            tally.score.observe(decision.score)
        return decision

    def _line_up(self, model: str | None, now_s: float) -> LineUp:
        """The line-up for this model: judged anew when the fleet, the policy or time changes it."""
        known = self._line_ups.get(model)
        if known is None or not known.holds(now_s):
            if len(self._line_ups) >= _MOST_LINE_UPS:  # Clients make up names of models.
                self._line_ups.clear()
            known = self._line_ups[model] = line_up(self._fleet, model, now_s, self._policy)
        return known

    def dispatch(self, replica: Replica) -> tuple[Hold, Tally]:
        """A request goes to `replica` now: count it there until the hold is released."""
        key = replica.key
        tally = self.tallies.get(key) or self.tally(replica)
        tally.dispatched += 1
        return self.in_flight.hold(key), tally

    def failed(self, replica: Replica, failure: str, problem: str) -> None:
        """`replica` gave no answer: it is left out for a moment."""
        self.tally(replica).failures[failure] += 1
        if replica.key in self._fleet.replicas and replica.key not in self._failing:
            self._failing.add(replica.key)
            _log.warning(line("replica_failing", replica=replica.id, how=failure, why=problem))
        self.set_aside(replica)

    def set_aside(self, replica: Replica) -> None:
        """`replica` gave no answer, or has no room: it is left out for a moment."""
        until_s = self.now_s() + self._policy.set_aside_s
        self._fleet = set_aside(self._fleet, replica.key, until_s)
        self._line_ups.clear()

    def answered(self, replica: Replica) -> None:
        """`replica` gave a whole answer, whatever it said."""
        if replica.key in self._failing:
            self._failing.remove(replica.key)
            _log.info(line("replica_answers", replica=replica.id))

    def see_off(self) -> None:
        """Forget those that have left and have finished."""
        for key in [k for k in self.leaving if not self.in_flight.by_replica.get(k, 0)]:
            _log.info(line("replica_finished", replica=self.leaving.pop(key).id))
            self._forget(key)

    def _forget(self, key: str) -> None:
        self.tallies.pop(key, None)
        self._failing.discard(key)

    def tally(self, replica: Replica) -> Tally:
        """The counts of `replica`."""
        tally = self.tallies.get(replica.key)
        if tally is None:
            tally = Tally()
            if replica.key in self._fleet.replicas or replica.key in self.leaving:
                self.tallies[replica.key] = tally
        return tally
