"""The wire: what is sound arrives whole, what is not is named and costs only its replica."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage_shared.snapshot import (
    SCHEMA,
    Document,
    Parts,
    RequestClass,
    Snapshot,
    SnapshotError,
    State,
    class_of,
    decode,
    encode,
    score_for,
)

ratios = st.none() | st.floats(0.0, 1.0)
counts = st.none() | st.integers(0, 2**53)
speeds = st.none() | st.floats(1e-9, 1e12)
shares = st.floats(0.0, 1.0)
names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)
snapshots = st.builds(
    Snapshot,
    id=names,
    url=names,
    dp_rank=counts,
    models=st.lists(names, max_size=2).map(tuple),
    state=st.sampled_from(State),
    reason=st.just("") | names,
    capacity_score=ratios,
    free_block_ratio=ratios,
    waiting_depth=st.none() | st.floats(0.0, 1e6),
    running_ratio=ratios,
    free_blocks=counts,
    total_blocks=counts,
    block_size=counts,
    running=counts,
    max_num_seqs=counts,
    waiting=counts,
    exhaustion_s=st.none() | st.floats(0.0, 1e6),
    boot_id=names,
    seq=st.integers(0, 2**53),
    age_s=st.floats(0.0, 1e6),
    ts=st.floats(0.0, 1e10),
    scores=st.fixed_dictionaries({}, optional={"short": ratios, "long": ratios}),
    step_s=speeds,
    decode_tokens_per_s=speeds,
    prefill_tokens_per_s=speeds,
    parts=st.none() | st.builds(Parts, shares, shares, shares, shares, shares),
)
SOUND = {
    "id": "n/vllm", "url": "http://x:1", "dp_rank": None, "models": [], "state": "serving",
    "reason": "", "capacity_score": 0.5, "free_block_ratio": 0.5, "waiting_depth": 0.0,
    "running_ratio": 0.5, "free_blocks": 1, "total_blocks": 2, "block_size": 16, "running": 1,
    "max_num_seqs": 8, "waiting": 0, "exhaustion_s": None, "boot_id": "b", "seq": 1, "age_s": 0.0,
    "ts": 1.0,
}  # fmt: skip


def body(*replicas, **fields):
    return json.dumps({"schema": SCHEMA, "node": "n", "replicas": replicas, **fields}).encode()


@given(st.lists(snapshots, max_size=3), names)
def test_a_document_arrives_as_it_was_sent(replicas, node):
    document = Document(schema=SCHEMA, node=node, replicas=tuple(replicas))
    assert decode(encode(document)) == (document, ())


def test_unknown_fields_are_ignored():
    document, faults = decode(body({**SOUND, "colour": "red"}, colour="red"))
    assert faults == ()
    assert document.replicas[0].capacity_score == 0.5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("capacity_score", 1.01),
        ("capacity_score", -0.01),
        ("capacity_score", "0.5"),
        ("free_block_ratio", 2),
        ("waiting_depth", -1.0),
        ("running", -1),
        ("running", 1.5),
        ("state", "happy"),
        ("id", ""),
        ("id", "x" * 1025),
        ("url", None),
        ("models", "m"),
        ("seq", None),
        ("seq", -1),
        ("age_s", -0.1),
        ("exhaustion_s", 1e13),
        ("step_s", 0.0),
        ("step_s", "0.02"),
        ("decode_tokens_per_s", -1.0),
        ("prefill_tokens_per_s", 1e13),
        ("parts", {"free": 1.01, "running": 0.1, "waiting": 0.1, "penalty": 1.0, "warm_up": 1.0}),
        ("parts", {"free": 0.1, "running": 0.1, "waiting": 0.1, "penalty": -0.1, "warm_up": 1.0}),
        ("parts", {"free": 0.1}),
    ],
)
def test_a_field_out_of_range_is_named_and_costs_only_its_replica(field, value):
    document, faults = decode(body({**SOUND, field: value}, SOUND))
    assert len(document.replicas) == 1
    assert len(faults) == 1
    assert faults[0].startswith("replicas[0]: ")
    assert f"$.{field}" in faults[0]


@pytest.mark.parametrize("field", SOUND)
def test_a_missing_field_is_named_and_costs_only_its_replica(field):
    lacking = {name: value for name, value in SOUND.items() if name != field}
    document, faults = decode(body(SOUND, lacking))
    assert len(document.replicas) == 1
    assert faults == (f"replicas[1]: Object missing required field `{field}`",)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"", "snapshot document"),
        (b"{", "snapshot document"),
        (b"\xff", "snapshot document"),
        (b"[]", "snapshot document"),
        (b'{"schema":1,"node":"n"}', "replicas"),
        (b'{"schema":2,"node":"n","replicas":[]}', "schema"),
        (b'{"schema":1,"node":"","replicas":[]}', "node"),
        (b'{"schema":1,"node":"n","replicas":{}}', "replicas"),
    ],
)
def test_what_is_no_document_is_the_peers_fault_and_says_why(text, named):
    with pytest.raises(SnapshotError, match=named):
        decode(text)


def test_null_is_unknown_and_neither_idle_nor_full():
    document, faults = decode(body({**SOUND, "capacity_score": None, "waiting": None}))
    assert faults == ()
    assert document.replicas[0].capacity_score is None


@pytest.mark.parametrize(
    ("prompt_tokens", "cls"),
    [
        (0, RequestClass.SHORT),
        (1_024, RequestClass.SHORT),
        (1_025, RequestClass.MIXED),
        (8_191, RequestClass.MIXED),
        (8_192, RequestClass.LONG),
        (10**9, RequestClass.LONG),
    ],
)
def test_a_prompt_is_short_up_to_1024_tokens_and_long_from_8192(prompt_tokens, cls):
    assert class_of(prompt_tokens) is cls


def scores_read(scores):
    document, faults = decode(body({**SOUND, "scores": scores}))
    assert faults == ()
    return {cls.value: score_for(document.replicas[0], cls) for cls in RequestClass}


def test_each_class_has_its_own_score_and_mixed_is_the_capacity_score():
    read = scores_read({"short": 0.75, "long": 0.0})
    assert read == {"short": 0.75, "mixed": 0.5, "long": 0.0}


def test_an_older_sidecar_sends_no_scores_and_its_capacity_score_counts_for_every_class():
    document, faults = decode(body(SOUND))
    assert faults == ()
    assert document.replicas[0].scores == {}
    assert {score_for(document.replicas[0], cls) for cls in RequestClass} == {0.5}


def test_an_older_sidecar_sends_no_speeds_and_they_are_unknown():
    heard = decode(body(SOUND))[0].replicas[0]
    speeds = (heard.step_s, heard.decode_tokens_per_s, heard.prefill_tokens_per_s)
    assert speeds == (None, None, None)


def test_an_older_sidecar_sends_no_parts_and_they_are_unknown():
    assert decode(body(SOUND))[0].replicas[0].parts is None


@pytest.mark.parametrize("scores", [{}, {"long": 0.25}, {"long": 0.25, "short": None}])
def test_a_class_whose_score_is_unknown_falls_back_on_the_capacity_score(scores):
    assert scores_read(scores)["short"] == 0.5


@pytest.mark.parametrize("value", [0.25, 7, None, "full", {"tokens": 1}])
def test_a_class_of_a_newer_sidecar_is_ignored_whatever_its_value(value):
    read = scores_read({"short": 0.75, "huge": value, "mixed": value})
    assert read == {"short": 0.75, "mixed": 0.5, "long": 0.5}


def test_no_score_at_all_is_unknown_in_every_class():
    document, _ = decode(body({**SOUND, "capacity_score": None}))
    assert {score_for(document.replicas[0], cls) for cls in RequestClass} == {None}


@pytest.mark.parametrize(
    ("scores", "named"),
    [
        ({"short": 1.01}, "$.scores.short"),
        ({"long": -0.01}, "$.scores.long"),
        ({"long": "0.5"}, "$.scores.long"),
        ({"short": 0.5, "long": True}, "$.scores.long"),
        (None, "$.scores"),
        ([0.5], "$.scores"),
    ],
)
def test_a_score_out_of_range_is_named_with_its_class_and_costs_only_its_replica(scores, named):
    document, faults = decode(body({**SOUND, "scores": scores}, SOUND))
    assert len(document.replicas) == 1
    assert len(faults) == 1
    assert faults[0].startswith("replicas[0]: ")
    assert f"`{named}`" in faults[0]
