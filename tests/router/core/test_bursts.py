"""Bursts between two snapshots spread evenly."""

from collections import Counter
from random import Random
from statistics import fmean

import pytest

from mission import AS_ASKED
from selecting import KEYED, choose, key_of, names, odds_of
from snapshots import document, snapshot
from ullage_router.core.affinity import Memory
from ullage_router.core.fleet import Fleet, fleet_of, hear
from ullage_router.core.inflight import Hold, InFlight, share_of

BURST, REPLICAS, WITHIN = 64, 8, 3


def heard(fleet: Fleet, url: str, score: float, seqs: int, now_s: float, load: InFlight) -> Fleet:
    """One replica's own sidecar says so."""
    load.note(now_s)
    said = document(snapshot(url, score, seq=1 + int(now_s * 10), max_num_seqs=seqs))
    return hear(fleet, f"{url}/sidecar", said, now_s, load.taken_at)[0]


def burst(
    seed: int, *, keyed: bool, seqs: int, heard_amid: int = 0, replicas: int = REPLICAS
) -> int:
    """A burst over equal replicas, eight for each: how many more one gets than another.

    `heard_amid`: of so many a snapshot comes when half is sent, which shows what they have.
    """
    size = replicas * BURST // REPLICAS
    rng, load, memory, rules = Random(seed), InFlight(), Memory(size), AS_ASKED
    fleet = fleet_of([])
    for url in names(replicas):
        fleet = heard(fleet, url, 0.9, seqs, 0.0, load)
    odds = odds_of(fleet, rules, load)
    counts = Counter(dict.fromkeys(fleet.replicas, 0))
    for sent in range(size):
        if heard_amid and sent == size // 2:
            for url in rng.sample(names(replicas), heard_amid):
                fleet = heard(fleet, url, 0.9 - 0.3 * counts[url] / seqs, seqs, 0.1, load)
            odds = odds_of(fleet, rules, load, 0.1)
        keys = key_of(rng, keyed=keyed)
        odds.catch_up()
        decision = choose(odds, keys, 0.1, rng, rules, memory)
        replica = decision.replica
        assert replica is not None
        load.hold(replica.key, share_of(replica.snapshot, 100))
        if keys:
            memory.keep(keys, decision.known, replica.key, decision.move, 0.1)
        counts[replica.key] += 1
    return max(counts.values()) - min(counts.values())


@KEYED
def test_a_burst_over_equal_replicas_spreads_evenly(keyed: bool) -> None:
    """Report 7: a burst of 64 over 8 between two snapshots, in at least 998 of 1,000."""
    spreads = [burst(seed, keyed=keyed, seqs=256) for seed in range(100)]
    assert max(spreads) <= WITHIN


@pytest.mark.slow
@KEYED
@pytest.mark.parametrize("replicas", [32, 200])
def test_a_burst_over_many_spreads_as_evenly(keyed: bool, replicas: int) -> None:
    """Also where a key is hashed against a part of the ring alone."""
    spreads = [burst(seed, keyed=keyed, seqs=256, replicas=replicas) for seed in range(3)]
    assert fmean(spreads) <= WITHIN


@KEYED
@pytest.mark.parametrize("seqs", [16, 256])
def test_of_a_thousand_bursts_nearly_all_spread_evenly(keyed: bool, seqs: int) -> None:
    spreads = [burst(seed, keyed=keyed, seqs=seqs) for seed in range(1_000)]
    assert sum(spread <= WITHIN for spread in spreads) >= 998


@KEYED
@pytest.mark.parametrize("heard_amid", [1, 4])
def test_a_burst_spreads_evenly_though_some_are_heard_amid_it(keyed: bool, heard_amid: int) -> None:
    """Report 7: a snapshot overwrites what was just dispatched."""
    spreads = [burst(seed, keyed=keyed, seqs=256, heard_amid=heard_amid) for seed in range(50)]
    assert max(spreads) <= WITHIN


def steady(new: str, *, joins: bool, seed: int) -> int:
    """A stream of requests, 16 in flight, on 8 replicas that are heard in turns: how many of 50
    the one gets that has just joined, or was just heard."""
    rng, load, rules, urls = Random(seed), InFlight(), AS_ASKED, names(REPLICAS)
    fleet = fleet_of([])
    for url in urls:
        if not (joins and url == new):
            fleet = heard(fleet, url, 0.8, 256, 0.0, load)
    held: list[Hold] = []
    gets = 0
    for sent in range(450):
        now_s = 1.0 + sent / 200  # 200 a second; a replica is heard every 0.5 s.
        if sent == 400:
            fleet = heard(fleet, new, 0.8, 256, now_s, load)
        elif sent < 400 and sent % 12 == 0:
            url = urls[sent // 12 % REPLICAS]
            if not (joins and url == new):
                fleet = heard(fleet, url, 0.8, 256, now_s, load)
        decision = choose(odds_of(fleet, rules, load, now_s), (), now_s, rng, rules, Memory(1))
        assert decision.replica is not None
        held.append(load.hold(decision.replica.key, share_of(decision.replica.snapshot, 100)))
        if len(held) > 16:
            held.pop(0).release()
        gets += sent >= 400 and decision.replica.key == new
    return gets


@pytest.mark.parametrize("joins", [True, False], ids=["joined", "heard"])
def test_a_replica_that_has_just_joined_or_was_just_heard_is_not_flooded(joins: bool) -> None:
    gets = [steady(names(REPLICAS)[0], joins=joins, seed=seed) for seed in range(5)]
    assert 1 <= min(gets) <= max(gets) <= 2 * 50 / REPLICAS
