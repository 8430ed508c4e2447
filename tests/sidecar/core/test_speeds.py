"""Speeds are learned from steps: against a simulated engine whose speed is known, and at the edges.

The tolerances are those of the module's promises. What is told moves by steps of 5 %.
"""

from dataclasses import replace
from random import Random

import pytest

from simulated_engine import Request, SimulatedEngine
from ullage_sidecar.core.engine import Engine, fold
from ullage_sidecar.core.learned import SAMPLES, Learned
from ullage_sidecar.core.reading import Hello, Reading
from ullage_sidecar.core.settings import Settings
from ullage_sidecar.core.signals import Signals
from ullage_sidecar.core.speeds import DECODE_S, PREFILL_TOKENS

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
        of_us = replace(reading, seq=10**6 + number)
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


HELLO = Hello(1, "vllm", "boot-1", 1, started_s=1.0, total_blocks=1000)


class Told:
    """An engine told of one step after the other: a decode step of 4 sequences, but for ..."""

    def __init__(self):
        self.engine = fold(Engine("vllm", 0, 900.0, Signals.of(Settings())), HELLO, START_S)
        self.last = Reading(1, 1, START_S, 4, 0, 0.5, 0, 0, 0, 0, 0)
        self.engine = fold(self.engine, self.last, START_S)

    def step(self, took_s=0.1, times=1, prompts=0, made=4, hits=0, **changes):
        for _ in range(times):
            last = self.last
            self.last = replace(
                last,
                seq=last.seq + 1,
                at_s=last.at_s + took_s,
                prompt_tokens=last.prompt_tokens + prompts,
                generated_tokens=last.generated_tokens + made,
                prefix_hits=last.prefix_hits + hits,
                running=changes.get("running", 4),
                waiting=changes.get("waiting", 0),
                preemptions=last.preemptions + changes.get("preempted", 0),
            )
            self.engine = fold(self.engine, self.last, self.last.at_s)
        return self

    @property
    def learned(self):
        return self.engine.speeds.learned


def speeds(told):
    return told.step_s, told.decode_tokens_per_s, told.prefill_tokens_per_s


def test_nothing_is_known_before_three_samples():
    told = Told()
    assert speeds(told.learned) == (None, None, None)
    told.step(times=8)
    assert speeds(told.learned) == (None, None, None)
    assert speeds(told.step().learned) == (0.1, 40.0, None)


def test_one_hiccup_of_ten_seconds_changes_nothing():
    told = Told().step(times=9)
    assert speeds(told.step(took_s=10.0).step(times=9).learned) == (0.1, 40.0, None)


def test_a_late_event_loop_makes_one_step_long_and_the_next_ones_short():
    told = Told()
    for _ in range(40):
        told.step(took_s=0.28).step(took_s=0.01, times=2)
    assert told.learned.step_s == pytest.approx(0.1, rel=0.06)


def test_a_prompt_is_priced_by_what_it_adds():
    told = Told().step(times=9)
    for _ in range(3):
        told.step(took_s=0.1 + 0.2, prompts=PREFILL_TOKENS + 100, hits=100, running=5, made=5)
        told.step(made=5)
    assert told.learned.prefill_tokens_per_s == pytest.approx(PREFILL_TOKENS / 0.2, rel=0.005)


def test_a_prompt_in_pieces_is_counted_whole_and_slows_no_decode_step():
    told = Told().step(times=9)
    for _ in range(3):
        told.step(took_s=1.1, running=5, made=4)
        told.step(took_s=1.1, running=5, made=4, times=2)
        told.step(took_s=0.6, running=5, made=5, prompts=3500)
        told.step(running=4, made=5)
    assert speeds(told.learned) == (0.1, 40.0, 1000.0)


def test_a_preempted_sequence_is_computed_again_and_teaches_nothing():
    told = Told().step(times=9)
    for _ in range(9):
        told.step(took_s=1.1, running=5, made=4)
        told.step(took_s=1.1, running=4, made=4, preempted=1, waiting=1)
        told.step(took_s=2.1, running=5, made=5, prompts=600)
    assert speeds(told.learned) == (0.1, 40.0, None)


@pytest.mark.parametrize("took_s", [0.0, -5.0])
def test_clocks_that_stand_or_go_back_are_survived(took_s):
    told = Told().step(times=9).step(took_s=took_s, times=5).step(times=9)
    assert told.learned.step_s == pytest.approx(0.1, rel=0.06)
    stood = Told().step(took_s=took_s, times=50).step(took_s=took_s, prompts=9999, times=9)
    assert speeds(stood.learned) == (None, None, None)


def test_heartbeats_are_no_steps():
    told = Told().step(times=9)
    before = told.engine.speeds
    for beat in range(9):
        told.engine = fold(told.engine, told.last, told.last.at_s + beat)
    assert told.engine.speeds == before


@pytest.mark.parametrize("unknown", ["running", "prompt_tokens", "generated_tokens"])
def test_what_vllm_does_not_say_is_not_guessed(unknown):
    told = Told()
    for _ in range(30):
        told.step()
        told.engine = fold(
            told.engine, replace(told.last, seq=told.last.seq + 1, **{unknown: None}), 2000.0
        )
        told.last = replace(told.last, seq=told.last.seq + 1)
    assert speeds(told.learned) == (None, None, None)


def test_a_small_change_is_not_told_so_that_the_snapshot_stays():
    told = Told().step(times=12)
    assert told.step(took_s=0.104, times=90).learned.step_s == 0.1
    assert told.step(took_s=0.106, times=90).learned.step_s == 0.106


def test_a_decode_step_within_a_run_changes_nothing_at_all():
    told = Told().step(took_s=0.01, times=2)
    before = told.engine.speeds
    assert told.step(took_s=0.01, times=20).engine.speeds is before


def test_a_new_incarnation_starts_afresh():
    told = Told().step(times=30)
    young = replace(HELLO, sender=2, boot_id="boot-2", started_s=2000.0)
    assert fold(told.engine, young, 2000.5).speeds.learned == Learned()
