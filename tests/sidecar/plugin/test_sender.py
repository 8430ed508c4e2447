"""The sending end: what tests/sidecar/test_channel.py does not say of it."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ullage_sidecar.channel import MAX_DATAGRAM_BYTES, Sender, decode, encode_hello
from ullage_sidecar.core.reading import Hello

HELLO = Hello(sender=42, name="gpu-03", boot_id="a-1-2", pid=7, started_s=1.5)


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


def test_a_listener_that_went_while_two_threads_sent_is_found_again_by_the_same_socket(
    sender: Sender, listen: Callable[[], Any]
) -> None:
    # Another socket could get the number of a closed one while a thread still writes to that.
    first = listen()
    sender.connect()
    first.close()
    threads = [threading.Thread(target=sender.send, args=(b"x",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sender.dropped == 2
    descriptors = open_files()

    second = listen()
    assert sender.connect()

    assert sender.send(encode_hello(HELLO))
    assert second.next() == HELLO
    assert len(open_files() - descriptors) == 1  # the second listener's


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
