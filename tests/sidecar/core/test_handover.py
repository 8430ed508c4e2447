"""The plugin and a scrape of one engine: one incarnation, whoever tells of it."""

from dataclasses import replace

import pytest

from ullage_shared.snapshot import State
from ullage_sidecar.core.assess import assess
from ullage_sidecar.core.engine import Drain, Engine, Unread
from ullage_sidecar.core.fold import SILENT_AFTER_S, fold
from ullage_sidecar.core.health import Probe
from ullage_sidecar.core.reading import SCRAPE, Hello, Reading
from ullage_sidecar.core.settings import Settings
from ullage_sidecar.core.signals import Signals

SETTINGS = Settings()
T = 1000.0
WATCHED_SINCE_S = T - 100.0
SPOKEN = Hello(
    1, "vllm", "boot-1", 11, T - 500.0, models=("a", "b"), total_blocks=256, block_size=32,
    max_num_seqs=8, max_model_len=4096, vllm_version="0.32.0",
)  # fmt: skip
SCRAPED = Hello(
    2, "vllm", "scrape-1", 0, T - 520.0, models=("a",), total_blocks=256, block_size=32,
    source=SCRAPE,
)  # fmt: skip
STEP = Reading(1, 40, T, 3, 1, 0.25, 500, 90, 2, 400, 100)
PAGE = STEP._replace(sender=2, seq=1)


def after(*events, engine=None):
    """Fold (event, now_s) pairs."""
    engine = engine or Engine("vllm", 0, WATCHED_SINCE_S, Signals.of(SETTINGS))
    for event, now_s in events:
        engine = fold(engine, event, now_s)
    return engine


LATER_S = T + SILENT_AFTER_S + 1.0
BY_PLUGIN = after((Probe(None), T), (SPOKEN, T), (STEP, T))
BY_SCRAPE = after((Probe(None), T), (SCRAPED, T), (PAGE, T))
HANDED_TO_SCRAPE = after(
    (SCRAPED, LATER_S), (PAGE._replace(at_s=LATER_S), LATER_S), engine=BY_PLUGIN
)
HANDED_TO_PLUGIN = after(
    (SPOKEN, T + 1.0), (STEP._replace(at_s=T + 1.0), T + 1.0), engine=BY_SCRAPE
)


def test_while_the_plugin_speaks_no_scrape_is_heard():
    assert after((SCRAPED, T + 1.0), (PAGE, T + 1.0), engine=BY_PLUGIN) == BY_PLUGIN


def test_what_it_has_generated_is_not_forgotten_when_another_source_begins():
    """Else one that serves would be sent dummies until the first step is told."""
    handed = after((SPOKEN, T + 1.0), engine=BY_SCRAPE)
    assert (handed.hello.source, handed.generated) == ("plugin", 90)
    anew = replace(SPOKEN, boot_id="boot-2", started_s=T + 50.0)
    assert after((anew, T + 60.0), engine=handed).generated == 0


def test_a_plugin_is_heard_at_once_though_it_began_before_the_scraped_server():
    """What is scraped may be thought younger than it is."""
    young = after((replace(SCRAPED, started_s=T - 1.0), T), (PAGE, T))
    assert after((SPOKEN, T + 1.0), engine=young).hello.source == "plugin"


@pytest.mark.parametrize("engine", [HANDED_TO_SCRAPE, HANDED_TO_PLUGIN])
def test_a_handover_is_no_new_incarnation(engine):
    before = BY_PLUGIN if engine is HANDED_TO_SCRAPE else BY_SCRAPE
    assert engine.hello.boot_id == before.hello.boot_id
    assert engine.signals.free.filling or engine.signals.free.at_s == T
    assert engine.health.answered
    assert engine.started_s == SCRAPED.started_s
    assert assess(engine, SETTINGS, LATER_S).state is State.SERVING


def test_sources_may_take_turns():
    engine = HANDED_TO_SCRAPE
    for turn in range(1, 4):
        now_s = LATER_S + 10.0 * turn
        engine = after(
            (SPOKEN, now_s), (STEP._replace(seq=40 + turn, at_s=now_s), now_s), engine=engine
        )
        assert (engine.hello.source, engine.hello.boot_id) == ("plugin", "boot-1")
        engine = after(
            (SCRAPED, now_s + 5.0), (PAGE._replace(at_s=now_s), now_s + 5.0), engine=engine
        )
        assert (engine.hello.source, engine.hello.boot_id) == (SCRAPE, "boot-1")


def test_a_scrape_does_not_unsay_what_the_plugin_told():
    hello = HANDED_TO_SCRAPE.hello
    assert (hello.models, hello.max_num_seqs, hello.max_model_len) == (("a", "b"), 8, 4096)
    again = after((SCRAPED, LATER_S + 1.0), engine=HANDED_TO_SCRAPE).hello
    assert (again.max_num_seqs, again.vllm_version, again.pid) == (8, "0.32.0", 11)


def test_after_a_handover_nothing_is_counted_twice():
    for engine in (HANDED_TO_SCRAPE, HANDED_TO_PLUGIN):
        assert engine.counts.prompt_tokens in (None, 0)
    more = PAGE._replace(seq=2, at_s=LATER_S + 1.0, prompt_tokens=512)
    assert after((more, LATER_S + 1.0), engine=HANDED_TO_SCRAPE).counts.prompt_tokens == 12


def test_of_a_server_younger_than_the_sidecar_the_second_source_counts_nothing_again():
    spoken = replace(SPOKEN, started_s=T - 5.0)
    engine = after((replace(SCRAPED, started_s=T - 5.0), T), (PAGE, T))
    assert engine.counts.prompt_tokens == 500
    engine = after((spoken, T + 1.0), (STEP._replace(at_s=T + 1.0), T + 1.0), engine=engine)
    assert engine.counts.prompt_tokens == 500


def test_the_first_page_of_an_old_server_is_only_a_baseline():
    assert BY_SCRAPE.counts.prompt_tokens in (None, 0)


def test_a_drain_outlasts_a_handover():
    for engine, hello, now_s in ((BY_PLUGIN, SCRAPED, LATER_S), (BY_SCRAPE, SPOKEN, T + 1.0)):
        drained = fold(engine, Drain(), T + 0.5)
        meant = fold(drained, hello, now_s).drain
        assert (meant.boot_id, meant.alias) == (engine.hello.boot_id, hello.boot_id)


@pytest.mark.parametrize("first", [SPOKEN, SCRAPED])
@pytest.mark.parametrize("engine", [BY_PLUGIN, BY_SCRAPE, HANDED_TO_SCRAPE, HANDED_TO_PLUGIN])
def test_a_drain_outlasts_the_sidecar_whichever_source_speaks_first_then(engine, first):
    kept = fold(engine, Drain(), LATER_S).drain
    for later_s, hello in ((10.0, first), (20.0, SPOKEN), (30.0, SCRAPED), (40.0, SPOKEN)):
        anew = after((kept, LATER_S + later_s), (hello, LATER_S + later_s))
        assert anew.drain is not None
        kept = anew.drain
        assert kept.boot_id == hello.boot_id
        reborn = replace(hello, boot_id="another", started_s=LATER_S + later_s + 1.0)
        assert after((kept, LATER_S + 99.0), (reborn, LATER_S + 99.0)).drain is None


def test_what_began_after_the_other_source_was_last_heard_is_a_new_incarnation():
    for engine, hello, now_s in ((BY_PLUGIN, SCRAPED, LATER_S), (BY_SCRAPE, SPOKEN, T + 60.0)):
        reborn = replace(hello, boot_id="another", started_s=now_s - 0.5)
        drained = fold(engine, Drain(), T + 0.5)
        anew = fold(drained, reborn, now_s)
        assert (anew.hello, anew.drain) == (reborn, None)
        assert anew.signals.free.value is None
        assert anew.started_s == now_s - 0.5


def test_a_new_incarnation_does_not_know_what_the_one_before_was():
    reborn = replace(SCRAPED, boot_id="scrape-2", started_s=LATER_S + 20.0)
    anew = fold(HANDED_TO_SCRAPE, reborn, LATER_S + 21.0)
    assert (anew.max_num_seqs, anew.alias, anew.handed_over) == (None, None, False)
    after_learning = fold(BY_SCRAPE, reborn, LATER_S + 21.0)
    assert after_learning.max_num_seqs is None
    spoken = replace(SPOKEN, boot_id="boot-2", started_s=LATER_S + 40.0)
    assert fold(anew, spoken, LATER_S + 41.0).hello == spoken


def test_a_limit_that_nobody_tells_is_learned_and_one_that_is_told_counts():
    assert (BY_SCRAPE.max_num_seqs, BY_SCRAPE.estimates_seqs) == (3, True)
    assert assess(BY_SCRAPE, SETTINGS, T).capacity is not None
    spoken = fold(BY_SCRAPE, SPOKEN, T + 1.0)
    assert (spoken.max_num_seqs, spoken.estimates_seqs) == (8, False)
    idle = after((SCRAPED, T), (PAGE._replace(waiting=0), T))
    judged = assess(idle, SETTINGS, T)
    assert (judged.capacity, idle.max_num_seqs) == (None, None)
    assert judged.reason == (
        "unknown: running / max_num_seqs; set max_num_seqs, or it is learned as requests wait"
    )


def test_what_to_do_where_nobody_tells_how_it_stands():
    unheard = after((Probe(None), T), (Unread("status 404"), T))
    assert assess(unheard, SETTINGS, T).reason == (
        "its plugin was never heard of, and its /metrics does not help: status 404; "
        "set ULLAGE_SOCKET of that vLLM, or mend its /metrics"
    )
    silent = fold(BY_PLUGIN, Unread("status 404"), LATER_S)
    assert assess(silent, SETTINGS, LATER_S).reason.startswith("its plugin is silent, and its /m")
    deaf = fold(BY_SCRAPE, Unread("no answer in time"), LATER_S)
    assert assess(deaf, SETTINGS, LATER_S).reason == "its /metrics: no answer in time"
    again = fold(deaf, SCRAPED, LATER_S)
    assert again.unread == ""


def test_work_that_stands_still_is_a_hang_and_no_work_is_none():
    """Heartbeats of a page that does not change: see scraped.py."""
    for page, state in ((PAGE, State.HUNG), (PAGE._replace(running=0, waiting=0), State.SERVING)):
        engine = after((Probe(None), T), (SCRAPED, T), (page, T))
        for second in range(1, 32):
            engine = after((SCRAPED, T + second), (page, T + second), engine=engine)
        assert assess(engine, SETTINGS, T + 31.0).state is state
