"""Lines reach whoever reads; who does not read holds nobody up."""

import contextlib
import os
import threading
import time

import pytest

from ullage_shared import log_writer
from ullage_shared.log_writer import MOST_LINES, Writer


@pytest.fixture
def pipe():
    reads, writes = os.pipe()
    yield reads, writes
    for fd in (reads, writes):
        with contextlib.suppress(OSError):
            os.close(fd)


def test_lines_come_whole_and_in_order(pipe):
    reads, writes = pipe
    writer = Writer(writes)
    for number in range(100):
        writer.put(f"line {number} ü")
    writer.flush()
    said = os.read(reads, 65_536).decode()
    assert said.splitlines() == [f"line {number} ü" for number in range(100)]


def test_a_line_is_there_though_nobody_flushes(pipe):
    reads, writes = pipe
    writer = Writer(writes, gather_s=0.01)
    for number in range(3):
        writer.put(str(number))
        assert os.read(reads, 100) == b"%d\n" % number


def test_who_does_not_read_holds_nobody_up_and_is_told_what_was_dropped(pipe, monkeypatch):
    reads, writes = pipe
    monkeypatch.setattr(log_writer, "FLUSH_S", 0.01)
    writer = Writer(writes, gather_s=0.0)
    writer.dropped = lambda lines: f"dropped {lines}"
    text, beyond = "x" * 100, 500
    begun_s = time.monotonic()
    while not writer._lost:  # Until the pipe is full, and what may wait for it.
        writer.put(text)
    for _ in range(beyond - 1):
        writer.put(text)
    writer.flush()
    assert time.monotonic() - begun_s < 5.0
    monkeypatch.undo()
    came = bytearray()
    reading = threading.Thread(target=lambda: read_until(reads, came, b"end\n"))
    reading.start()
    writer.flush()
    writer.put("end")
    reading.join(5.0)
    lines = came.decode().splitlines()
    assert set(lines) == {text, f"dropped {beyond}", "end"}
    assert lines.count(f"dropped {beyond}") == 1
    assert len(lines) > MOST_LINES


def read_until(fd, came, end):
    while not came.endswith(end):
        came += os.read(fd, 65_536)


def test_a_file_that_does_not_block_loses_no_line(pipe):
    reads, writes = pipe
    os.set_blocking(writes, False)
    writer = Writer(writes)
    for _ in range(2000):
        writer.put("x" * 99)
    came = bytearray()
    writer.put("end")
    read_until(reads, came, b"end\n")
    assert len(came) == 2000 * 100 + 4


def test_a_reader_that_has_gone_ends_nothing(pipe):
    reads, writes = pipe
    os.close(reads)
    writer = Writer(writes, gather_s=0.0)
    writer.put("lost")
    writer.flush()
    writer.put("lost")
    writer.flush()
    assert writer._thread.is_alive()
