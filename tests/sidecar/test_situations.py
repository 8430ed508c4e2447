"""Every situation of the table in core/life.py, played to its end: state, reason, and how soon.

What concerns the sidecar's own absence, and clocks, is in test_absence.py.
"""

import logging
from dataclasses import replace

import pytest

from sidecar_world import (
    BEAT_S,
    BUSY,
    GOOD,
    HEALTH_S,
    HUNG,
    IDLE,
    ILL,
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

BACK = "answers since a moment, and has not been heard of yet"


@pytest.fixture
def world():
    return at_work()


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
    assert replica.boot_id is None


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


def test_a_rank_whose_plugin_stays_silent_after_a_death_is_forgotten_beside_one_that_speaks():
    ranks = [Plugin(sender=n + 1, rank=n, ranks=2) for n in range(2)]
    world = World(plugins=ranks)
    world.run(3.0)
    world.after(health=REFUSED, seconds=2.0)
    world.after(health=GOOD, plugins=ranks[:1], seconds=10.0)
    (replica,) = world.node.published(world.now_s, 0.0).replicas
    assert (replica.id, replica.boot_id, replica.reason) == ("n/vllm:0", "boot-1", "")
    assert {row[1] for row in world.seen} == {"n/vllm:0", "n/vllm:1"}


def test_a_living_server_that_refused_for_a_moment_is_back_with_its_next_word(world):
    """Its plugin speaks: it is the same one, and the dead do not speak."""
    world.after(health=REFUSED, seconds=2.0)
    assert standings(world)[-1] == ("down", "/health: Connection refused")
    world.after(health=GOOD, seconds=5.0)
    assert standings(world) == [("down", "/health: Connection refused"), ("serving", "")]
    assert when(world, "serving", "") <= HEALTH_S + BEAT_S


def test_a_server_that_is_ill_for_a_moment_is_back_with_its_next_good_answer(world):
    """Nobody else answers there: it is the same one, and its drain lasts."""
    world.after(health=ILL, seconds=2.0)
    assert standings(world)[-1] == ("down", "/health: status 503")
    world.after(health=GOOD, seconds=5.0)
    assert standings(world) == [("down", "/health: status 503"), ("serving", "")]
    assert when(world, "serving", "") <= HEALTH_S
    world.node.drain("vllm", world.now_s)
    world.after(health=ILL, plugins=[], seconds=2.0)
    world.after(health=GOOD, seconds=20.0)
    assert states(world) == ["down", "draining"]
    assert world.node.published(world.now_s, 0.0).replicas[0].boot_id == "boot-1"


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
    late = HUNG.replace("30 s", "3 s")
    assert standings(world) == [("serving", ""), ("serving", late), ("hung", HUNG)]
    assert 3.0 <= when(world, "serving", late) <= 3.2
    assert 30.0 <= when(world, "hung", HUNG) <= 30.2
    assert world.seen[-1][-1] is False
    world.after(plugins=with_(BUSY, seq=600), seconds=5.0)
    assert standings(world) == [("hung", HUNG), ("serving", "")]
    assert len(lines(caplog)) == 3


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


def test_the_one_that_is_left_of_two_is_heard_and_has_no_rival(world):
    elder = Plugin("boot-0", 5, T - 9000.0, sender=5, phase=8)
    world.after(plugins=[replace(BUSY, seq=500), elder], seconds=5.0)
    world.plugins = [elder]
    while (replica := world.node.published(world.now_s, 0.0).replicas[0]).boot_id != "boot-0":
        world.run(0.1)
    assert (replica.state, replica.reason) == ("serving", "")


def test_ranks_and_api_processes_of_one_server_are_no_rivals():
    speakers = [
        Plugin(sender=place, pid=50 + place % 2, rank=place // 2, ranks=2, phase=2 * place)
        for place in range(4)
    ]
    world = World(plugins=speakers)
    world.run(3.0)
    assert [row[2:] for row in world.run(60.0)] == [("serving", "", True)] * 2
    assert world.node.strays.rival == 0


def test_no_reason_holds_a_figure_that_moves(world):
    """It is part of the snapshot: each would be a new one."""
    world.after(health=LATE, plugins=[], seconds=60.0)
    assert len(world.seen) <= 3
