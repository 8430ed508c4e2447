"""Every situation of the table in core/life.py, played to its end: state, reason, and how soon."""

import logging
from dataclasses import replace
from itertools import groupby

import pytest

from sidecar_world import GOOD, ILL, LATE, REFUSED, Plugin, T, World, with_
from ullage_shared.snapshot import decode

HEALTH_S, LIFE_S, BEAT_S = 2.0, 3.0, 1.0
IDLE, BUSY = Plugin(), Plugin(running=4)
BACK = "answers since a moment, and has not been heard of yet"
AWAY = "this sidecar was away itself, and has not heard of it since"
SILENT = "its plugin is silent"
HUNG = "has work, made no step for more than 30 s"


@pytest.fixture
def world():
    """An engine at work that has served for long, and all is well."""
    world = World(plugins=with_(BUSY))
    world.run(12.0)
    assert world.run(1.0) == [(0.1, "n/vllm", "serving", "", True)]
    return world


def standings(world):
    return [(state, reason) for _, _, state, reason, _ in world.seen]


def states(world):
    return [state for state, _ in groupby(row[2] for row in world.seen)]


def when(world, state, reason):
    """Seconds until it was first seen so."""
    return next(row[0] for row in world.seen if row[2:4] == (state, reason))


def lines(caplog):
    return [message for message in caplog.messages if message.startswith("state ")]


def test_a_dead_engine_core_is_down_by_its_servers_word_then_by_nobodys(world, caplog):
    caplog.set_level(logging.INFO)
    world.after(health=ILL, plugins=with_(BUSY, steps=False), seconds=2.0)
    world.after(health=REFUSED, plugins=[], seconds=20.0)
    assert standings(world) == [
        ("down", "/health: status 503"),
        ("down", "/health: Connection refused"),
    ]
    assert len(lines(caplog)) == 2


def test_a_dead_server_is_down_within_one_question(world, caplog):
    caplog.set_level(logging.INFO)
    world.after(health=REFUSED, plugins=[], seconds=60.0)
    assert standings(world) == [("serving", ""), ("down", "/health: Connection refused")]
    assert when(world, "down", "/health: Connection refused") <= HEALTH_S
    assert len(lines(caplog)) == 1


def test_a_reason_that_flaps_is_a_line_each_ten_seconds_and_the_last_one_is_told(world, caplog):
    caplog.set_level(logging.INFO)
    world.plugins = []
    for second in range(30):
        world.after(health=(ILL, REFUSED)[second % 2], seconds=1.0)
    assert 3 <= len(lines(caplog)) <= 5
    world.run(12.0)
    assert "Connection refused" in lines(caplog)[-1]


REBORN = Plugin("boot-2", pid=22, sender=2, seq=0)


def reborn(world, **changes):
    return replace(REBORN, started_s=world.now_s, at_s=world.now_s, **changes)


def test_a_server_started_anew_is_never_served_before_it_is_known_again(world):
    world.after(health=REFUSED, plugins=[], seconds=20.0)
    world.after(plugins=[reborn(world)], seconds=2.0)
    assert standings(world)[1:] == [
        ("starting", "/health: no answer yet"),
        ("starting", "/health: Connection refused"),
    ]
    world.after(health=GOOD, seconds=3.0)
    assert states(world) == ["starting", "warming"]


def test_one_that_answers_before_its_plugin_speaks_waits_for_it(world):
    world.after(health=REFUSED, plugins=[], seconds=20.0)
    world.after(health=GOOD, seconds=2.0)
    assert standings(world)[1:] == [("starting", BACK)]
    world.after(plugins=[reborn(world)], seconds=3.0)
    assert standings(world)[0] == ("starting", BACK)
    assert states(world) == ["starting", "warming"]


def test_one_that_answers_and_whose_plugin_is_off_now_is_one_never_heard_of(world):
    world.after(health=REFUSED, plugins=[], seconds=20.0)
    world.after(health=GOOD, seconds=20.0)
    unheard = ("serving", "its plugin was never heard of")
    assert standings(world)[1:] == [("starting", BACK), ("serving", SILENT), unheard]
    assert when(world, *unheard) <= HEALTH_S + LIFE_S + BEAT_S
    assert world.seen[-1][-1] is None
    (replica,) = world.node.published(world.now_s, 0.0).replicas
    assert (replica.models, replica.max_num_seqs, replica.total_blocks) == ((), None, None)
    assert replica.boot_id.startswith("unheard-")


def test_a_server_that_comes_back_without_its_plugin_is_one_replica_whatever_ranks_it_had():
    ranks = [Plugin(sender=n + 1, rank=n, ranks=3) for n in range(3)]
    world = World(plugins=ranks)
    world.run(3.0)
    world.after(health=REFUSED, plugins=[], seconds=10.0)
    world.node.drain("vllm", world.now_s)
    world.after(health=GOOD, seconds=10.0)
    (replica,) = world.node.published(world.now_s, 0.0).replicas
    assert (replica.id, replica.dp_rank, replica.state) == ("n/vllm", None, "serving")
    assert world.node.drains == {}
    world.after(plugins=[reborn(world, rank=n, ranks=2, phase=n) for n in range(2)], seconds=3.0)
    assert [r.id for r in world.node.published(world.now_s, 0.0).replicas] == [
        "n/vllm:0",
        "n/vllm:1",
    ]


def test_a_living_server_that_refused_for_a_moment_is_back_with_its_next_word(world):
    """Its plugin speaks: it is the same one, and the dead do not speak."""
    world.after(health=REFUSED, seconds=2.0)
    assert standings(world)[-1] == ("down", "/health: Connection refused")
    world.after(health=GOOD, seconds=5.0)
    assert standings(world) == [("down", "/health: Connection refused"), ("serving", "")]
    assert when(world, "serving", "") <= HEALTH_S + BEAT_S


def test_a_stopped_server_is_unknown_then_down_and_serves_at_once_when_it_goes_on(world, caplog):
    caplog.set_level(logging.INFO)
    world.after(health=LATE, plugins=[], seconds=30.0)
    down = ("down", "/health: no answer in time")
    assert standings(world) == [("serving", ""), ("serving", SILENT), down]
    assert when(world, "serving", SILENT) <= LIFE_S + BEAT_S
    assert when(world, *down) <= HEALTH_S + LIFE_S + BEAT_S
    world.after(health=GOOD, plugins=with_(BUSY, seq=500), seconds=5.0)
    assert standings(world) == [down, ("serving", "")]
    assert when(world, "serving", "") <= BEAT_S
    assert len(lines(caplog)) == 3


def test_an_engine_core_stopped_with_work_is_hung_and_serves_at_its_next_step(world, caplog):
    caplog.set_level(logging.INFO)
    world.after(plugins=with_(BUSY, steps=False, seq=500, at_s=world.now_s), seconds=40.0)
    assert standings(world) == [("serving", ""), ("hung", HUNG)]
    assert 30.0 <= when(world, "hung", HUNG) <= 30.2
    assert world.seen[-1][-1] is False
    world.after(plugins=with_(BUSY, seq=600), seconds=5.0)
    assert standings(world) == [("hung", HUNG), ("serving", "")]
    assert len(lines(caplog)) == 2


def test_an_engine_core_stopped_without_work_looks_idle():
    world = World(plugins=with_(IDLE, steps=False))
    world.run(2.0)
    assert world.run(120.0) == [(0.1, "n/vllm", "serving", "", True)]


def test_a_hung_engine_whose_work_is_aborted_is_idle_and_serves(world):
    stopped = replace(BUSY, steps=False, seq=500, at_s=world.now_s)
    world.after(plugins=[stopped], seconds=40.0)
    stopped.running = 0
    world.node.hear(stopped.step(world.now_s), world.now_s)
    world.run(60.0)
    assert standings(world) == [("serving", "")]
    assert world.node.published(world.now_s, 0.0).replicas[0].running == 0


def test_a_plugin_silent_with_work_makes_its_engine_unknown_and_not_hung(world, caplog):
    caplog.set_level(logging.INFO)
    world.after(plugins=[], seconds=120.0)
    assert standings(world) == [("serving", ""), ("serving", SILENT)]
    assert world.seen[-1][-1] is None
    assert len(lines(caplog)) == 1


def test_two_servers_of_one_name_are_unknown_with_their_pids_as_long_as_both_speak(world, caplog):
    caplog.set_level(logging.INFO)
    elders = [Plugin("boot-0", pid, T - 9000.0, sender=pid, phase=pid - 4) for pid in (5, 6, 7)]
    processes = [replace(BUSY, seq=500), replace(BUSY, sender=9, pid=12, phase=8, steps=False)]
    world.after(plugins=[*processes, *elders], seconds=60.0)
    both = ("serving", "two servers go by this name: pids 11 and 5")
    assert standings(world) in ([("serving", ""), both], [both])
    assert world.seen[-1][-1] is None
    world.after(plugins=processes, seconds=10.0)
    assert standings(world) == [both, ("serving", "")]
    assert when(world, "serving", "") <= LIFE_S + BEAT_S
    assert len(lines(caplog)) == 2


def test_ranks_and_api_processes_of_one_server_are_no_rivals():
    speakers = [
        Plugin(sender=place, pid=50 + place % 2, rank=place // 2, ranks=2, phase=2 * place)
        for place in range(4)
    ]
    world = World(plugins=speakers)
    world.run(3.0)
    assert [row[2:] for row in world.run(60.0)] == [("serving", "", True)] * 2
    assert world.node.strays.rival == 0


@pytest.mark.parametrize("running", [0, 4])
@pytest.mark.parametrize("away_s", [1.2, 2.5, 5.0, 60.0])
def test_a_sidecar_that_was_stopped_claims_nothing_until_it_has_heard_anew(running, away_s, caplog):
    """What lies in its queue is as old as the stop."""
    caplog.set_level(logging.INFO)
    world = World(plugins=with_(IDLE, running=running))
    world.run(5.0)
    world.after(awake=False, seconds=away_s)
    world.after(awake=True, seconds=10.0)
    assert standings(world) == [("serving", AWAY), ("serving", "")]
    assert [row[-1] for row in world.seen] == [None, True]
    assert when(world, "serving", "") <= BEAT_S + 0.1
    assert len([m for m in caplog.messages if m.startswith("was_away ")]) == 1


def test_a_sidecar_that_was_stopped_vouches_for_nobody_that_died_meanwhile(world):
    world.after(awake=False, seconds=30.0)
    world.after(awake=True, plugins=[], health=REFUSED, seconds=10.0)
    assert standings(world) == [("serving", AWAY), ("down", "/health: Connection refused")]


def test_a_sidecar_that_was_stopped_does_not_count_its_absence_as_the_servers_silence(world):
    world.after(health=LATE, seconds=1.0)
    world.after(awake=False, seconds=60.0)
    world.after(awake=True, seconds=0.8)
    world.after(health=GOOD, seconds=10.0)
    assert {row[2] for row in world.seen} == {"serving"}


def test_a_plugin_that_stays_silent_after_our_absence_is_silent(world):
    world.after(awake=False, seconds=30.0)
    world.after(awake=True, plugins=[], seconds=10.0)
    assert standings(world) == [("serving", AWAY), ("serving", SILENT)]
    assert when(world, "serving", SILENT) <= LIFE_S + BEAT_S


def test_an_engine_that_hung_during_our_absence_is_hung_after_a_look_of_our_own(world):
    stopped = replace(BUSY, steps=False, seq=500, at_s=world.now_s)
    world.after(awake=False, plugins=[stopped], seconds=60.0)
    world.after(awake=True, seconds=10.0)
    assert standings(world) == [("serving", AWAY), ("serving", ""), ("hung", HUNG)]
    assert when(world, "hung", HUNG) <= LIFE_S + BEAT_S


def test_a_restarted_sidecar_claims_no_hang_before_all_api_processes_can_have_spoken():
    """Each keeps its last step for ever: "7 running" from one while the engine was idle."""
    first = Plugin(running=7, steps=False, at_s=T - 60.0, phase=1)
    second = Plugin(sender=2, pid=12, at_s=T - 59.0, phase=9)
    world = World(plugins=[first, second])
    assert {row[2] for row in world.run(60.0)} == {"serving"}


def test_a_short_pause_of_the_sidecar_is_no_absence(world):
    world.after(awake=False, seconds=0.7)
    assert world.after(awake=True, seconds=5.0) == [(0.1, "n/vllm", "serving", "", True)]


def test_a_host_that_was_suspended_goes_on_where_it_was(world):
    """No one's monotonic clock ran meanwhile; the wall clock did."""
    world.wall_s += 86_400.0
    assert world.run(10.0) == [(0.1, "n/vllm", "serving", "", True)]


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0, -1.7e9, 1e12])
def test_a_wall_clock_that_jumps_changes_the_time_told_and_nothing_else(world, jump_s):
    before = world.node.published(world.now_s, world.wall_s).replicas[0]
    seen = world.after(wall_s=world.wall_s + jump_s, seconds=10.0)
    assert seen == [(0.1, "n/vllm", "serving", "", True)]
    document, faults = decode(world.node.published(world.now_s, world.wall_s).body)
    assert faults == ()
    assert document.replicas[0].ts == world.wall_s
    assert document.replicas[0].seq >= before.seq
    assert document.replicas[0].age_s == 0.0


@pytest.mark.parametrize("back_s", [0.1, 5.0, 3600.0])
def test_a_monotonic_clock_set_back_raises_nothing_and_ages_nothing(world, back_s):
    seq = world.node.published(world.now_s, 0.0).seq
    world.after(now_s=world.now_s - back_s, seconds=10.0)
    assert {row[2] for row in world.seen} == {"serving"}
    for engine, judged in world.node.assessed(world.now_s - 2 * back_s):
        assert engine.age_s(world.now_s - 2 * back_s) >= 0.0
        assert judged.capacity is not None
    assert world.node.published(world.now_s, 0.0).seq >= seq


def test_no_reason_holds_a_figure_that_moves(world):
    """It is part of the snapshot: each would be a new one."""
    world.after(health=LATE, plugins=[], seconds=60.0)
    assert len(world.seen) <= 3
