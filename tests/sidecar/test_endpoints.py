"""Answers, as values."""

import json

import pytest

from snapshots import snapshot
from ullage_shared.snapshot import SCHEMA, Document, encode
from ullage_sidecar.channel import encode_hello
from ullage_sidecar.config import Config, EngineEntry
from ullage_sidecar.core.reading import Hello
from ullage_sidecar.endpoints import healthz, orca, snapshots
from ullage_sidecar.node import Node
from ullage_sidecar.publisher import Published

DOCUMENT = Published(1.0, 0xABC, (), encode(Document(schema=SCHEMA, node="n", replicas=())))


def test_the_document_carries_its_number_as_etag():
    answer = snapshots(DOCUMENT, None)
    assert (answer.status, answer.body) == (200, DOCUMENT.body)
    assert answer.headers == {
        "ETag": '"abc"',
        "Cache-Control": "no-cache",
        "Content-Type": "application/json",
    }


@pytest.mark.parametrize("known", ['"abc"', 'W/"abc"', '"x", "abc"', "*"])
def test_whoever_has_it_is_told_so_without_a_body(known):
    answer = snapshots(DOCUMENT, known)
    assert (answer.status, answer.body) == (304, b"")
    assert answer.headers["ETag"] == '"abc"'


@pytest.mark.parametrize("known", ["", '"abd"', "abc", '"ab"'])
def test_whoever_has_another_gets_it_whole(known):
    assert snapshots(DOCUMENT, known).status == 200


def test_healthz_tells_which_engines_are_known_and_how_many_are_heard():
    entries = (EngineEntry(name="a", url="http://a:1"), EngineEntry(name="b", url="http://b:1"))
    node = Node(Config(node="n", engine=entries), 0.0)
    node.hear(encode_hello(Hello(1, "a", "boot-1", 1, started_s=0.0)), 1.0)
    answer = healthz(node.assessed(1.0), "9.9")
    assert answer.status == 200
    assert json.loads(answer.body) == {
        "version": "9.9",
        "heard": 1,
        "engines": {"a": "starting", "b": "starting"},
    }


def published(*labels):
    replicas = tuple(snapshot("http://x:1", 0.25, id=f"n/{label}") for label in labels)
    return Published(1.0, 1, replicas, b"")


def test_the_only_engine_reports_its_load_with_its_name_or_without():
    for asked in ("", "vllm"):
        answer = orca(published("vllm"), asked)
        assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
        assert json.loads(answer.body)["application_utilization"] == 0.75


@pytest.mark.parametrize("asked", ["", "c", "b:1"])
def test_a_report_of_nobody_is_404_and_names_whom_there_is(asked):
    answer = orca(published("a", "b"), asked)
    assert answer.status == 404
    missing = f"no engine {asked!r}" if asked else "this node has several"
    assert answer.body == f"{missing}; wanted one of: /v1/orca/a, /v1/orca/b".encode()
