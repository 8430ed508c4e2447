"""The router's one owner of state: the fleet, the counts, the dice, what is known of keys."""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Final

import msgspec

from ullage_router.core.affinity import Memory, Placed
from ullage_router.core.ask import Ask
from ullage_router.core.breaker import (
    CLOSED,
    Breaker,
    Condition,
    Event,
    after,
    out,
    own_failure,
    probe_due,
)
from ullage_router.core.decide import choose
from ullage_router.core.decision import Decision, Need, Why
from ullage_router.core.fleet import Fleet, Replica, with_breaker
from ullage_router.core.follow import follow
from ullage_router.core.inflight import Hold, InFlight, share_of
from ullage_router.core.lineup import LineUp, line_up, seed_of
from ullage_router.core.odds import Odds
from ullage_router.core.policy import Way
from ullage_router.core.prefixes import Prefixes
from ullage_router.core.rules import Rules
from ullage_router.core.tokens import TokenRatio
from ullage_router.tally import Tally
from ullage_shared.log import line
from ullage_shared.snapshot import RequestClass, class_of

_log: Final = logging.getLogger("ullage.router")
_REMEMBERED: Final = 256
_FEW: Final = 16
_MOST_NUMBERS: Final = 4096
"""Of remembered decisions among more than a few, candidates all together: each holds a snapshot."""
_MOST_KINDS: Final = 64
_NO_ROOM: Final = 503
_LEAST_WAIT: Final = Way.LEAST_WAIT
_ROUND_ROBIN: Final = Way.ROUND_ROBIN  # To look it up in the enum takes as long again.


class Decided(msgspec.Struct, gc=False):
    """A decision of the past, for people."""

    at: float
    """Unix seconds."""
    decision: Decision
    in_flight: int
    """The replica's requests in flight from this router, before this one."""
    second_try: bool
    request_id: bytes = b""
    """The client's, or the router's own."""
    prompt_tokens: int = 0
    """Estimated."""
    waited_s: float = 0.0

    @property
    def numbers(self) -> int:
        """Of how many candidates it keeps the numbers."""
        look = self.decision.look
        return 0 if look is None else len(look.seats)

    def forget_numbers(self) -> None:
        """Keep what was decided."""
        self.decision = msgspec.structs.replace(self.decision, look=None)


class Router:
    """Chooses, and counts what it chose."""

    def __init__(
        self,
        fleet: Fleet,
        rules: Rules,
        rng: Random,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules = rules
        self.now_s = now_s
        self.in_flight = InFlight()
        self.memory = Memory(rules.affinity.max_keys)
        self.prefixes = Prefixes(rules.affinity.max_keys)
        self.tokens = TokenRatio()
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
        """The latest decisions, the newest last."""
        self._among_many: deque[Decided] = deque()
        """Those among more than a few candidates, whose numbers they keep."""
        self._numbers = 0
        """Of how many candidates these are, all together."""
        self.tallies: dict[str, Tally] = {}
        """By replica key; a replica that leaves takes its tally along."""
        self.leaving: dict[str, Replica] = {}
        """Replicas that are no longer in the fleet, and have yet to finish what they have."""
        self._rng = rng
        self._failing: set[str] = set()
        self._fleet = fleet
        self._held = {key for key in fleet.replicas if _is_held(fleet, key)}
        """Keys of those against whom something is held: few, while all are looked at seldom."""
        self._odds: dict[tuple[str | None, RequestClass], Odds] = {}
        self._judged: dict[RequestClass, LineUp] = {}
        """The latest of each size: what has not changed since is not judged anew."""

    @property
    def rules(self) -> Rules:
        """The rules of choosing. May be replaced at any time."""
        return self._rules

    @rules.setter
    def rules(self, rules: Rules) -> None:
        self._rules = rules
        self.memory.max_keys = self.prefixes.max_keys = rules.affinity.max_keys
        self._odds.clear()
        self._judged.clear()

    @property
    def fleet(self) -> Fleet:
        """The latest picture. Replaced whole, never changed."""
        return self._fleet

    @fleet.setter
    def fleet(self, fleet: Fleet) -> None:
        if fleet.keys is not self._fleet.keys and fleet.keys != self._fleet.keys:
            for key in fleet.replicas.keys() - self._fleet.replicas.keys():
                _log.info(line("replica_joined", replica=fleet.replicas[key].id))
            for key in self._fleet.replicas.keys() - fleet.replicas.keys():
                leaves = self._fleet.replicas[key]
                requests = self.in_flight.by_replica.get(key, 0)
                _log.info(line("replica_left", replica=leaves.id, requests=requests))
                self.prefixes.left(key)
                if requests:
                    self.leaving[key] = leaves
                else:
                    self._forget(key)
            for key in self.leaving.keys() & fleet.replicas.keys():
                del self.leaving[key]
        for key in self._held & fleet.replicas.keys():
            self._say_condition(fleet.replicas[key], self._fleet.replicas[key].breaker)
        self._fleet = fleet
        self._held = {key for key in self._held if _is_held(fleet, key)}

    def noted_s(self) -> float:
        """Now; what is in flight at this moment is noted for snapshots to come."""
        now_s = self.now_s()
        self.in_flight.note(now_s)
        return now_s

    def need(self, ask: Ask) -> Need:
        """What choosing needs to know of a request."""
        fleet, model = self._fleet, None
        if fleet.mixed and ask.model is not None:  # Clients make up names: all of them are one.
            model = fleet.alike.get(ask.model, "")
        tokens = self.prompt_tokens(ask)
        return Need(model, class_of(tokens), ask.keys, tokens, ask.shares)

    def prompt_tokens(self, ask: Ask) -> int:
        """About how many tokens the prompt has."""
        return self.tokens.estimate(ask.model, ask.prompt_bytes)

    def choose(
        self,
        ask: Ask,
        tried: Collection[str] = (),
        request_id: bytes = b"",
        waited_s: float = 0.0,
        *,
        need: Need | None = None,
        may_wait: bool = False,
    ) -> Decision:
        """Choose for this request, not among the keys in `tried`; remember it, and count it.

        `need`: what `need` says of it now, if that is known. `may_wait`: that nobody has room is no
        decision yet; `decided` is told of it.
        """
        if need is None:
            need = self.need(ask)
        now_s, rules = self.now_s(), self._rules
        decision = self._decide(need, tried, self._rng, now_s)
        replica = decision.replica
        if replica is None and may_wait and decision.why is Why.FULL:
            return decision
        self._settled(decision, need.prompt_tokens, request_id, waited_s, second_try=bool(tried))
        if replica is None:
            return decision
        key = replica.key
        if need.keys and rules.affinity.enabled:
            if rules.choose.way is _LEAST_WAIT:
                self.prefixes.keep(need.keys, replica)
            else:
                self.memory.keep(need.keys, decision.known, key, decision.move, now_s)
        if rules.choose.way is _ROUND_ROBIN:
            self.in_flight.last_seed = seed_of(key)
        if decision.score is not None:
            tally = self.tallies.get(key) or self.tally(replica)
            tally.score.observe(decision.score)
        return decision

    def decided(self, decision: Decision, ask: Ask, request_id: bytes, waited_s: float) -> None:
        """It has waited in vain: count it, and remember it for people."""
        tokens = self.prompt_tokens(ask)
        self._settled(decision, tokens, request_id, waited_s, second_try=False)

    def _settled(
        self,
        decision: Decision,
        prompt_tokens: int,
        request_id: bytes,
        waited_s: float,
        *,
        second_try: bool,
    ) -> None:
        """It is settled what comes of a request. Among many candidates, only the latest decisions
        keep their numbers."""
        self.decisions[decision.why] += 1
        replica = decision.replica
        count = 0 if replica is None else self.in_flight.by_replica.get(replica.key, 0)
        settled = Decided(
            time.time(), decision, count, second_try, request_id, prompt_tokens, waited_s
        )
        self.recent.append(settled)
        if settled.numbers > _FEW:
            self._among_many.append(settled)
            self._numbers += settled.numbers
            while self._numbers > _MOST_NUMBERS:
                oldest = self._among_many.popleft()
                self._numbers -= oldest.numbers
                oldest.forget_numbers()

    def explain(self, ask: Ask) -> Decision:
        """What would be chosen for this request now. Nothing is remembered or counted."""
        dice = Random()
        dice.setstate(self._rng.getstate())
        return self._decide(self.need(ask), (), dice, self.now_s())

    def _decide(self, need: Need, tried: Collection[str], rng: Random, now_s: float) -> Decision:
        self.in_flight.begin_due(now_s)
        if tried:
            candidates = line_up(self._fleet, need.model, need.size, now_s, self._rules, tried)
            odds = Odds(candidates, self.in_flight)
        else:
            odds = self._odds_at(need.model, need.size, now_s)
        return choose(odds, need, now_s, rng, self._rules, self.memory, self.prefixes)

    def keys_known(self, need: Need) -> int:
        """How many of a request's keys some replica is known to know."""
        if self._rules.choose.way is _LEAST_WAIT:
            found = self.prefixes.found(need.keys)
            return found[-1].level + 1 if found else 0
        known = self.memory.find(need.keys)
        return 0 if known is None else known.level + 1

    def hot_keys(self) -> list[tuple[int, Placed]]:
        """Keys that come so often that several replicas share them, the hottest first.

        By `least_wait` no key is: who else knows a beginning is weighed at each request.
        """
        if self._rules.choose.way is _LEAST_WAIT:
            return []
        return self.memory.hot(self._rules.hot_per_s, self.now_s())

    @property
    def keys_remembered(self) -> int:
        """How many cache keys have replicas that are remembered."""
        return len(self.memory) + len(self.prefixes)

    def odds(self, model: str | None = None, size: RequestClass = RequestClass.MIXED) -> Odds:
        """The candidates for such requests, as they stand now."""
        return self._odds_at(model, size, self.now_s())

    def _odds_at(self, model: str | None, size: RequestClass, now_s: float) -> Odds:
        known = self._odds.get((model, size))
        if known is not None:
            if known.line_up.holds(self._fleet, now_s):
                known.catch_up()
                return known
            then = follow(known.line_up, self._fleet, size, now_s, self._rules)
            if then is not None:
                known.follow(*then)
                self._judged[size] = known.line_up
                return known
        if known is None and len(self._odds) >= _MOST_KINDS:  # Models come and go.
            del self._odds[next(iter(self._odds))]
        before = self._judged.get(size)
        candidates = line_up(self._fleet, model, size, now_s, self._rules, before=before)
        self._judged[size] = candidates
        known = self._odds[model, size] = Odds(candidates, self.in_flight)
        return known

    def breathing(self, model: str | None) -> int:
        """How many replicas have headroom for requests of this model; None: of any."""
        return max(self.breathing_of(model, size) for size in RequestClass)

    def breathing_of(self, model: str | None, size: RequestClass) -> int:
        """The same, for requests of one size."""
        return self.odds(model, size).breathing(self._rules.choose.full_beyond_s)

    def dispatch(
        self,
        replica: Replica,
        prompt_tokens: int = 0,
        uncached: int = 0,
        unseen_ttft_s: float | None = None,
    ) -> tuple[Hold, Tally]:
        """A request goes to `replica` now: count it there until the hold is released.

        `uncached`: of its prompt's tokens, those that are to be computed; 0: nobody expects any.
        `unseen_ttft_s`: in how many seconds its first token is expected, if nobody will see it.
        """
        key = replica.key
        tally = self.tallies.get(key) or self.tally(replica)
        tally.dispatched += 1
        tally.prompt_tokens += prompt_tokens
        if 0 < uncached < prompt_tokens:
            tally.cached_tokens += prompt_tokens - uncached
        share = share_of(replica.snapshot, prompt_tokens)
        hold = self.in_flight.hold(key, share, uncached)
        if unseen_ttft_s is not None:
            self.in_flight.begins(hold, self.now_s() + unseen_ttft_s)
        return hold, tally

    # What comes of it

    def failed(
        self, replica: Replica, failure: str, problem: str, request_id: str | None = None
    ) -> None:
        """`replica` gave no answer. `request_id`: to which request, for the log."""
        self.tally(replica).failures[failure] += 1
        if replica.key in self._fleet.replicas and replica.key not in self._failing:
            self._failing.add(replica.key)
            _log.warning(
                line(
                    "replica_failing",
                    replica=replica.id,
                    how=failure,
                    why=problem,
                    request_id=request_id,
                )
            )
        self._hold_against(replica.key, Event.FAILED, problem)

    def broke_off(self, replica: Replica, problem: str) -> None:
        """`replica` ended an answer in its midst."""
        self._hold_against(replica.key, Event.FAILED, problem)

    def full(self, replica: Replica) -> None:
        """`replica` has no room, as it says itself."""
        self._hold_against(replica.key, Event.FULL)

    def answered(self, replica: Replica, status: int) -> None:
        """`replica` gave a whole answer."""
        key = replica.key
        known = self._fleet.replicas.get(key)
        if key in self._failing and not (known and out(known.breaker, self.now_s())):
            self._failing.remove(key)
            _log.info(line("replica_answers", replica=replica.id))
        if known is None or status == _NO_ROOM:  # Then it has been told of as full.
            return
        if known.breaker is not CLOSED or own_failure(status):
            event = Event.ERRED if own_failure(status) else Event.ANSWERED
            self._hold_against(key, event, f"status {status}")

    def probes_due(self) -> Mapping[str, str]:
        """Ejected replicas that are to be asked now whether they are back: their URLs by key."""
        now_s = self.now_s()
        replicas = self._fleet.replicas.items()
        return {key: r.url for key, r in replicas if probe_due(r.breaker, now_s)}

    def probed(self, key: str, answered: bool) -> None:  # noqa: FBT001
        """A replica has been asked whether it is back."""
        self._hold_against(key, Event.PROBE_ANSWERED if answered else Event.PROBE_FAILED)

    def _hold_against(self, key: str, event: Event, why: str = "") -> None:
        replica = self._fleet.replicas.get(key)
        if replica is None:
            return
        before = replica.breaker
        now = after(before, event, self.now_s(), self._rules.breaker)
        if now is before:
            return
        self._fleet = with_breaker(self._fleet, key, now)
        self._held.add(key)
        self._say_condition(self._fleet.replicas[key], before, why)

    def _say_condition(self, replica: Replica, before: Breaker, why: str = "") -> None:
        now = replica.breaker
        if now.condition is before.condition:
            return
        if now.condition is Condition.EJECTED:
            self.tally(replica).ejections += 1
            failures = now.failures
            _log.warning(line("replica_ejected", replica=replica.id, failures=failures, why=why))
        elif before.condition is Condition.EJECTED:
            _log.info(line("replica_returns", replica=replica.id))

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


def _is_held(fleet: Fleet, key: str) -> bool:
    replica = fleet.replicas.get(key)
    return replica is not None and replica.breaker is not CLOSED
