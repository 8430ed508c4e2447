"""The sending end: what tests/sidecar/test_channel.py does not say of it."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ullage_sidecar.channel import MAX_DATAGRAM_BYTES, Sender, decode, encode_hello, encode_step
from ullage_sidecar.core.reading import Hello, Reading

HELLO = Hello(sender=42, name="gpu-03", boot_id="a-1-2", pid=7, started_s=1.5)
STEP = encode_step(42, 1, 2.0, (1, 0, 0.5, 0, 0, 0, 0, 0))


def open_files() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


@pytest.fixture
def sender(socket_path: Path) -> Any:
    sender = Sender(str(socket_path))
    yield sender
    sender.close()


def test_a_listener_that_comes_late_is_found(sender: Sender, listen: Callable[[], Any]) -> None:
    assert not sender.connect()
    listener = listen()

    assert sender.connect()
    assert sender.send(encode_hello(HELLO))
    assert listener.next() == HELLO


def test_a_sender_keeps_its_descriptor_for_life(sender: Sender, listen: Callable[[], Any]) -> None:
    # Another file could get the number of a closed one while a thread still writes to that.
    assert sender._socket is None
    descriptors = []
    for _ in range(3):
        listener = listen()
        assert sender.connect()
        assert sender.send(encode_hello(HELLO))
        assert listener.next() == HELLO
        descriptors.append(sender._socket.fileno())
        assert not os.get_inheritable(descriptors[-1])
        listener.close()
        assert not sender.send(b"x")
    assert len(set(descriptors)) == 1


def test_while_one_thread_sends_without_pause_another_finds_the_listener_again(
    sender: Sender, listen: Callable[[], Any]
) -> None:
    done, ended_well = threading.Event(), []

    def send() -> None:
        while not done.is_set():
            sender.send(STEP)
        ended_well.append(True)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        before = open_files()
        for _ in range(20):
            listener = listen()
            heard = False
            while not heard:  # What failed just now may only now be known to have failed.
                assert sender.connect()
                heard = not listener.hears_nothing_for(0.02)
            assert isinstance(listener.next(), Reading)
            listener.close()
    finally:
        done.set()
        thread.join()
    assert ended_well
    assert len(open_files() - before) <= 1  # the sender's own


@pytest.mark.parametrize("path", ["x" * 200, "/nowhere/at/all", "/etc/passwd"])
def test_a_path_where_nobody_can_listen_raises_nothing(path: str) -> None:
    sender = Sender(path)

    assert not sender.connect()
    assert not sender.send(b"x")
    sender.close()


@pytest.mark.parametrize("name", ["adapter-{:05}", "Ärger-{:05}", '"quoted"-{:05}'])
def test_of_too_many_models_the_first_are_sent_as_many_as_fit(name: str) -> None:
    models = tuple(name.format(number) for number in range(5_000))

    datagram = encode_hello(Hello(42, "gpu-03", "a-1-2", 7, 1.5, models=models))
    sent = decode(datagram)

    assert isinstance(sent, Hello)
    one_more = len(datagram) + 40
    assert len(datagram) <= MAX_DATAGRAM_BYTES < one_more
    assert sent.models == models[: len(sent.models)]
