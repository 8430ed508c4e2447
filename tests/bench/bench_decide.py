"""What a decision costs, by the number of replicas and by what is known of the request's keys.

    .venv/bin/python tests/bench/bench_decide.py [--way least_wait] [--seconds 0.4] [--rounds 3]

Everything is on: scores by size, trends, a returning replica, affinity, hot keys, requests in
flight. In µs of CPU time, so that a busy machine does not count, of decisions that are timed one by
one (the clock's own cost, some 0.5 µs, is in them), while others end and begin:

    kept       the candidates are known, and caught up with what was sent since the last decision
    one heard  one replica's snapshot has come: it is judged anew, and the line-up follows
    all heard  all replicas' snapshots have come
    again      a second try: everything is judged from nothing, without the replica that failed

In rounds, each of which measures everything once: a median is the median of the rounds', a p99 the
least of theirs, since a shared machine adds to it and takes nothing away. What it adds is to be
seen on the yardstick: plain arithmetic between the same two looks at the clock. A p99 far from its
p50 there is the machine's.

Then what the memory of keys takes at a million of them, and how far a key's measured rate is off.
With `--strict` the exit status is 1 where `kept` misses its target.
"""

import argparse
import sys
import time
import tracemalloc
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import sqrt
from random import Random
from statistics import fmean, median, pstdev
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from ullage_router.core.affinity import RATE_S, Memory, Move
from ullage_router.core.breaker import BreakerPolicy, Event, after
from ullage_router.core.decide import choose
from ullage_router.core.decision import Decision, Need
from ullage_router.core.fleet import Fleet, Replica, fleet_of, hear, with_breaker
from ullage_router.core.follow import follow
from ullage_router.core.inflight import Hold, InFlight, share_of
from ullage_router.core.lineup import line_up, seed_of
from ullage_router.core.odds import Odds
from ullage_router.core.policy import Policy, Way
from ullage_router.core.prefixes import Prefixes
from ullage_router.core.rules import Rules
from ullage_shared.snapshot import SCHEMA, Document, RequestClass, Scores, Snapshot, State

TARGETS_US: Final = {8: 20.0, 32: 20.0, 256: 100.0, 1_000: 100.0}
"""At 32 and at 1,000 they are asked for; what is smaller must not take longer."""
RULES: Final = Rules()
SIZE: Final = RequestClass.SHORT
IN_FLIGHT: Final = 4
"""Per replica."""
PROMPT_TOKENS: Final = 200
TALKS: Final = 10_000
TURN: Final = 6
"""Keys of a conversation that goes on: the system prompt, and a few turns."""
HOT: Final = 1
HOMES: Final = 3
"""As many does the hot key need."""
MILLION: Final = 1_000_000
LEAST_CALLS: Final = 100
YARDSTICK: Final = range(500)

Keys = tuple[int, ...]


def said(index: int, score: float, seq: int) -> Snapshot:
    return Snapshot(
        id=f"node-{index}/engine",
        url=f"http://10.0.{index >> 8}.{index & 255}:8000",
        dp_rank=None,
        models=("tiny",),
        state=State.SERVING,
        reason="",
        capacity_score=score,
        free_block_ratio=score,
        waiting_depth=0.0,
        running_ratio=1.0 - score,
        free_blocks=int(10_000 * score),
        total_blocks=10_000,
        block_size=16,
        running=100,
        max_num_seqs=256,
        waiting=0,
        exhaustion_s=None,
        boot_id="boot",
        seq=seq,
        age_s=0.0,
        step_s=0.02,
        prefill_tokens_per_s=9_000.0,
        ts=0.0,
        scores=Scores(short=score * 0.95, long=score * 0.9),
    )


def fleet_with(count: int, rng: Random) -> Fleet:
    """A third of it falls, and one of it returns from an ejection."""
    scores = [rng.uniform(0.4, 0.9) for _ in range(count)]
    fleet = fleet_of([])
    for seq in range(3):
        heard = tuple(
            said(i, score - (0.02 * seq if i % 3 == 0 else 0.0), seq)
            for i, score in enumerate(scores)
        )
        document = Document(schema=SCHEMA, node="aggregator", replicas=heard)
        fleet, _ = hear(fleet, "http://aggregator:9400", document, 0.5 * seq)
    policy = BreakerPolicy()
    key = next(iter(fleet.replicas))
    for event in [*[Event.FAILED] * policy.eject_after, Event.PROBE_ANSWERED]:
        breaker = after(fleet.replicas[key].breaker, event, 1.0, policy)
        fleet = with_breaker(fleet, key, breaker)
    return fleet


def heard_again(fleet: Fleet, keys: list[str]) -> Fleet:
    """The fleet once these are heard: what becomes of it in the table of replicas, no more."""
    replicas = dict(fleet.replicas)
    for key in keys:
        replicas[key] = again(replicas[key])
    return replace(fleet, replicas=MappingProxyType(replicas))


def again(replica: Replica) -> Replica:
    assert replica.snapshot is not None
    newer = msgspec.structs.replace(replica.snapshot, seq=replica.snapshot.seq + 1)
    return replace(replica, snapshot=newer)


class Router:
    """What a router's process keeps for choosing, with some requests in flight."""

    def __init__(self, count: int, way: Way) -> None:
        self.rng = Random(1)
        self.rules = RULES._replace(choose=Policy(way=way))
        self.prefixes = Prefixes(10 * TALKS)
        self.now_s = 1.5
        self.fleet = fleet_with(count, self.rng)
        self.replicas = list(self.fleet.replicas)
        self.load = InFlight()
        self.memory = Memory(10 * TALKS)
        self.held: deque[Hold] = deque()
        for talk in range(TALKS):
            home = self.rng.choice(self.replicas)
            self.memory.keep(chain_of(talk)[:-1], None, home, Move.STAY, self.now_s)
            self.prefixes.keep(chain_of(talk)[:-1], self.fleet.replicas[home])
        self.memory.keep((HOT,), None, self.replicas[0], Move.STAY, self.now_s)
        for _ in range(IN_FLIGHT * count):
            self.hold(self.rng.choice(self.replicas))
        self.odds = self.anew()

    def hold(self, key: str) -> None:
        snapshot = self.fleet.replicas[key].snapshot
        hold = self.load.hold(key, share_of(snapshot, PROMPT_TOKENS), PROMPT_TOKENS)
        self.held.append(hold)

    def anew(self, odds: Odds | None = None, tried: tuple[str, ...] = ()) -> Odds:
        before = odds.line_up if odds is not None else None
        lined_up = line_up(self.fleet, None, SIZE, self.now_s, self.rules, tried, before)
        return Odds(lined_up, self.load)

    def decide(self, odds: Odds, keys: Keys) -> Decision:
        shares = tuple([(n + 1) / len(keys) for n in range(len(keys))])
        need = Need(None, SIZE, keys, PROMPT_TOKENS, shares)
        dice, memory = self.rng, self.memory
        return choose(odds, need, self.now_s, dice, self.rules, memory, self.prefixes)

    def kept(self, keys: Keys) -> Decision:
        self.odds.catch_up()
        return self.decide(self.odds, keys)

    def judged(self, keys: Keys) -> Decision:
        then = follow(self.odds.line_up, self.fleet, SIZE, self.now_s, self.rules)
        if then is None:
            self.odds = self.anew(self.odds)
        else:
            self.odds.follow(*then)
        return self.decide(self.odds, keys)

    def second_try(self, keys: Keys) -> Decision:
        return self.decide(self.anew(None, (self.replicas[0],)), keys)

    def send(self, decision: Decision, keys: Keys) -> None:
        """What comes of it, and the oldest request ends."""
        replica = decision.replica
        assert replica is not None
        if keys:
            self.memory.keep(keys, decision.known, replica.key, decision.move, self.now_s)
            self.prefixes.keep(keys, replica)
        if decision.known is not None and keys[0] == HOT:
            decision.known.placed.count = HOMES * RULES.hot_per_s * RATE_S
        self.load.last_seed = seed_of(replica.key)
        self.held.popleft().release()
        self.hold(replica.key)


def chain_of(talk: int) -> Keys:
    return (1_000 + talk % 100, *(10**12 + 100 * talk + n for n in range(TURN - 1)))


def asked(kind: str, rng: Random) -> Keys:
    """The keys of a request."""
    match kind:
        case "no key":
            return ()
        case "known key":
            return chain_of(rng.randrange(TALKS))
        case "new key":
            return (rng.getrandbits(64), rng.getrandbits(64))
        case _:
            return (HOT, rng.getrandbits(64))


KINDS: Final = ("no key", "known key", "new key", "hot key")


def timed_us(
    router: Router,
    kind: str,
    decide: Callable[[Keys], Decision],
    seconds: float,
    heard: int = 0,
) -> list[float]:
    """What each decision took, in order of size; `heard` replicas are heard before each."""
    took_ns: list[int] = []
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s or len(took_ns) < LEAST_CALLS:
        keys = asked(kind, router.rng)
        if heard:
            router.fleet = heard_again(router.fleet, router.rng.sample(router.replicas, heard))
        began_ns = time.thread_time_ns()
        decision = decide(keys)
        took_ns.append(time.thread_time_ns() - began_ns)
        router.send(decision, keys)
    return sorted(ns / 1e3 for ns in took_ns)


def percentile(ordered: list[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


class Took(NamedTuple):
    """One round's figures, µs."""

    p50: float
    p99: float


def took(ordered_us: list[float]) -> Took:
    return Took(percentile(ordered_us, 0.5), percentile(ordered_us, 0.99))


def over(rounds: list[Took]) -> Took:
    return Took(median(each.p50 for each in rounds), min(each.p99 for each in rounds))


def yardstick(router: Router, seconds: float) -> list[float]:
    """What plain arithmetic took, while decisions are made between."""

    def arithmetic(_: Keys) -> Decision:
        sum(YARDSTICK)
        return decision

    decision = router.kept(())
    return timed_us(router, "no key", arithmetic, seconds)


def decisions(seconds: float, rounds: int, way: Way) -> bool:
    """Print the table of decisions. Returns whether every target was met."""
    routers = {count: Router(count, way) for count in TARGETS_US}
    kept, one, every, second = (defaultdict[tuple[int, str], list[Took]](list) for _ in range(4))
    plain = []
    for _ in range(rounds):
        for count, router in routers.items():
            plain.append(took(yardstick(router, seconds / 2)))
            for kind in KINDS:
                at = count, kind
                timed_us(router, kind, router.kept, seconds / 10)
                kept[at].append(took(timed_us(router, kind, router.kept, seconds)))
                one[at].append(took(timed_us(router, kind, router.judged, seconds, heard=1)))
                all_heard = timed_us(router, kind, router.judged, seconds / 4, heard=count)
                every[at].append(took(all_heard))
                second[at].append(took(timed_us(router, kind, router.second_try, seconds / 4)))
    print(
        f"{'replicas':<10}{'request':<11}{'kept p50':>9}{'p99':>8}{'target':>8}"
        f"{'one heard':>11}{'p99':>8}{'all heard':>11}{'again':>9}"
    )
    met = True
    for at in kept:
        count, kind = at
        target_us, of_one = TARGETS_US[count], over(one[at])
        p50, p99 = over(kept[at])
        mark = "!" if p50 > target_us else "?" if p99 > target_us else " "
        met = met and p99 <= target_us
        print(
            f"{count:<10}{kind:<11}{p50:>9.1f}{p99:>8.1f}{target_us:>7.0f}{mark}"
            f"{of_one.p50:>11.1f}{of_one.p99:>8.1f}"
            f"{over(every[at]).p50:>11.1f}{over(second[at]).p50:>9.1f}"
        )
    print(f"{'yardstick':<21}{over(plain).p50:>9.1f}{over(plain).p99:>8.1f}")
    return met


def memory_of_keys() -> None:
    """Print what a million keys take, and how long it takes to find and keep one among them."""
    rng, memory = Random(3), Memory(MILLION)
    homes = [f"http://10.0.0.{i}:8000" for i in range(32)]
    tracemalloc.start()
    for _ in range(MILLION):
        memory.keep((rng.getrandbits(64),), None, rng.choice(homes), Move.STAY, 0.0)
    held_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    print(f"\nkeys remembered: {len(memory):,}, {held_bytes / len(memory):.0f} bytes each")
    known = [rng.getrandbits(64) for _ in range(50_000)]
    calls: Mapping[str, list[Keys]] = {
        "new (the oldest is forgotten)": [(key,) for key in known],
        "known": [(key,) for key in known],
        "new, a chain of 6": [tuple(rng.getrandbits(64) for _ in range(6)) for _ in known],
    }
    for name, chains in calls.items():
        began_ns = time.thread_time_ns()
        for keys in chains:
            memory.keep(keys, memory.find(keys), homes[0], Move.STAY, 1.0)
        took_us = (time.thread_time_ns() - began_ns) / 1e3 / len(chains)
        print(f"find and keep, {name:<32}{took_us:>6.2f} µs")


def rates() -> None:
    """Print how far the measured rate of a key is off, beside what the formula says."""
    rng = Random(4)
    print("\nrate of a key, Poisson: mean and spread of what is measured, and √(1 / (2 r RATE_S))")
    for rate_per_s in (5.0, 50.0, 200.0):
        seen = []
        for _ in range(round(8_000 / rate_per_s)):
            memory, now_s = Memory(10), 0.0
            while now_s < 6 * RATE_S:
                memory.keep((HOT,), memory.find((HOT,)), "a", Move.STAY, now_s)
                now_s += rng.expovariate(rate_per_s)
            known = memory.find((HOT,))
            assert known is not None
            seen.append(known.placed.rate_per_s(6 * RATE_S) / rate_per_s)
        stated = sqrt(1.0 / (2.0 * rate_per_s * RATE_S))
        print(
            f"{rate_per_s:>6.0f}/s  mean {fmean(seen):.3f}  spread ±{pstdev(seen):.3f}"
            f"  stated ±{stated:.3f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    usual = str(RULES.choose.way)
    ways = [*map(str, Way)]
    parser.add_argument("--way", choices=ways, default=usual, help=f"default {usual}")
    parser.add_argument("--seconds", type=float, default=0.4, help="per figure; default 0.4")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    args = parser.parse_args()
    version = sys.version.split()[0]
    print(f"µs of CPU time per decision; over its target: ! p50, ? p99; Python {version}")
    met = decisions(args.seconds, args.rounds, Way(args.way))
    memory_of_keys()
    rates()
    return 0 if met or not args.strict else 1


if __name__ == "__main__":
    sys.exit(main())
