"""What stands in a document: of each engine a judgement of now, or one as good, and its age."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage_shared.snapshot import State, decode
from ullage_sidecar.config import Config, EngineEntry
from ullage_sidecar.core.assess import assess
from ullage_sidecar.core.change import moved
from ullage_sidecar.core.engine import Drain, Engine, Undrain, Unread, Woken
from ullage_sidecar.core.fold import fold
from ullage_sidecar.core.health import Probe
from ullage_sidecar.core.reading import Hello, Reading
from ullage_sidecar.core.render import render
from ullage_sidecar.core.signals import Signals
from ullage_sidecar.core.warmup import Phase, Progress
from ullage_sidecar.publisher import JUDGE_EVERY_S, Publisher

T = 1000.0
WALL_S = 1.7e9
CONFIG = Config(
    node="n",
    engine=(EngineEntry(name="a", url="http://a:1"), EngineEntry(name="b", url="http://b:1")),
)
HELLO = Hello(1, "a", "boot-1", 11, started_s=T - 500.0, total_blocks=101, max_num_seqs=256)
STEP = Reading(1, 5, T, running=100, waiting=0, kv_usage=0.5)
SOON_S = JUDGE_EVERY_S / 2.0


def serving(name):
    engine = Engine(name, 0, T - 10.0, Signals.of(CONFIG))
    for event in (Probe(None), replace(HELLO, name=name), STEP):
        engine = fold(engine, event, T)
    return engine


def stepped(engine, at_s, seq=6, **gauges):
    return fold(engine, STEP._replace(seq=seq, at_s=at_s, **gauges), at_s)


def replicas(publisher, engines, now_s):
    document, faults = decode(publisher.render(engines, now_s, WALL_S + now_s).body)
    assert faults == ()
    return document.replicas


def anew(engine, now_s):
    """A judgement of now, without number and wall clock."""
    url = f"http://{engine.name}:1"
    return render(engine, assess(engine, CONFIG, now_s), node="n", url=url, wall_s=0.0)


def bare(snapshot):
    return msgspec.structs.replace(snapshot, seq=0, ts=0.0, age_s=0.0)


def test_one_that_has_moved_is_judged_anew_beside_another_that_has_not_and_says_its_age():
    publisher, a, b = Publisher(CONFIG), serving("a"), serving("b")
    first = replicas(publisher, (a, b), T)
    assert [each.age_s for each in first] == [0.0, 0.0]
    now_s = T + SOON_S
    a = stepped(a, now_s, running=150)
    b = stepped(b, now_s, running=105, kv_usage=0.51)
    told_a, told_b = replicas(publisher, (a, b), now_s)
    assert (told_a.running, told_a.age_s, bare(told_a)) == (150, 0.0, anew(a, now_s))
    assert told_a.ts == WALL_S + now_s
    assert told_b == msgspec.structs.replace(first[1], age_s=SOON_S)


def test_whatever_it_does_it_is_judged_anew_every_tenth_of_a_second():
    publisher, engine = Publisher(CONFIG), serving("a")
    ages_s = []
    for tick in range(1, 11):
        now_s = T + 0.03 * tick
        engine = stepped(engine, now_s, seq=5 + tick, running=100 + tick % 2)
        ages_s.append(replicas(publisher, (engine,), now_s)[0].age_s)
    assert ages_s == pytest.approx([0.0, 0.03, 0.06, 0.09] * 2 + [0.0, 0.03])


def test_an_age_alone_is_no_change():
    publisher, engine = Publisher(CONFIG), serving("a")
    seconds = (0.0, 0.03, 0.06, 0.2, 0.25)
    documents = [publisher.render((engine,), T + after_s, WALL_S) for after_s in seconds]
    assert len({document.seq for document in documents}) == 1
    assert len({document.replicas[0].seq for document in documents}) == 1


@pytest.mark.parametrize(
    "event",
    [
        replace(HELLO, models=("m",)),
        replace(HELLO, boot_id="boot-2", started_s=T),
        replace(HELLO, boot_id="boot-0", pid=10, sender=2, started_s=T - 900.0),
        Probe("Connection refused", gone=True),
        Progress("boot-1", Phase.RUNNING),
        Drain(),
        Woken(),
    ],
)
def test_what_is_not_a_step_is_seen_at_once(event):
    publisher, before = Publisher(CONFIG), serving("a")
    replicas(publisher, (before,), T)
    now_s = T + SOON_S
    engine = fold(before, event, now_s)
    told = replicas(publisher, (engine,), now_s)[0]
    assert bare(told) == anew(engine, now_s) != anew(before, now_s)
    assert told.age_s == 0.0


def test_why_nothing_can_be_read_is_seen_at_once():
    publisher = Publisher(CONFIG)
    engine = fold(Engine("a", 0, T, Signals.of(CONFIG)), Probe(None), T)
    assert "404" not in replicas(publisher, (engine,), T)[0].reason
    engine = fold(engine, Unread("status 404"), T)
    assert "404" in replicas(publisher, (engine,), T + SOON_S)[0].reason


def test_an_estimated_most_is_seen_as_soon_as_it_is_learned():
    publisher = Publisher(CONFIG)
    engine = fold(serving("a"), replace(HELLO, max_num_seqs=None), T)
    engine = stepped(engine, T, waiting=1)
    assert replicas(publisher, (engine,), T)[0].max_num_seqs == 100
    engine = stepped(engine, T + SOON_S, seq=7, running=104, waiting=1)
    assert replicas(publisher, (engine,), T + SOON_S)[0].max_num_seqs == 104


def test_a_clock_that_is_set_back_keeps_no_judgement():
    publisher, engine = Publisher(CONFIG), serving("a")
    replicas(publisher, (engine,), T)
    assert replicas(publisher, (engine,), T - 1.0)[0].age_s == 0.0


def test_nothing_may_be_published_and_then_something():
    publisher = Publisher(CONFIG)
    assert replicas(publisher, (), T) == ()
    assert replicas(publisher, (serving("a"),), T)[0].state is State.SERVING


gauges = st.tuples(
    st.sampled_from([None, 0, 99, 100, 101, 115]),
    st.sampled_from([None, 0, 1]),
    st.sampled_from([None, 0.49, 0.5, 0.51, 0.6]),
)
readings = st.builds(
    lambda sender, values: Reading(sender, 0, 0.0, *values), st.integers(1, 2), gauges
)
others = st.sampled_from(
    [
        HELLO, replace(HELLO, sender=2), replace(HELLO, boot_id="boot-2", started_s=T),
        Probe(None), Probe("status 503"), Probe("late", certain=False), Drain(), Undrain(),
        Woken(), Unread("status 404"),
    ]
)  # fmt: skip
pauses_s = st.floats(0.0, 0.05) | st.floats(-0.1, 4.0)


@given(st.lists(st.tuples(readings | readings | readings | others, pauses_s), max_size=40))
def test_whatever_happened_what_is_published_is_as_good_as_a_judgement_of_now(history):
    publisher, engine, now_s = Publisher(CONFIG), serving("a"), T
    for seq, (event, later_s) in enumerate(history, 6):
        now_s += later_s
        if isinstance(event, Reading):
            event = event._replace(seq=seq, at_s=now_s)
        engine = fold(engine, event, now_s)
        document = publisher.render((engine,), now_s, WALL_S)
        (told,), (judged,) = document.replicas, document.judged.values()
        then_s = judged.at_s
        assert told.age_s == pytest.approx(now_s - then_s, abs=0.001)
        assert 0.0 <= now_s - then_s < JUDGE_EVERY_S
        assert bare(told) == anew(judged.engine, then_s)
        if then_s == now_s:
            continue
        assert not moved(judged.engine, engine)
        now = anew(engine, now_s)
        for name in ("id", "models", "boot_id", "total_blocks", "block_size", "max_num_seqs"):
            assert getattr(told, name) == getattr(now, name)
        assert (engine.drain is None) == (judged.engine.drain is None)
