"""Speeds are learned from steps: against a simulated engine whose speed is known.

The tolerances are those of the module's promises. What is told moves by steps of 5 %.
"""

from random import Random

import pytest

from simulated_engine import Request, SimulatedEngine
from ullage_sidecar.core.engine import Engine
from ullage_sidecar.core.fold import fold
from ullage_sidecar.core.learned import SAMPLES, Learned
from ullage_sidecar.core.settings import Settings
from ullage_sidecar.core.signals import Signals
from ullage_sidecar.core.speeds import DECODE_S

START_S = 1000.0
STEP_S, PREFILL = 0.020, 10_000.0
MIXED = {"per_s": 4.0, "prompt": (20, 4000), "answer": (50, 300)}
LONG = {"per_s": 2.0, "prompt": (2000, 8000), "answer": (50, 300)}
MIDDLING = {"per_s": 6.0, "prompt": (100, 600), "answer": (20, 200)}
SELDOM = {"per_s": 0.3, "prompt": (200, 6000), "answer": (50, 100)}
SHORT = {"per_s": 8.0, "prompt": (20, 60), "answer": (50, 300)}
FLOOD = {"per_s": 10.0, "prompt": (2000, 8000), "answer": (50, 300)}


def requests(per_s, prompt, answer, count=120, from_s=START_S, cached=0.0):
    """Arrivals at random, of sizes within bounds; of each prompt a share is in the cache."""
    rng, at_s, asked = Random(5), from_s, []
    for _ in range(count):
        at_s += rng.expovariate(per_s)
        tokens = rng.randint(*prompt)
        asked.append(Request(at_s, tokens, rng.randint(*answer), cached=int(tokens * cached)))
    return asked


def watched(simulated, asked, engine=None, lose=0.0, until_s=float("inf")):
    """A sidecar's engine after all that the simulated one told, some of it lost."""
    rng = Random(7)
    if engine is None:
        engine = Engine("vllm", 0, START_S - 100.0, Signals.of(Settings()))
        for hello in simulated.hellos():
            engine = fold(engine, hello, START_S)
    for reading in simulated.run(asked, rng, until_s):
        if rng.random() >= lose:
            engine = fold(engine, reading, simulated.now_s)
    return engine


def learned(*args, **changes):
    return watched(*args, **changes).speeds.learned


@pytest.mark.parametrize("load", [MIXED, LONG, MIDDLING, SELDOM, FLOOD])
def test_a_mixed_load_biases_neither_decode_nor_prefill(load):
    told = learned(SimulatedEngine(jitter=0.2), requests(**load))
    assert told.step_s == pytest.approx(STEP_S, rel=0.06)
    assert told.prefill_tokens_per_s == pytest.approx(PREFILL, rel=0.12)


@pytest.mark.parametrize("load", [MIXED, LONG, MIDDLING, SELDOM, FLOOD])
@pytest.mark.parametrize("senders", [2, 4])
def test_nor_where_several_api_processes_each_know_a_part(load, senders):
    told = learned(SimulatedEngine(senders=senders, jitter=0.2), requests(**load))
    assert told.step_s == pytest.approx(STEP_S, rel=0.06)
    assert told.prefill_tokens_per_s == pytest.approx(PREFILL, rel=0.25)


@pytest.mark.parametrize(("lose", "off"), [(0.02, 0.06), (0.3, 0.1)])
def test_lost_steps_bias_nothing(lose, off):
    told = learned(SimulatedEngine(jitter=0.2), requests(**MIXED), lose=lose)
    assert told.step_s == pytest.approx(STEP_S, rel=off)
    assert told.prefill_tokens_per_s == pytest.approx(PREFILL, rel=0.12)


def test_a_server_of_half_the_speed_reads_half():
    fast = learned(SimulatedEngine(sequence_s=0.0002), requests(**MIXED))
    slow_engine = SimulatedEngine(base_s=0.04, prompt_token_s=0.0002, sequence_s=0.0004)
    slow = learned(slow_engine, requests(**{**MIXED, "per_s": 2.0}))
    assert slow.step_s / fast.step_s == pytest.approx(2.0, rel=0.1)
    assert fast.prefill_tokens_per_s / slow.prefill_tokens_per_s == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("step_s", [STEP_S, 2 * STEP_S])
@pytest.mark.parametrize("batch", [1, 8])
def test_decode_tokens_per_s_is_that_of_the_batch(batch, step_s):
    together = [Request(START_S, 10, 200) for _ in range(batch)]
    assert learned(SimulatedEngine(step_s), together).decode_tokens_per_s == batch / step_s


def test_the_price_of_a_prompt_is_what_it_takes():
    told = learned(SimulatedEngine(jitter=0.1), requests(**MIXED))
    alone = SimulatedEngine()
    list(alone.run([Request(START_S, 6000, 100)], Random(1)))
    price_s = 6000 / told.prefill_tokens_per_s + 100 * told.step_s
    assert price_s == pytest.approx(alone.now_s - START_S, rel=0.1)


def test_what_is_found_in_the_cache_costs_nothing():
    told = learned(SimulatedEngine(), requests(**LONG, cached=0.7))
    assert told.prefill_tokens_per_s == pytest.approx(PREFILL, rel=0.05)


def test_idleness_changes_nothing():
    engine = watched(SimulatedEngine(), requests(**MIXED))
    told = engine.speeds.learned
    later = SimulatedEngine(now_s=START_S + 9000.0)
    hour_s = 3600.0
    lone = [Request(START_S + 9000.0 + n * hour_s, 3000, 40) for n in range(40)]
    later.steps = 10**6
    for number, reading in enumerate(later.run(lone, Random(1))):
        of_us = reading._replace(seq=10**6 + number)
        engine = fold(engine, of_us, of_us.at_s)
    assert engine.speeds.learned.step_s == told.step_s == STEP_S
    assert engine.speeds.learned.prefill_tokens_per_s == told.prefill_tokens_per_s


def test_a_lone_prompt_after_idleness_began_nobody_knows_when():
    lone = [Request(START_S + n * 60.0, 1500, 100) for n in range(40)]
    told = learned(SimulatedEngine(), lone)
    assert told.step_s == STEP_S
    assert told.prefill_tokens_per_s is None


def test_prompts_too_short_to_be_told_from_noise_have_no_speed():
    fast_prefill = SimulatedEngine(prompt_token_s=0.00002)
    assert learned(fast_prefill, requests(**SHORT)).prefill_tokens_per_s is None


def test_an_engine_that_is_never_without_prompts_has_no_speed():
    told = learned(SimulatedEngine(), requests(per_s=3.0, prompt=(3000, 6000), answer=(5, 30)))
    assert told == Learned(steps_s=told.steps_s, decodes=told.decodes)
    assert len(told.steps_s) < 3


@pytest.mark.parametrize("senders", [1, 2])
def test_a_change_is_followed_after_half_the_samples(senders):
    simulated = SimulatedEngine(senders=senders)
    engine = watched(simulated, requests(**MIXED), until_s=START_S + 20.0)
    assert engine.speeds.learned.step_s == STEP_S
    simulated.base_s *= 3.0
    busy_s = (SAMPLES // 2 + 3) * (DECODE_S + 3 * STEP_S)
    from_s = simulated.now_s + 1.0
    steady = [Request(from_s, 10, 1000) for _ in range(4)]
    for reading in simulated.run(steady, Random(1), from_s + busy_s):
        engine = fold(engine, reading, simulated.now_s)
    assert engine.speeds.learned.step_s == 3 * STEP_S
