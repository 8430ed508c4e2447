"""The format of the datagrams, and a sending end that never raises and never waits."""

import contextlib
import math
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage_sidecar import channel
from ullage_sidecar.channel import (
    MAGIC,
    MAX_DATAGRAM_BYTES,
    DatagramError,
    Sender,
    decode,
    decode_all,
    encode_hello,
    encode_step,
    whole,
)
from ullage_sidecar.core.reading import SCRAPE, Hello, Reading

HELLO = Hello(2**63 - 1, "vllm", "boot-1", 11, started_s=12.5, models=("a", "ü"), block_size=16)

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
        sender=st.integers(0, 2**63 - 1),
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


def hello_of(body):
    return MAGIC + b"\0\0" + (8 + len(body)).to_bytes(2, "little") + body


def test_a_hello_of_a_later_version_may_say_more():
    body = encode_hello(HELLO)[8:]
    assert decode(hello_of(body.replace(b'{"sender"', b'{"colour": "red", "sender"'))) == HELLO


def test_nobody_says_of_himself_where_his_hello_came_from():
    scraped = encode_hello(replace(HELLO, source=SCRAPE))
    assert decode(scraped) == HELLO


def test_a_hello_need_only_say_who_it_is():
    body = b'{"sender": 1, "name": "a", "boot_id": "b", "pid": 2, "started_s": 3}'
    assert decode(hello_of(body)) == Hello(1, "a", "b", 2, 3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sender", -1),
        ("sender", 2**63),
        ("total_blocks", 2**63),
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
    for head in (b"", MAGIC + b"\0\0", MAGIC + b"\1\0\x60\0", hello_of(datagram)[:8]):
        with contextlib.suppress(DatagramError):
            assert isinstance(decode(head + datagram), Hello | Reading)
        for event in decode_all(head + datagram):
            assert isinstance(event, Hello | Reading | DatagramError)
        with contextlib.suppress(DatagramError):
            assert 0 <= whole(head + datagram) <= len(head + datagram)


STEP = encode_step(1, 7, 2.0, (1, 2, 0.5, 3, 4, 5, 6, 7))
WRONG = encode_step(1, 8, 2.0, (1, 2, 1.5, 3, 4, 5, 6, 7))


@given(st.lists(st.sampled_from([STEP, WRONG, encode_hello(HELLO)]), max_size=5), st.data())
def test_datagrams_in_a_row_are_read_one_by_one_wherever_the_stream_is_cut(datagrams, data):
    stream, heard, begun = b"".join(datagrams), [], b""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        begun += stream[start:end]
        taken = whole(begun)
        heard += decode_all(begun[:taken])
        begun = begun[taken:]
    assert begun == b""
    meant = {STEP: decode(STEP), encode_hello(HELLO): HELLO}
    assert [str(each) for each in heard] == [
        str(meant.get(each, "kv_usage=1.5, wanted 0..1")) for each in datagrams
    ]


@pytest.mark.parametrize(
    ("stream", "fault"),
    [
        (b"\0", "not a ULG2 datagram"),
        (b"ULG1\1\0\x60\0", "not a ULG2 datagram"),
        (b"ULG3\1\0\x60\0", "not a ULG2 datagram"),
        (STEP + b"ULH", "not a ULG2 datagram"),
        (MAGIC + b"\1\0\7\0", "of 7 bytes, wanted 8 to 16384"),
        (MAGIC + b"\1\0\1\x40", "of 16385 bytes, wanted 8 to 16384"),
    ],
)
def test_a_stream_that_does_not_go_on_with_a_datagram_is_refused(stream, fault):
    """Another version's, above all."""
    with pytest.raises(DatagramError, match=fault):
        whole(stream)
    assert isinstance([*decode_all(stream)][-1], DatagramError)


@pytest.mark.parametrize("stream", [b"", b"U", MAGIC, STEP[:7], STEP[:8], STEP[:95]])
def test_of_a_datagram_that_is_not_whole_nothing_is_said(stream):
    assert whole(stream) == 0
    assert whole(STEP + stream) == len(STEP)


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
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen()
    listener.settimeout(1.0)
    return listener


def test_without_a_listener_datagrams_are_dropped_and_counted(path):
    sender = Sender(path)
    assert not sender.connect()
    assert not sender.send(b"x")
    assert sender.dropped == 1
    sender.close()


def test_half_a_second_of_a_fast_engine_waits_for_a_listener_that_does_not_look(path, sender_to):
    with listening(path) as listener:
        sender = sender_to(path)
        with listener.accept()[0] as accepted:
            assert all(sender.send(STEP) for _ in range(500))
            heard = b""
            while len(heard) < 500 * len(STEP):
                heard += accepted.recv(65536)
    assert (heard, sender.dropped) == (500 * STEP, 0)


def test_behind_a_listener_that_does_not_look_the_newest_are_dropped_whole(path, sender_to):
    """They come again: the last step with the next heartbeat, and totals are totals."""
    with listening(path) as listener:
        sender = sender_to(path)
        with listener.accept()[0] as accepted:
            steps = [encode_step(1, seq, 2.0, (1, 2, 0.5, 3, 4, 5, 6, 7)) for seq in range(2000)]
            sent = [sender.send(step) for step in steps].count(True)
            assert sent == 2000 - sender.dropped < 2000
            heard = b""
            while len(heard) < sent * len(STEP):
                heard += accepted.recv(65536)
            assert [reading.seq for reading in decode_all(heard)] == [*range(sent)]
            assert sender.send(STEP)
            assert accepted.recv(65536) == STEP


def test_a_datagram_that_fits_in_part_ends_the_connection(path, sender_to, monkeypatch):
    """What came behind it would be read as its rest."""
    monkeypatch.setattr(channel, "BUFFER_BYTES", 1)  # The kernel gives its least.
    with listening(path) as listener:
        sender = sender_to(path)
        with listener.accept()[0] as accepted:
            assert not sender.send(b"x" * MAX_DATAGRAM_BYTES)
            taken = accepted.recv(MAX_DATAGRAM_BYTES * 8, socket.MSG_WAITALL)
            assert 0 < len(taken) < MAX_DATAGRAM_BYTES
        assert not sender.send(STEP)
        assert sender.dropped == 2
        assert sender.connect()
        with listener.accept()[0] as accepted:
            assert sender.send(STEP)
            assert accepted.recv(65536) == STEP


def test_what_will_be_said_again_leaves_room_for_what_is_new(path, sender_to):
    """A sidecar that was stopped for an hour would hear an hour of heartbeats first."""
    with listening(path) as listener:
        sender = sender_to(path)
        with listener.accept()[0] as accepted:
            offered = 0
            while sender.offer(STEP):
                offered += 1
            assert 100 < offered < 500
            assert not sender.offer(STEP)
            assert all(sender.send(STEP) for _ in range(200))
            assert not sender.offer(STEP)
            assert accepted.recv(65536)
            assert sender.offer(STEP)
            assert sender.dropped == 0
    assert sender.offer(STEP)
    assert sender.dropped == 1
    assert not sender.send(STEP)


def test_what_is_sent_to_a_listener_that_is_gone_is_dropped_and_counted(path, sender_to):
    with listening(path):
        sender = sender_to(path)
        assert sender.send(STEP)
    Path(path).unlink()
    assert not sender.send(STEP)
    assert not sender.send(STEP)
    assert sender.dropped == 2


def test_no_signal_ends_a_process_whose_listener_is_gone(path):
    """SIGPIPE is what a stream's end means to a process that did not choose to ignore it."""
    script = """
import signal, sys
from ullage_sidecar.channel import Sender
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
sender = Sender(sys.argv[1])
print(sender.connect(), flush=True)
sys.stdin.readline()
print([sender.send(b"x") for _ in range(3)])
"""
    with listening(path) as listener:
        process = subprocess.Popen(
            [sys.executable, "-c", script, path],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout.readline() == "True\n"
        listener.accept()[0].close()
    said, _ = process.communicate("go\n", timeout=10.0)
    assert (said, process.returncode) == ("[False, False, False]\n", 0)


def test_a_listener_that_comes_back_is_found_again(path):
    sender = Sender(path)
    with listening(path) as first:
        assert sender.connect()
        assert sender.send(b"one")
        first.accept()[0].close()
    Path(path).unlink()
    assert not sender.send(b"lost")
    assert not sender.connect()
    with listening(path) as second:
        assert sender.connect()
        assert sender.send(b"two")
        with second.accept()[0] as accepted:
            assert accepted.recv(10) == b"two"
    sender.close()
