"""The format of the datagrams, and a sending end that never raises and never waits."""

import contextlib
import math
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage_sidecar.channel import (
    BACKLOG,
    MAX_DATAGRAM_BYTES,
    DatagramError,
    Sender,
    decode,
    encode_hello,
    encode_step,
)
from ullage_sidecar.core.reading import SCRAPE, Hello, Reading

HELLO = Hello(2**64 - 1, "vllm", "boot-1", 11, started_s=12.5, models=("a", "ü"), block_size=16)

counts = st.integers(0, 2**53 - 1)
texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(st.none() | counts, min_size=7, max_size=7),
    st.none() | st.floats(0.0, 1.0),
)
def test_a_step_arrives_as_it_was_sent(sender, seq, at_s, numbers, kv_usage):
    running, waiting, *totals = numbers
    values = (running, waiting, kv_usage, *totals)
    sent = encode_step(sender, seq, at_s, [math.nan if v is None else v for v in values])
    assert decode(sent) == Reading(sender, seq, at_s, *values)


@given(
    st.builds(
        Hello,
        sender=st.integers(0, 2**64 - 1),
        name=texts,
        boot_id=texts,
        pid=counts,
        started_s=st.floats(0.0, 1e9),
        engine_index=counts,
        data_parallel_size=counts,
        models=st.lists(texts, max_size=3).map(tuple),
        total_blocks=st.none() | counts,
        vllm_version=st.none() | texts,
        dropped=counts,
        said_s=st.none() | st.floats(0.0, 1e9),
    )
)
def test_a_hello_arrives_as_it_was_sent(hello):
    assert decode(encode_hello(hello)) == hello


def test_a_hello_of_a_later_version_may_say_more():
    sent = encode_hello(HELLO).replace(b'{"sender"', b'{"colour": "red", "sender"')
    assert decode(sent) == HELLO


def test_nobody_says_of_himself_where_his_hello_came_from():
    scraped = encode_hello(replace(HELLO, source=SCRAPE))
    assert decode(scraped) == HELLO


def test_a_hello_need_only_say_who_it_is():
    sent = encode_hello(HELLO).split(b"{")[0] + (
        b'{"sender": 1, "name": "a", "boot_id": "b", "pid": 2, "started_s": 3}'
    )
    assert decode(sent) == Hello(1, "a", "b", 2, 3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sender", -1),
        ("sender", 2**64),
        ("sender", 1.5),
        ("sender", True),
        ("name", ""),
        ("name", 5),
        ("name", "x" * 2000),
        ("boot_id", ""),
        ("boot_id", None),
        ("started_s", math.nan),
        ("started_s", math.inf),
        ("started_s", -1),
        ("models", "vllm\ud800"),
        ("models", (1,)),
        ("total_blocks", -1),
        ("total_blocks", 0.5),
        ("total_blocks", "many"),
        ("vllm_version", 3),
        ("said_s", math.nan),
        ("said_s", "now"),
    ],
)
def test_a_hello_that_makes_no_sense_is_refused_by_field(field, value):
    with pytest.raises(DatagramError, match=f"hello: {field}"):
        decode(encode_hello(replace(HELLO, **{field: value})))


@given(st.binary(max_size=120))
def test_any_bytes_are_read_or_refused(datagram):
    for head in (b"", b"ULG1\0\0\0\0", b"ULG1\x01\0\0\0"):
        with contextlib.suppress(DatagramError):
            assert isinstance(decode(head + datagram), Hello | Reading)


def test_of_a_long_list_of_models_the_first_are_sent():
    crowded = replace(HELLO, models=tuple(f"model-{number:06d}" for number in range(5000)))
    sent = encode_hello(crowded)
    assert len(sent) <= MAX_DATAGRAM_BYTES
    models = decode(sent).models
    assert len(models) > 500
    assert models == crowded.models[: len(models)]


@pytest.fixture
def path(tmp_path):
    return os.fspath(tmp_path / "s.sock")


def listening(path):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(path)
    listener.settimeout(1.0)
    return listener


def test_without_a_listener_datagrams_are_dropped_and_counted(path):
    sender = Sender(path)
    assert not sender.connect()
    assert not sender.send(b"x")
    assert sender.dropped == 1
    sender.close()


def test_what_a_full_queue_does_not_take_goes_before_the_next_datagram(path, sender_to):
    with listening(path) as listener:
        sender = sender_to(path)
        assert all(sender.send(b"%d" % number) for number in range(BACKLOG))
        heard = []
        while len(heard) < BACKLOG:
            heard.append(listener.recv(10))
            if len(heard) % 8 == 0:
                sender.send(b"more")
        assert heard == [b"%d" % number for number in range(BACKLOG)]
        assert sender.dropped == 0


def test_behind_a_listener_that_does_not_read_the_oldest_are_dropped(path, sender_to):
    with listening(path) as listener:
        sender = sender_to(path)
        for number in range(2000):
            sender.send(b"%d" % number)
        queued = 2000 - BACKLOG - sender.dropped
        assert 0 < queued < 1000
        assert [listener.recv(10) for _ in range(queued)] == [b"%d" % n for n in range(queued)]
        sender.send(b"newest")
        assert listener.recv(10) == b"%d" % (2000 - BACKLOG + 1)


def test_what_will_be_said_again_does_not_lie_before_what_is_new(path, sender_to):
    """A sidecar that was stopped for an hour would hear an hour of heartbeats first."""
    with listening(path) as listener:
        sender = sender_to(path)
        offered = 0
        while sender.offer(b"%d" % offered):
            offered += 1
        for _ in range(1000):
            assert not sender.offer(b"again")
        assert sender.send(b"a step")
        heard = [listener.recv(10) for _ in range(offered)]
        assert heard == [b"%d" % number for number in range(offered)]
        assert sender.offer(b"a beat")
        assert (listener.recv(10), listener.recv(10)) == (b"a step", b"a beat")
        assert sender.dropped == 0
    assert sender.offer(b"lost")
    assert sender.dropped == 1
    assert not sender.send(b"lost too")


def test_a_backlog_is_dropped_and_counted_when_its_listener_goes(path, sender_to):
    with listening(path):
        sender = sender_to(path)
        for _ in range(100):
            sender.send(b"x")
        assert sender.dropped == 0
    Path(path).unlink()
    assert not sender.send(b"lost")
    assert 0 < sender.dropped <= 101
    before = sender.dropped
    assert not sender.send(b"lost too")
    assert sender.dropped == before + 1


def test_a_listener_that_comes_back_is_found_again(path):
    sender = Sender(path)
    with listening(path):
        assert sender.connect()
        assert sender.send(b"one")
    Path(path).unlink()
    assert not sender.send(b"lost")
    assert not sender.connect()
    with listening(path) as second:
        assert sender.connect()
        assert sender.send(b"two")
        assert second.recv(10) == b"two"
    sender.close()
