"""The state after any event in any state: the table is total."""

from dataclasses import replace
from itertools import product

import pytest

from ullage_shared.snapshot import State
from ullage_sidecar.core.engine import Drain, Engine, Undrain, Woken
from ullage_sidecar.core.fold import fold
from ullage_sidecar.core.health import Probe
from ullage_sidecar.core.life import is_cold, judge
from ullage_sidecar.core.reading import Hello, Reading
from ullage_sidecar.core.settings import Settings
from ullage_sidecar.core.signals import Signals
from ullage_sidecar.core.warmup import Phase, Progress

SETTINGS = Settings()
GOOD, REFUSED = Probe(None), Probe("Connection refused", gone=True)
LATE = Probe("no answer in time", certain=False)
T = 1000.0
HELLO = Hello(1, "vllm", "boot-1", 1, started_s=T - 500.0, max_num_seqs=8)
REBORN = replace(HELLO, sender=2, boot_id="boot-2", started_s=T - 1.0)
IDLE = Reading(1, 5, T, 0, 0, 0.0)
BUSY = IDLE._replace(running=5)
LATE_STEP = "has work, made no step for more than 3 s"
STALE = BUSY._replace(at_s=T - 31.0)
WARM, GIVEN_UP = Progress("boot-1", Phase.WARM), Progress("boot-1", Phase.GIVEN_UP, "refused")


def engine_after(*events, started_s=T - 500.0):
    engine = Engine("vllm", 0, T - 400.0, Signals.of(SETTINGS))
    for event in events:
        if isinstance(event, Hello) and event is HELLO:
            event = replace(event, started_s=started_s)
        engine = fold(engine, event, T)
    return engine


IN_STATE = {
    State.STARTING: engine_after(REFUSED, HELLO),
    State.WARMING: engine_after(GOOD, HELLO, started_s=T - 10.0),
    State.RAMPING: engine_after(GOOD, HELLO, WARM, started_s=T - 10.0),
    State.SERVING: engine_after(GOOD, HELLO, IDLE),
    State.HUNG: engine_after(GOOD, HELLO, STALE),
    State.DRAINING: engine_after(GOOD, HELLO, IDLE, Drain()),
    State.DOWN: engine_after(GOOD, HELLO, IDLE, REFUSED),
}
NEXT = BUSY._replace(seq=6, at_s=T)
EVENTS = {
    "hello": HELLO,
    "hello of a new boot": REBORN,
    "step": NEXT,
    "repeated busy step": STALE,
    "healthy": GOOD,
    "refused": REFUSED,
    "one timeout": LATE,
    "drain": Drain(),
    "undrain": Undrain(),
    "warm-up ended": WARM,
    "warm-up given up": GIVEN_UP,
    "warm-up of another boot": Progress("boot-0", Phase.RUNNING),
    "the sidecar wakes": Woken(),
}
S, W, R, V, H, N, D = (
    State.STARTING,
    State.WARMING,
    State.RAMPING,
    State.SERVING,
    State.HUNG,
    State.DRAINING,
    State.DOWN,
)
# What follows, column by column as in EVENTS. A step proves a starting server alive, but does not
# outweigh a refused connection; a new boot must answer /health before it warms up. Who is drained
# must be there; a new boot is wanted again. Who answers after it was gone may be another process.
# Behind a warm-up comes its ramp. A sidecar that was away claims no hang until it has watched anew.
TABLE = {
    State.STARTING: (S, S, D, D, S, S, S, S, S, S, S, S, S),
    State.WARMING: (W, S, W, H, W, D, W, N, W, R, W, W, W),
    State.RAMPING: (R, S, R, H, R, D, R, N, R, R, R, R, R),
    State.SERVING: (V, S, V, V, V, D, V, N, V, R, R, V, V),
    State.HUNG: (H, S, V, H, H, D, H, N, H, H, H, H, V),
    State.DRAINING: (N, S, N, N, N, D, N, N, V, N, N, N, N),
    State.DOWN: (D, S, D, D, S, D, D, D, D, D, D, D, D),
}


def test_the_table_names_every_state_and_every_event():
    assert set(TABLE) == set(IN_STATE) == set(State)
    assert all(len(row) == len(EVENTS) for row in TABLE.values())


@pytest.mark.parametrize("state", IN_STATE)
def test_each_example_is_in_the_state_it_stands_for(state):
    assert judge(IN_STATE[state], SETTINGS, T).state is state


@pytest.mark.parametrize(("state", "event"), list(product(TABLE, EVENTS)))
def test_every_event_in_every_state_has_its_row(state, event):
    engine = IN_STATE[state]
    heard = EVENTS[event]
    if event.startswith("hello") and heard is HELLO:
        heard = replace(HELLO, started_s=engine.started_s)
    expected = TABLE[state][list(EVENTS).index(event)]
    assert judge(fold(engine, heard, T), SETTINGS, T).state is expected


def test_silence_after_nothing_to_do_is_idleness_for_hours():
    hours_s = 7200.0
    engine = fold(IN_STATE[State.SERVING], IDLE, T + hours_s)
    assert judge(engine, SETTINGS, T + hours_s).state is State.SERVING


@pytest.mark.parametrize(("silence_s", "state"), [(30.0, State.SERVING), (30.1, State.HUNG)])
def test_silence_after_work_is_a_hang_after_30_s_of_heartbeats(silence_s, state):
    engine = engine_after(GOOD, HELLO, BUSY)
    engine = fold(engine, BUSY, T + silence_s)
    life = judge(engine, SETTINGS, T + silence_s)
    assert life.state is state
    assert life.factor == (0.0 if state is State.HUNG else 1.0)


@pytest.mark.parametrize(
    ("since_s", "reason"),
    [(3.0, ""), (3.1, LATE_STEP), (30.0, LATE_STEP), (30.1, LATE_STEP.replace("3 s", "30 s"))],
)
def test_one_that_serves_and_makes_no_step_says_so_long_before_it_is_hung(since_s, reason):
    engine = fold(engine_after(GOOD, HELLO, BUSY), BUSY, T + since_s)
    life = judge(engine, SETTINGS, T + since_s)
    assert (life.reason, life.factor) == (reason, float(since_s <= 30.0))
    assert life.stalled is (3.0 < since_s <= 30.0)
    idle = fold(engine_after(GOOD, HELLO, IDLE), IDLE, T + since_s)
    assert judge(idle, SETTINGS, T + since_s).reason == ""


def test_a_drained_engine_that_is_hung_says_both():
    engine = fold(engine_after(GOOD, HELLO, BUSY), Drain(), T)
    reasons = [judge(fold(engine, BUSY, T + s), SETTINGS, T + s) for s in (30.0, 30.1)]
    assert [life.state for life in reasons] == [State.DRAINING] * 2
    drained, hung = (life.reason for life in reasons)
    assert drained == "drained by its operator"
    assert hung == f"{drained}; has work, made no step for more than 30 s"


def test_waiting_requests_are_work_too():
    engine = engine_after(GOOD, HELLO, STALE._replace(running=0, waiting=2))
    assert judge(engine, SETTINGS, T).state is State.HUNG


def test_without_heartbeats_no_hang_is_claimed():
    engine = engine_after(GOOD, HELLO, BUSY)
    assert judge(engine, SETTINGS, T + 60.0).state is State.SERVING


def test_a_restarted_sidecar_does_not_zero_an_engine_that_served_for_hours():
    """Not even when the server is too busy to answer /health just then."""
    long_ago = replace(HELLO, started_s=T - 7200.0)
    engine = Engine("vllm", 0, T - 0.5, Signals.of(SETTINGS))
    for event in (LATE, long_ago, BUSY):
        engine = fold(engine, event, T)
    assert judge(engine, SETTINGS, T).factor == 1.0


def test_a_restarted_vllm_warms_up_again():
    engine = fold(fold(IN_STATE[State.SERVING], REBORN, T), GOOD, T)
    assert judge(engine, SETTINGS, T).state is State.WARMING
    warm = fold(engine, Progress("boot-2", Phase.WARM), T + 5.0)
    states = [judge(warm, SETTINGS, T + later_s).state for later_s in (5.0, 15.0)]
    assert states == [State.RAMPING, State.SERVING]


def test_each_state_but_serving_says_why():
    for state, engine in IN_STATE.items():
        assert bool(judge(engine, SETTINGS, T).reason) == (state is not State.SERVING)


def test_a_server_whose_plugin_never_spoke_serves():
    engine = fold(Engine("vllm", 0, T, Signals.of(SETTINGS)), GOOD, T)
    assert judge(engine, SETTINGS, T).state is State.SERVING


FRESH = replace(HELLO, started_s=T - 10.0)


def test_only_who_is_to_be_warmed_up_is_cold():
    fresh = engine_after(GOOD, FRESH, IDLE._replace(generated_tokens=0))
    assert is_cold(fresh, SETTINGS, T)
    for event in (REFUSED, Drain(), Progress("boot-1", Phase.RUNNING)):
        assert not is_cold(fold(fresh, event, T), SETTINGS, T)
    assert not is_cold(engine_after(GOOD, FRESH, STALE), SETTINGS, T)
    assert not is_cold(engine_after(GOOD, HELLO, IDLE), SETTINGS, T)


def test_nobody_is_cold_before_it_is_known_what_it_has_done():
    """A restarted sidecar hears who an engine is a moment before how it stands."""
    heard = engine_after(GOOD, FRESH)
    assert not is_cold(heard, SETTINGS, T)
    served = fold(heard, IDLE._replace(generated_tokens=10_000), T)
    assert not is_cold(served, SETTINGS, T)
    assert judge(served, SETTINGS, T).state is State.SERVING


def test_who_was_drained_before_it_was_warm_is_warmed_up_when_it_is_wanted_again():
    """However long that was: this sidecar has seen it start, and knows that it did nothing."""
    engine = Engine("vllm", 0, T - 400.0, Signals.of(SETTINGS))
    for event in (GOOD, FRESH, IDLE, Progress("boot-1", Phase.RUNNING), Drain()):
        engine = fold(engine, event, T)
    assert not is_cold(engine, SETTINGS, T)
    later = fold(fold(engine, Undrain(), T + 600.0), IDLE, T + 600.0)
    assert is_cold(later, SETTINGS, T + 600.0)
    assert judge(later, SETTINGS, T + 600.0).state is State.WARMING


def test_a_silent_one_is_not_kept_out_for_want_of_a_warm_up():
    engine = engine_after(GOOD, FRESH, IDLE)
    assert judge(engine, SETTINGS, T + 600.0).state is State.SERVING


def test_a_silent_engine_is_sent_no_dummies():
    fresh = engine_after(GOOD, FRESH, IDLE)
    assert is_cold(fresh, SETTINGS, T + 3.0)
    assert not is_cold(fresh, SETTINGS, T + 3.1)


def test_one_that_has_just_come_waits_to_be_heard_of_for_3_s_and_no_longer():
    """Its first word tells that it is fresh. Until then it would look served, and be flooded."""
    came = fold(Engine("vllm", 0, T - 60.0, Signals.of(SETTINGS)), REFUSED, T - 1.0)
    came = fold(came, GOOD, T)
    assert judge(came, SETTINGS, T + 3.0).state is State.STARTING
    assert judge(came, SETTINGS, T + 3.1).state is State.SERVING
    heard = fold(came, replace(FRESH, started_s=T), T + 1.0)
    assert judge(heard, SETTINGS, T + 1.0).state is State.WARMING
