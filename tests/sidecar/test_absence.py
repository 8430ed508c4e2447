"""A sidecar that was away, and clocks that jump: nothing is claimed that was not seen."""

import logging
from dataclasses import replace

import pytest

from sidecar_world import (
    BEAT_S,
    BUSY,
    GOOD,
    HUNG,
    IDLE,
    LATE,
    LIFE_S,
    REFUSED,
    SILENT,
    Plugin,
    T,
    World,
    at_work,
    standings,
    states,
    when,
    with_,
)
from ullage_shared.snapshot import decode
from ullage_sidecar.channel import encode_hello
from ullage_sidecar.core.reading import Hello

AWAY = "this sidecar was away itself, and has not heard of it since"


@pytest.fixture
def world():
    return at_work()


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


def test_what_an_older_plugin_said_before_our_absence_vouches_for_nothing():
    """It does not tell when it said it; but it lay in the queue."""
    node, hello = World(plugins=[]).node, encode_hello(Hello(1, "vllm", "boot-1", 1, T - 5000.0))
    node.hear(hello, T)
    node.pulse(T)
    node.hear(hello, T + 60.0)
    assert node.published(T + 60.1, 0.0).replicas[0].reason == AWAY
    node.hear(hello, T + 60.5)
    assert node.published(T + 60.5, 0.0).replicas[0].reason != AWAY


def test_a_server_first_heard_of_in_an_old_queue_is_not_called_silent():
    node = World(plugins=[]).node
    node.pulse(T)
    said = Hello(1, "vllm", "boot-1", 1, T - 1.0, engine_index=1, data_parallel_size=2, said_s=T)
    node.hear(encode_hello(said), T + 60.0)
    assert node.published(T + 60.1, 0.0).replicas[0].reason == AWAY


def test_a_sidecar_that_was_stopped_vouches_for_nobody_that_died_meanwhile(world):
    world.after(awake=False, seconds=30.0)
    world.after(awake=True, plugins=[], health=REFUSED, seconds=10.0)
    assert standings(world) == [("serving", AWAY), ("down", "/health: Connection refused")]


def test_a_sidecar_that_was_stopped_does_not_count_its_absence_as_the_servers_silence():
    world = World(plugins=with_(IDLE))
    world.run(5.0)
    world.after(health=LATE, seconds=1.0)
    world.after(awake=False, seconds=60.0)
    world.after(awake=True, seconds=2.5)
    assert states(world) == ["serving"]
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
