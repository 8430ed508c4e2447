"""Speeds are learned from steps: step by step, exact at the edges."""

from dataclasses import replace

import pytest

from ullage_sidecar.core.engine import Engine
from ullage_sidecar.core.fold import fold
from ullage_sidecar.core.learned import SAMPLES, Learned
from ullage_sidecar.core.reading import Hello, Reading
from ullage_sidecar.core.settings import Settings
from ullage_sidecar.core.signals import Signals
from ullage_sidecar.core.speeds import PREFILL_TOKENS

START_S = 1000.0
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
            self.last = last._replace(
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


def test_prompts_without_an_end_are_priced_as_they_come():
    told = Told().step(times=9)
    told.step(took_s=1.1, running=5, made=4, prompts=1000, times=60)
    assert told.learned.prefill_tokens_per_s == 1000.0


def test_a_change_of_prefill_is_followed_after_half_the_samples():
    told = Told().step(times=9)
    for took_s, prompts in ((0.3, 60), (0.5, SAMPLES // 2 + 1)):
        for _ in range(prompts):
            told.step(took_s=took_s, prompts=1000, running=5, made=5).step(made=5)
    assert told.learned.prefill_tokens_per_s == 1000 / 0.4


def test_a_preempted_sequence_is_computed_again_and_teaches_nothing():
    told = Told().step(times=9)
    for _ in range(9):
        told.step(took_s=1.1, running=5, made=4)
        told.step(took_s=1.1, running=4, made=4, preempted=1, waiting=1)
        told.step(took_s=2.1, running=4, made=5, prompts=600)
        told.step()
    assert speeds(told.learned) == (0.1, 40.0, None)


@pytest.mark.parametrize("took_s", [0.0, -5.0])
def test_clocks_that_stand_or_go_back_are_survived(took_s):
    told = Told().step(times=9).step(took_s=took_s, times=5).step(times=9)
    assert told.learned.step_s == pytest.approx(0.1, rel=0.06)
    stood = Told().step(took_s=took_s, times=50).step(took_s=took_s, prompts=9999, times=9)
    assert speeds(stood.learned) == (None, None, None)


def test_between_two_leaps_of_the_clock_time_goes_on():
    told = Told()
    for _ in range(9):
        told.step(took_s=-0.5).step(times=4)
    assert told.learned.step_s == 0.1
    for _ in range(9):
        told.step(took_s=-1.0, running=5, made=5, prompts=600)
        told.step(took_s=2.5, running=5, made=5, prompts=600)
        told.step(made=5)
    assert told.learned.prefill_tokens_per_s is None


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
            told.engine, told.last._replace(seq=told.last.seq + 1, **{unknown: None}), 2000.0
        )
        told.last = told.last._replace(seq=told.last.seq + 1)
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
