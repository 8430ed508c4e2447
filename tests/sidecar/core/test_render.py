"""The snapshot says what was judged, and its number grows with every change."""

from dataclasses import replace

import msgspec
import pytest

from ullage_shared.snapshot import Parts, State
from ullage_sidecar.core.assess import assess
from ullage_sidecar.core.engine import Engine
from ullage_sidecar.core.fold import fold
from ullage_sidecar.core.health import Probe
from ullage_sidecar.core.reading import Hello, Reading
from ullage_sidecar.core.render import render, sequenced
from ullage_sidecar.core.settings import Settings
from ullage_sidecar.core.signals import Signals

SETTINGS = Settings()
T = 1000.0
HELLO = Hello(
    1, "vllm", "boot-1", 1, started_s=T - 500.0, models=("m",), total_blocks=257, block_size=16,
    max_num_seqs=8,
)  # fmt: skip
STEP = Reading(1, 5, T - 20.0, 2, 1, 0.25)


def engine_after(*events, rank=0):
    engine = Engine("vllm", rank, T - 400.0, Signals.of(SETTINGS))
    for event in (Probe(None), *events):
        engine = fold(engine, event, T)
    return engine


def rendered(engine, now_s=T, wall_s=1.7e9):
    judged = assess(engine, SETTINGS, now_s)
    return render(engine, judged, node="gpu-03", url="http://x:1", wall_s=wall_s)


def test_a_steady_engine_in_full():
    snapshot = rendered(engine_after(HELLO, STEP), now_s=T + 0.5)
    assert snapshot.id == "gpu-03/vllm"
    assert snapshot.url == "http://x:1"
    assert snapshot.dp_rank is None
    assert snapshot.models == ("m",)
    assert snapshot.state is State.SERVING
    assert snapshot.capacity_score == 0.78
    assert snapshot.scores == {"short": 0.78, "long": 0.78}
    assert (snapshot.free_block_ratio, snapshot.running_ratio) == (0.75, 0.25)
    assert (snapshot.waiting_depth, snapshot.waiting, snapshot.running) == (1.0, 1, 2)
    assert (snapshot.total_blocks, snapshot.block_size, snapshot.max_num_seqs) == (257, 16, 8)
    assert snapshot.exhaustion_s is None
    assert snapshot.boot_id == "boot-1"
    assert snapshot.age_s == 0.0
    assert snapshot.ts == 1.7e9


def test_the_scores_of_the_other_classes_are_published_beside_the_capacity_score():
    snapshot = rendered(engine_after(HELLO, STEP._replace(kv_usage=0.9, waiting=0)))
    assert snapshot.capacity_score == round(0.5 * 0.1 + 0.3 * 0.75 + 0.2, 4)
    assert snapshot.scores == {
        "short": round(0.3 * 0.1 + 0.5 * 0.75 + 0.2, 4),
        "long": round(0.65 * 0.1 + 0.15 * 0.75 + 0.2, 4),
    }


@pytest.mark.parametrize(
    ("waiting", "parts"),
    [
        (0, Parts(0.05, 0.225, 0.2, 1.0, 1.0)),
        (1, Parts(0.05, 0.225, 0.18, 1.0, 1.0)),
        (4, Parts(0.05, 0.225, 0.12, 0.2, 1.0)),
        (2000, Parts(0.05, 0.225, 0.0, 0.2, 1.0)),
    ],
)
def test_what_the_score_is_made_of_is_published_and_its_product_is_the_score(waiting, parts):
    snapshot = rendered(engine_after(HELLO, STEP._replace(kv_usage=0.9, waiting=waiting)))
    assert snapshot.parts == parts
    added = parts.free + parts.running + parts.waiting
    assert snapshot.capacity_score == pytest.approx(added * parts.penalty, abs=1e-4)


def test_a_server_that_warms_up_shows_the_room_that_it_may_not_offer_yet():
    warming = rendered(engine_after(replace(HELLO, started_s=T - 10.0), STEP))
    assert warming.parts == Parts(0.375, 0.225, 0.18, 1.0, 0.0)
    assert warming.capacity_score == 0.0


@pytest.mark.parametrize("unknown", ["kv_usage", "running", "waiting"])
def test_of_a_score_that_is_unknown_no_parts_are_published(unknown):
    assert rendered(engine_after(HELLO, STEP._replace(**{unknown: None}))).parts is None


def test_a_server_that_warms_up_has_no_headroom_in_any_class():
    warming = rendered(engine_after(replace(HELLO, started_s=T - 10.0), STEP))
    assert warming.state is State.WARMING
    assert (warming.capacity_score, warming.scores) == (0.0, {"short": 0.0, "long": 0.0})


@pytest.mark.parametrize(
    ("usage", "total", "free"),
    [(0.25, 257, 192), (0.0, 257, 256), (1.0, 257, 0), (0.5, 1, 0), (0.5, 0, 0), (0.5, None, None)],
)
def test_one_block_is_vllms_own_and_never_free(usage, total, free):
    engine = engine_after(replace(HELLO, total_blocks=total), STEP._replace(kv_usage=usage))
    assert rendered(engine).free_blocks == free


def test_several_engines_of_one_server_are_told_apart_by_rank():
    rank_1 = replace(HELLO, engine_index=1, data_parallel_size=2)
    snapshot = rendered(engine_after(rank_1, STEP, rank=1))
    assert (snapshot.id, snapshot.dp_rank) == ("gpu-03/vllm:1", 1)


@pytest.mark.parametrize(
    ("first", "here", "asked_for_as"),
    [(0, None, 3), (2, 2, 1), (3, 1, None), (0, 4, 3)],
    ids=["all here", "hybrid", "external", "hybrid of one node"],
)
def test_a_server_counts_its_own_ranks_only(first, here, asked_for_as):
    """vLLM answers 400 to a rank that another server has."""
    rank_3 = replace(HELLO, engine_index=3, data_parallel_size=4, first_rank=first, ranks_here=here)
    snapshot = rendered(engine_after(rank_3, STEP, rank=3))
    assert (snapshot.id, snapshot.dp_rank) == ("gpu-03/vllm:3", asked_for_as)


def test_a_server_never_heard_of_may_be_any():
    snapshot = rendered(engine_after())
    assert snapshot.boot_id is None
    assert (snapshot.capacity_score, snapshot.scores) == (None, {})


def test_what_a_silent_plugin_said_last_is_not_published():
    snapshot = rendered(engine_after(HELLO, STEP), now_s=T + 10.0)
    assert (snapshot.running, snapshot.waiting, snapshot.free_blocks) == (None, None, None)
    assert snapshot.total_blocks == 257


def test_speeds_are_told_once_they_are_known_and_while_nothing_is_heard():
    steps = [
        STEP._replace(seq=6 + n, at_s=T - 20.0 + n / 10, waiting=0, prompt_tokens=0,
                generated_tokens=2 * n)
        for n in range(20)
    ]  # fmt: skip
    snapshot = rendered(engine_after(HELLO, steps[0]))
    speeds = (snapshot.step_s, snapshot.decode_tokens_per_s, snapshot.prefill_tokens_per_s)
    assert speeds == (None, None, None)
    snapshot = rendered(engine_after(HELLO, *steps), now_s=T + 10.0)
    speeds = (snapshot.step_s, snapshot.decode_tokens_per_s, snapshot.prefill_tokens_per_s)
    assert speeds == (0.1, 20.0, None)


def test_the_number_stays_while_only_ages_change():
    engine = engine_after(HELLO, STEP)
    first = sequenced(rendered(engine), None, T)
    later = sequenced(rendered(engine, now_s=T + 1.0, wall_s=1.8e9), first, T + 1.0)
    assert first.seq == later.seq == 1_000_000


def test_the_number_grows_with_every_change_even_within_a_millisecond():
    engine = engine_after(HELLO, STEP)
    first = sequenced(rendered(engine), None, T)
    numbers = [first.seq]
    for waiting in (2, 3):
        engine = fold(engine, STEP._replace(seq=5 + waiting, at_s=T, waiting=waiting), T)
        first = sequenced(rendered(engine), first, T)
        numbers.append(first.seq)
    assert numbers == [1_000_000, 1_000_001, 1_000_002]


@pytest.mark.parametrize(
    ("scores", "seq"),
    [
        ({"short": 0.78, "long": 0.78}, 1_000_000),
        ({"short": 0.78, "long": 0.7801}, 1_000_001),
        ({"short": 0.7799, "long": 0.78}, 1_000_001),
        ({}, 1_000_001),
    ],
)
def test_the_number_grows_when_only_the_score_of_a_class_changes(scores, seq):
    first = sequenced(rendered(engine_after(HELLO, STEP)), None, T)
    fresh = msgspec.structs.replace(first, seq=0, scores=scores)
    assert sequenced(fresh, first, T).seq == seq


def test_the_number_grows_over_a_restart_of_the_sidecar():
    before = sequenced(rendered(engine_after(HELLO, STEP)), None, T)
    after = sequenced(rendered(engine_after(HELLO, STEP), now_s=T + 0.1), None, T + 0.1)
    assert after.seq > before.seq
