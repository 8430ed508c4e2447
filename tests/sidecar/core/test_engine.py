"""Incarnations, senders, and whose word counts."""

from dataclasses import replace

import pytest

from ullage_sidecar.core.engine import Drain, Engine, Undrain
from ullage_sidecar.core.fold import MAX_SENDERS, fold
from ullage_sidecar.core.health import Probe
from ullage_sidecar.core.reading import Hello, Reading
from ullage_sidecar.core.settings import Settings
from ullage_sidecar.core.signals import Signals

WATCHED_SINCE_S = 1000.0
OLD = Hello(1, "vllm", "boot-1", 11, started_s=100.0, total_blocks=256, max_num_seqs=8)
YOUNG = replace(OLD, sender=2, boot_id="boot-2", pid=22, started_s=1100.0)
STEP = Reading(1, 40, 1000.0, 3, 1, 0.25, 500, 90, 2, 400, 100)


def unheard():
    return Engine("vllm", 0, WATCHED_SINCE_S, Signals.of(Settings()))


def after(*events, engine=None):
    """Fold (event, now_s) pairs."""
    engine = engine or unheard()
    for event, now_s in events:
        engine = fold(engine, event, now_s)
    return engine


def gauges(engine):
    return (engine.signals.running.value, engine.signals.waiting.value, engine.signals.free.value)


def test_a_reading_counts_only_after_its_senders_hello():
    assert after((STEP, 1000.1)) == unheard()
    assert gauges(after((OLD, 1000.0), (STEP, 1000.1))) == (3, 1, 0.75)


def test_the_first_word_of_an_old_sender_is_only_a_baseline():
    engine = after((OLD, 1000.0), (STEP, 1000.1))
    assert (engine.counts.received, engine.counts.lost) == (0, 0)
    engine = after((STEP._replace(seq=41, prompt_tokens=512), 1000.2), engine=engine)
    assert (engine.counts.received, engine.counts.prompt_tokens) == (1, 12)


def test_a_sender_heard_from_its_first_step_counts_from_zero():
    engine = after((OLD, 1000.0), (STEP._replace(seq=1, prompt_tokens=30), 1000.1))
    assert (engine.counts.received, engine.counts.prompt_tokens) == (1, 30)


def test_of_an_engine_younger_than_the_sidecar_every_step_is_accounted_for():
    engine = after((YOUNG, 1100.0), (STEP._replace(sender=2, seq=4, at_s=1100.1), 1100.1))
    assert (engine.counts.received, engine.counts.lost) == (1, 3)
    assert engine.counts.prompt_tokens == 500


def test_a_repeated_number_is_a_heartbeat_and_a_sign_of_life():
    engine = after((OLD, 1000.0), (STEP, 1000.1), (STEP, 1001.1), (STEP, 1002.1))
    assert (engine.counts.heartbeats, engine.counts.received, engine.counts.lost) == (3, 0, 0)
    assert engine.age_s(1002.6) == pytest.approx(0.5)


def test_a_word_is_as_old_as_it_is_however_late_it_comes():
    """A listener that was stopped reads what was said before."""
    said = replace(OLD, said_s=1000.0)
    late = STEP._replace(seq=41, at_s=1000.7)
    engine = after((said, 1060.0), (STEP, 1060.0), (late, 1060.0), (late, 1060.0), (said, 1060.1))
    assert engine.heard_s == 1000.7
    assert after((replace(OLD, said_s=1060.2), 1060.2), engine=engine).heard_s == 1060.2


def test_a_step_out_of_order_is_ignored():
    engine = after((OLD, 1000.0), (STEP, 1000.1))
    assert after((STEP._replace(seq=39, running=9), 1000.2), engine=engine) == engine


def test_of_two_api_processes_the_newest_step_wins_and_counts_add_up():
    """Seen with vLLM: one process said "7 running, 8 waiting" for ever, the engine was idle."""
    other = replace(OLD, sender=9)
    engine = after(
        (OLD, 1000.0),
        (other, 1000.0),
        (STEP._replace(seq=1, at_s=1000.1, running=7, waiting=8, prompt_tokens=10), 1000.1),
        (STEP._replace(sender=9, seq=1, at_s=1000.2, running=0, waiting=0), 1000.2),
        (STEP._replace(seq=1, at_s=1000.1, running=7, waiting=8, prompt_tokens=10), 1001.1),
    )
    assert gauges(engine)[:2] == (0, 0)
    assert engine.counts.prompt_tokens == 510
    assert (engine.counts.received, engine.counts.heartbeats) == (2, 1)


LAST = STEP._replace(sender=9, seq=1, at_s=1000.125, running=0, waiting=0, kv_usage=0.0)


def late(by_s):
    """An idle engine: the other process has recorded the step before the last one this late."""
    step = STEP._replace(at_s=LAST.at_s + by_s)
    said = ((OLD, 1000.0), (replace(OLD, sender=9), 1000.0), (LAST, 1000.2), (step, step.at_s))
    return after(*said), step


def test_a_step_recorded_late_does_not_make_an_idle_engine_hung():
    """Seen with vLLM: two API processes, one scraped; then "1 running" for ever."""
    engine, step = late(by_s=0.05)
    assert gauges(engine) == (3, 1, 0.75)
    engine = after((LAST, 1001.2), (step, 1001.2), (LAST, 1002.2), (step, 1002.2), engine=engine)
    assert gauges(engine) == (0, 0, 1.0)
    again = STEP._replace(seq=41, at_s=1002.3)
    assert gauges(after((again, 1002.3), (LAST, 1003.2), engine=engine)) == (3, 1, 0.75)


@pytest.mark.parametrize(("by_s", "idle"), [(1.0, True), (1.1, False)])
def test_a_process_that_has_long_been_idle_says_nothing_of_the_others_work(by_s, idle):
    engine, step = late(by_s)
    engine = after((LAST, 1010.0), (step, 1010.0), engine=engine)
    assert engine.signals.has_work() is not idle


@pytest.mark.parametrize(("after_s", "idle"), [(0.8, False), (1.0, True)])
def test_work_is_believed_until_the_next_step_is_overdue(after_s, idle):
    engine, step = late(by_s=0.05)
    engine = after((LAST, step.at_s + after_s), engine=engine)
    assert engine.signals.has_work() is not idle


def test_of_one_process_the_last_word_is_the_last():
    engine = after((OLD, 1000.0), (STEP, 1000.1), (STEP, 1001.1), (STEP, 1002.1))
    assert gauges(engine) == (3, 1, 0.75)


def test_a_new_boot_starts_afresh_but_for_its_counters():
    engine = after((OLD, 1000.0), (Probe(None), 1000.0), (STEP, 1000.1), (YOUNG, 1101.0))
    assert engine.hello == YOUNG
    assert engine.started_s == 1100.0
    assert gauges(engine) == (None, None, None)
    assert not engine.health.answered
    assert set(engine.senders) == {2}
    assert engine.counts.heartbeats == 1


def test_a_sender_of_a_former_boot_is_a_stranger():
    engine = after((OLD, 1000.0), (STEP, 1000.1), (YOUNG, 1101.0))
    late = after((STEP._replace(seq=41), 1101.1), (OLD, 1101.2), engine=engine)
    assert late._replace(rival=None) == engine


def test_a_former_boot_is_heard_again_when_the_newer_one_is_long_silent():
    engine = after((YOUNG, 1101.0), (OLD, 1110.0))
    assert engine.hello == OLD


def test_a_first_hello_keeps_what_health_has_said():
    assert after((Probe(None), 1000.0), (OLD, 1000.5)).health.answered


def test_uptime_counts_from_the_earliest_start_that_a_boot_names():
    later = replace(OLD, sender=9, started_s=103.0)
    assert after((later, 1000.0), (OLD, 1000.1), (later, 1001.0)).started_s == 100.0


def test_nothing_comes_from_the_future():
    engine = after((replace(OLD, started_s=5000.0), 1000.0), (STEP._replace(at_s=6000.0), 1000.5))
    assert engine.started_s == 1000.0
    assert engine.signals.stepped_at_s == 1000.5
    dated = after((replace(OLD, said_s=5000.0), 1000.0), (STEP, 1000.0))
    assert dated.heard_s == 1000.0
    assert after((STEP._replace(seq=41, at_s=6000.0), 1000.5), engine=dated).heard_s == 1000.5


def test_a_sender_that_repeats_only_its_hello_has_made_no_step():
    once = after((OLD, 1000.0))
    assert gauges(once) == (None, None, None)
    twice = after((OLD, 1001.0), engine=once)
    assert gauges(twice) == (0, 0, 1.0)
    assert twice.signals.stepped_at_s == 100.0


def test_a_second_silent_sender_does_not_make_a_busy_engine_idle():
    other = replace(OLD, sender=9)
    engine = after((OLD, 1000.0), (STEP, 1000.1), (other, 1000.2), (other, 1001.2), (other, 1002.2))
    assert gauges(engine) == (3, 1, 0.75)


def test_an_engine_whose_senders_hear_of_tokens_but_never_of_a_step_is_unknown_not_idle():
    """vLLM with --disable-log-stats and several API servers."""
    told = replace(OLD, unstepped=7)
    engine = after((OLD, 1000.0), (OLD, 1001.0), (told, 1002.0), (told, 1003.0))
    assert engine.hides_steps
    assert gauges(engine) == (None, None, None)


def test_one_senders_steps_speak_for_another_that_hears_only_of_tokens():
    other = replace(OLD, sender=9, unstepped=7)
    engine = after((OLD, 1000.0), (STEP, 1000.1), (other, 1000.2), (other, 1001.2))
    assert not engine.hides_steps
    assert gauges(engine) == (3, 1, 0.75)


def test_unknown_is_kept_as_unknown():
    engine = after((OLD, 1000.0), (STEP, 1000.1))
    nothing = STEP._replace(seq=41, at_s=1000.2, running=None, waiting=None, kv_usage=None)
    assert gauges(after((nothing, 1000.2), engine=engine)) == (None, None, None)


def test_a_step_proves_that_the_server_has_served():
    assert not after((OLD, 1000.0)).health.answered
    assert after((OLD, 1000.0), (STEP, 1000.1)).health.answered


def test_the_longest_silent_of_too_many_senders_is_forgotten():
    engine = unheard()
    for number in range(MAX_SENDERS + 3):
        engine = fold(engine, replace(OLD, sender=number), 1000.0 + number / 1000)
    assert set(engine.senders) == set(range(3, MAX_SENDERS + 3))


# Drains


def test_a_drain_is_for_the_incarnation_that_is_there_and_ends_with_it():
    drained = after((OLD, 1000.0), (Drain(), 1000.1))
    assert drained.drain == Drain("boot-1", None, 1000.0)
    assert after((OLD, 1001.0), (STEP, 1001.1), engine=drained).drain == drained.drain
    assert after((YOUNG, 1100.0), engine=drained).drain is None
    assert after((Undrain(), 1000.2), engine=drained).drain is None


def test_a_drain_of_one_unheard_is_for_the_first_that_speaks():
    drained = after((Drain(), 1000.0), (OLD, 1000.1))
    assert drained.drain == Drain("boot-1", None, 1000.1)
    assert after((YOUNG, 1100.0), engine=drained).drain is None


def test_a_drain_of_another_incarnation_ends_when_this_one_speaks():
    """The sidecar was away while the server was started anew."""
    assert after((Drain("boot-0"), 1000.0), (OLD, 1000.1)).drain is None
    assert after((Drain("boot-1"), 1000.0), (OLD, 1000.1)).drain == Drain("boot-1", None, 1000.1)


@pytest.mark.parametrize(
    ("heard_s", "started_s", "lasts"),
    [(900.0, 899.9, True), (900.0, 900.0, True), (900.0, 900.1, False), (None, 0.0, False)],
)
def test_a_drain_is_for_what_began_before_it_was_heard_of_by_whatever_name(
    heard_s, started_s, lasts
):
    """The sidecar was away; no server begins while another one holds its port."""
    speaks = replace(OLD, boot_id="another", started_s=started_s)
    drain = after((Drain("boot-1", "more", heard_s), 1000.0), (speaks, 1001.0)).drain
    assert drain == (Drain("another", "boot-1", 1001.0) if lasts else None)


def test_a_drain_was_heard_of_nothing_in_the_future():
    late = replace(OLD, boot_id="another", started_s=1000.5)
    assert after((Drain("boot-1", None, 9e9), 1000.0), (late, 1001.0)).drain is None


def test_a_drain_notes_now_and_then_that_its_incarnation_was_heard_of():
    noted = []
    engine = after((OLD, 1000.0), (Drain(), 1000.0))
    for second in range(30):
        engine = after((OLD, 1000.0 + second), engine=engine)
        noted.append(engine.drain.heard_s)
    assert sorted(set(noted)) == [1000.0, 1010.0, 1020.0]


def test_a_drain_ends_with_its_incarnation_though_an_elder_one_takes_over():
    """Of two servers of one name the younger falls silent."""
    drained = after((OLD, 1100.0), (YOUNG, 1101.0), (Drain(), 1101.0))
    assert after((OLD, 1110.0), engine=drained).drain is None


def test_the_word_of_a_former_incarnation_ends_no_drain():
    drained = after((YOUNG, 1100.0), (Drain(), 1100.1), (OLD, 1100.2))
    assert drained.drain == Drain("boot-2", None, 1100.0)


GOOD, REFUSED = Probe(None), Probe("Connection refused", gone=True)
LATE, ILL = Probe("late", certain=False), Probe("status 503")


@pytest.mark.parametrize(
    ("probes", "lasts"),
    [
        ((GOOD, GOOD), True),
        ((GOOD, LATE, GOOD), True),
        ((GOOD, REFUSED), True),
        ((GOOD, REFUSED, LATE), True),
        ((GOOD, ILL, GOOD), True),
        ((GOOD, REFUSED, ILL), True),
        ((GOOD, REFUSED, GOOD, ILL, GOOD), False),
        ((GOOD, REFUSED, ILL, GOOD), False),
        ((GOOD, ILL, REFUSED, LATE, GOOD), False),
        ((GOOD, REFUSED, GOOD), False),
    ],
)
def test_of_one_whose_plugin_never_spoke_health_tells_that_it_has_started_anew(probes, lasts):
    drained = after((Drain(), 1000.0), *((probe, 1001.0) for probe in probes))
    assert (drained.drain is not None) is lasts
    heard = after((OLD, 1000.0), (Drain(), 1000.0), *((probe, 1001.0) for probe in probes))
    assert heard.drain == Drain("boot-1", None, 1000.0)
