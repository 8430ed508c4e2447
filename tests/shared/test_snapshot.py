"""The wire: what is sound arrives whole, what is not is named and costs only its replica."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage_shared.snapshot import (
    SCHEMA,
    Document,
    Snapshot,
    SnapshotError,
    State,
    decode,
    encode,
)

ratios = st.none() | st.floats(0.0, 1.0)
counts = st.none() | st.integers(0, 2**53)
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
