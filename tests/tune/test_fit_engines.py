"""What is fitted to engines whose parameters are known."""

from random import Random

import pytest

from recorded_engine import TRUTH, Asked, RecordedEngine, stream, traffic
from ullage_tune.fit.fitted import FitError, Fitted, fit
from ullage_tune.fit.recording import chosen, heard
from ullage_tune.fit.steps import Why
from ullage_tune.gpu import Engine, StepModel

H100 = StepModel(0.0048, 3.2e-5, 5e-5, 3.9e-8)


def fitted(engine, readings, **fixed) -> Fitted:
    _, said = chosen(heard(stream(engine.hello(), readings)), None)
    return fit(said, {}, fixed)


def worst(found: Fitted, truth: StepModel = TRUTH) -> float:
    """The largest relative error of a parameter."""
    assert found.solution.untold == ()
    return max(abs(got / want - 1.0) for got, want in zip(found.engine.steps, truth, strict=True))


def disturbed(readings, rng, late_s=0.001, stalls=0.01, stall_s=0.05):
    """The same, told late by chance, with a stall now and then."""
    behind_s = 0.0
    for reading in readings:
        if rng.random() < stalls:
            behind_s += rng.expovariate(1.0 / stall_s)
        late = rng.expovariate(1.0 / late_s)
        yield reading._replace(at_s=reading.at_s + behind_s + late)


SEQUENCES = StepModel(0.01, 1e-4, 1e-2, 1e-6)
"""Their number counts most."""


@pytest.mark.parametrize("truth", [TRUTH, H100, SEQUENCES])
@pytest.mark.parametrize("ahead", [False, True])
def test_without_noise_parameters_come_back_within_one_per_cent(truth, ahead):
    engine = RecordedEngine(truth, ahead=ahead)
    found = fitted(engine, engine.run(traffic(Random(1), 400, rate=4.0, cached=0.5)))
    assert found.ahead == ahead
    assert worst(found, truth) < 0.01
    assert found.solution.p90_error < 0.01
    assert found.steps > 0.95 * engine.seq


def test_where_nothing_is_looked_up_they_come_back_as_well():
    engine = RecordedEngine(caches=False)
    found = fitted(engine, engine.run(traffic(Random(2), 400, rate=3.0)))
    assert worst(found) < 0.01


def test_with_noise_and_stalls_they_come_back_within_five_per_cent():
    engine = RecordedEngine()
    readings = engine.run(traffic(Random(3), 1500, rate=5.0, cached=0.3))
    found = fitted(engine, disturbed(readings, Random(4)))
    assert worst(found) < 0.05
    assert found.dropped[Why.OUTLIER] > 0
    assert all(
        abs(got - want) < 5.0 * error
        for got, want, error in zip(found.engine.steps, TRUTH, found.solution.error, strict=True)
    )


def test_idle_gaps_lost_steps_and_a_clock_that_jumps_change_nothing():
    rng, engine = Random(5), RecordedEngine()
    requests = traffic(rng, 300, rate=3.0)
    for number, asked in enumerate(requests):
        asked.at_s += 30.0 * (number // 20)  # Fifteen bursts, with half a minute in between.
    readings, back_s = [], 0.0
    for reading in engine.run(requests):
        back_s += 5.0 * (rng.random() < 0.002)
        if rng.random() > 0.02:
            readings.append(reading._replace(at_s=reading.at_s - back_s))
    found = fitted(engine, readings)
    assert worst(found) < 0.01
    for why in (Why.IDLE, Why.LOST, Why.CLOCK):
        assert found.dropped[why] > 0


def test_a_prompt_that_was_aborted_spoils_what_is_around_it_only():
    engine = RecordedEngine()
    readings, aborted = [], 0
    for number, reading in enumerate(engine.run(traffic(Random(6), 400, rate=3.0))):
        aborted += 700 * (number % 100 == 50)  # Looked up, and never finished.
        readings.append(reading._replace(prefix_queries=reading.prefix_queries + aborted))
    found = fitted(engine, readings)
    assert worst(found) < 0.01
    assert found.dropped[Why.UNACCOUNTED] >= aborted // 700
    assert found.steps > 0.5 * engine.seq


def test_where_every_step_has_prompts_the_accounts_are_opened_by_idleness():
    rng, engine = Random(11), RecordedEngine()
    requests = traffic(rng, 1200, rate=7.0)
    for number, asked in enumerate(requests):
        asked.answer = 1
        asked.at_s += 20.0 * (number // 100)
    found = fitted(engine, engine.run(requests), per_sequence_s=TRUTH.per_sequence_s)
    assert found.steps > 0.8 * (engine.seq - found.dropped[Why.IDLE])
    assert found.engine.steps[:2] == pytest.approx(TRUTH[:2], rel=0.01)


def test_a_preempted_sequence_that_is_computed_again_is_not_taken_for_slowness():
    engine = RecordedEngine()
    readings, preempted, again_s = [], 0, 0.0
    for number, reading in enumerate(engine.run(traffic(Random(7), 300, rate=3.0))):
        if reading.running > 2:
            preempted += number % 50 == 25
            away = number % 50 in (25, 26)  # It leaves, is missed once more, and comes back, …
            again_s += 0.02 * (number % 50 == 27)  # which takes time that nothing tells of.
            reading = reading._replace(running=reading.running - away)
        readings.append(reading._replace(at_s=reading.at_s + again_s, preemptions=preempted))
    found = fitted(engine, readings)
    assert worst(found) < 0.01
    assert preempted < found.dropped[Why.PREEMPTED] <= 2 * preempted


def test_capacity_is_what_the_plugin_said_and_flags_go_before_it():
    engine = RecordedEngine()
    readings = list(engine.run(traffic(Random(8), 100, rate=4.0)))
    _, said = chosen(heard(stream(engine.hello(max_model_len=None), readings)), None)
    with pytest.raises(
        FitError, match=r"max_model_len: this vLLM does not tell .* --max-model-len"
    ):
        fit(said, {}, {})
    found = fit(said, {"max_model_len": 4096, "max_num_seqs": 7}, {})
    assert found.engine == Engine(found.engine.steps, engine.blocks, 16, 7, 2048, 4096)


@pytest.mark.parametrize(
    ("requests", "untold"),
    [
        # A prompt that comes to an idle engine is in no row: nobody knows when its step began.
        ([Asked(1000.0 + 2 * n, 500, 40) for n in range(200)], set(StepModel._fields[:3])),
        ([Asked(1000.0, 16, 900 + 60 * n) for n in range(32)], {"per_token_s", "per_sequence_s"}),
    ],
    ids=["one at a time", "no prompts"],
)
def test_what_never_varied_is_not_told_and_not_made_up(requests, untold):
    engine = RecordedEngine()
    readings = list(engine.run(requests))[1:]  # The first step has the prompts.
    found = fitted(engine, readings)
    assert set(found.solution.untold) == untold


def test_what_is_assumed_stays_and_what_is_left_is_told():
    engine = RecordedEngine()
    readings = list(engine.run([Asked(1000.0, 16, 900 + 60 * n) for n in range(32)]))[1:]
    found = fitted(engine, readings, per_token_s=TRUTH.per_token_s)
    assert worst(found) < 0.01
    assert found.engine.steps.per_token_s == TRUTH.per_token_s


def test_speculative_decoding_is_refused_by_name():
    engine = RecordedEngine()
    more = (
        reading._replace(generated_tokens=2 * reading.generated_tokens)
        for reading in engine.run(traffic(Random(9), 100, rate=3.0))
    )
    with pytest.raises(FitError, match="without speculative decoding"):
        fitted(engine, more)


def test_too_little_is_refused_and_what_is_missing_is_said():
    engine = RecordedEngine()
    with pytest.raises(FitError, match=r"nothing ran .* wanted requests"):
        fitted(engine, [])
    with pytest.raises(FitError, match=r"wanted 30.* Wanted a longer recording"):
        fitted(engine, engine.run([Asked(1000.0, 500, 20)]))
    unknown = (
        reading._replace(kv_usage=None)
        for reading in RecordedEngine().run(traffic(Random(10), 50, rate=3.0))
    )
    with pytest.raises(FitError, match="not told by this vLLM"):
        fitted(engine, unknown)
