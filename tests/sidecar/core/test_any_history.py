"""Whatever happens, in whatever order: no exception, and always a sound snapshot."""

import math

from hypothesis import given
from hypothesis import strategies as st

from ullage_shared.snapshot import SCHEMA, Document, decode, encode
from ullage_sidecar.core.assess import assess
from ullage_sidecar.core.depletion import DepletionSettings
from ullage_sidecar.core.engine import Drain, Engine, Undrain, Unread, Woken
from ullage_sidecar.core.fold import fold, fold_steps
from ullage_sidecar.core.health import Probe
from ullage_sidecar.core.penalty import Form, PenaltySettings
from ullage_sidecar.core.reading import PLUGIN, SCRAPE, Hello, Reading
from ullage_sidecar.core.render import render, sequenced
from ullage_sidecar.core.score import LongWeights, ScoreSettings, ShortWeights
from ullage_sidecar.core.settings import Settings
from ullage_sidecar.core.signals import Signals
from ullage_sidecar.core.smoothing import Smoothing, WindowSettings
from ullage_sidecar.core.warmup import Phase, Progress

START_S = 5000.0

senders = st.integers(1, 3)
maybe_counts = st.none() | st.integers(0, 2**53 - 1)
instants = st.floats(0.0, 10_000.0) | st.floats(allow_nan=False, allow_infinity=False)
hellos = st.builds(
    Hello,
    sender=senders,
    name=st.just("vllm"),
    boot_id=st.sampled_from(["a", "b", "c"]),
    pid=st.just(1),
    started_s=instants,
    data_parallel_size=st.integers(0, 3),
    models=st.lists(st.text(max_size=5), max_size=2).map(tuple),
    total_blocks=maybe_counts,
    block_size=maybe_counts,
    max_num_seqs=maybe_counts,
    said_s=st.none() | instants,
    source=st.sampled_from([PLUGIN, SCRAPE]),
)
readings = st.builds(
    Reading,
    sender=senders,
    seq=st.integers(0, 20) | st.integers(0, 2**64 - 1),
    at_s=instants,
    running=maybe_counts,
    waiting=maybe_counts,
    kv_usage=st.none() | st.floats(0.0, 1.0),
    prompt_tokens=maybe_counts,
    generated_tokens=maybe_counts,
    preemptions=maybe_counts,
    prefix_queries=maybe_counts,
    prefix_hits=maybe_counts,
)
faults = [
    Probe("status 503"), Probe("Connection refused", gone=True), Probe("late", certain=False),
]  # fmt: skip
probes = st.just(Probe(None)) | st.sampled_from(faults)
commands = (
    st.builds(Drain, st.none() | st.sampled_from(["a", "b"]))
    | st.builds(Undrain)
    | st.builds(Woken)
)
warm_ups = st.builds(Progress, st.sampled_from(["a", "b"]), st.sampled_from(Phase))
unread = st.builds(Unread, st.sampled_from(["", "status 404"]))
histories = st.lists(
    st.tuples(
        hellos | readings | readings | probes | commands | warm_ups | unread, st.floats(-2.0, 10.0)
    ),
    max_size=40,
)


@st.composite
def weights_of(draw, kind):
    free = draw(st.floats(0.0, 1.0))
    running = draw(st.floats(0.0, 1.0 - free))
    waiting = max(0.0, 1.0 - free - running)
    return kind(free_weight=free, running_weight=running, waiting_weight=waiting)


all_settings = st.builds(
    Settings,
    score=st.builds(ScoreSettings, short=weights_of(ShortWeights), long=weights_of(LongWeights)),
    window=st.builds(
        WindowSettings, span_s=st.floats(0.01, 60.0), smoothing=st.sampled_from(Smoothing),
        quantile=st.floats(0.0, 1.0),
    ),
    depletion=st.builds(
        DepletionSettings, slope_s=st.floats(0.01, 60.0), ahead_s=st.floats(0.0, 60.0)
    ),
    penalty=st.builds(PenaltySettings, form=st.sampled_from(Form)),
)  # fmt: skip


@given(histories, all_settings)
def test_no_history_raises_or_yields_an_unsound_snapshot(history, settings):
    engine, now_s = Engine("vllm", 0, START_S, Signals.of(settings)), START_S
    last, lost = None, 0
    for event, later_s in history:
        now_s += later_s
        engine = fold(engine, event, now_s)
        judged = assess(engine, settings, now_s)
        fresh = render(engine, judged, node="n", url="http://x:1", wall_s=1.7e9)
        snapshot = sequenced(fresh, last, now_s)
        document = Document(schema=SCHEMA, node="n", replicas=(snapshot,))
        assert decode(encode(document)) == (document, ())
        if snapshot.capacity_score is not None:
            assert 0.0 <= snapshot.capacity_score <= 1.0
            assert not math.isnan(snapshot.capacity_score)
        classes = set() if snapshot.capacity_score is None else {"short", "long"}
        assert snapshot.scores.keys() == classes
        assert all(0.0 <= score <= 1.0 for score in snapshot.scores.values())
        if judged.warm_up == 0.0:
            assert snapshot.scores == {"short": 0.0, "long": 0.0}
        assert engine.age_s(now_s) >= 0.0
        assert (snapshot.reason == "") == (snapshot.state == "serving" and judged.terms is not None)
        if last is not None and last.boot_id == snapshot.boot_id:
            assert snapshot.seq >= last.seq
        assert engine.counts.lost >= lost
        last, lost = snapshot, engine.counts.lost


@given(histories, st.lists(readings, max_size=12), senders)
def test_steps_that_arrive_together_are_folded_as_each_in_turn(history, steps, sender):
    engine, now_s = Engine("vllm", 0, START_S, Signals.of(Settings())), START_S
    for event, later_s in history:
        now_s += later_s
        engine = fold(engine, event, now_s)
    hello = Hello(sender, "vllm", "d", 1, now_s + 1.0, said_s=now_s)
    engine = fold(engine, hello, now_s)
    steps = [step._replace(sender=sender) for step in steps]
    one_by_one = engine
    for step in steps:
        one_by_one = fold(one_by_one, step, now_s)
    assert fold_steps(engine, steps, now_s) == one_by_one
