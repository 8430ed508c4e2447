"""The stubs keep their word, or what is measured through them would be a lie."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from ullage_shared.snapshot import PATH, decode

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
CHUNKS, TICK_MS = 5, 2
DONE = b"data: [DONE]\n\n"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("stub") / "backend"
    warnings_are_errors = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*warnings_are_errors, "-o", built, HERE / "backend.c"], check=True)
    return built


@pytest.fixture(scope="module")
def backend(program: Path) -> Iterator[int]:
    yield from serving([program], [str(CHUNKS), str(TICK_MS)], "/health")


@pytest.fixture
def backend_with_20_descriptors(program: Path) -> Iterator[int]:
    limited = ["prlimit", "--nofile=20:20", program]
    yield from serving(limited, [str(CHUNKS), str(TICK_MS)], "/health")


@pytest.fixture
def sidecar() -> Iterator[int]:
    yield from serving([sys.executable, HERE / "stub_sidecar.py"], ["http://gpu-03:8000"], PATH)


def serving(program: list[Any], arguments: list[str], path: str) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    with subprocess.Popen([*program, str(port), *arguments]) as process:
        try:
            for _ in range(500):
                try:
                    fetch(port, path)
                    break
                except ConnectionRefusedError:
                    time.sleep(0.01)
            yield port
        finally:
            process.kill()


def fetch(port: int, path: str) -> bytes:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read()
    finally:
        connection.close()


def counters(port: int) -> dict[str, int]:
    counted: dict[str, int] = json.loads(fetch(port, "/stub/counters"))
    return counted


def post(body: bytes) -> bytes:
    return b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def read_until(connection: socket.socket, end: bytes, times: int = 1) -> bytes:
    got = b""
    while got.count(end) < times:
        piece = connection.recv(65536)
        assert piece, got
        got += piece
    return got


@pytest.mark.parametrize("cut_at", [1, 30, 60, 95, 130])
def test_pipelined_requests_are_answered_in_order_however_they_are_cut(
    backend: int, cut_at: int
) -> None:
    requests = post(b'{"stream": true}') + post(b"{}") + post(b'{"stream":true}')
    with socket.create_connection(("127.0.0.1", backend), timeout=5) as connection:
        connection.sendall(requests[:cut_at])
        time.sleep(0.005)
        connection.sendall(requests[cut_at:])
        got = read_until(connection, DONE, times=2)
    first, plain, second = got.partition(b'"object":"chat.completion",')
    assert plain
    for stream in (first, second):
        assert stream.count(b"data: {") == CHUNKS
        assert stream.count(DONE) == 1


def test_counters_are_what_a_client_reads(backend: int) -> None:
    before = counters(backend)
    with socket.create_connection(("127.0.0.1", backend), timeout=5) as connection:
        connection.sendall(3 * post(b'{"stream":true}'))
        got = read_until(connection, DONE, times=3)
    after = counters(backend)
    assert after["events"] - before["events"] == got.count(b"data: ") == 3 * (CHUNKS + 1)
    assert after["streams_done"] - before["streams_done"] == 3


def test_a_quoted_stream_within_a_prompt_asks_for_none(backend: int) -> None:
    body = json.dumps({"prompt": 'say "stream": true', "stream": False}).encode()
    with socket.create_connection(("127.0.0.1", backend), timeout=5) as connection:
        connection.sendall(post(body))
        assert b"content-length" in read_until(connection, b"\r\n\r\n")


def test_streams_whose_client_left_are_over(backend: int) -> None:
    before = counters(backend)
    with socket.create_connection(("127.0.0.1", backend), timeout=5) as connection:
        connection.sendall(500 * post(b'{"stream":true}'))  # 6 s of ticks
        read_until(connection, b"data: ")
    after = counters(backend)
    assert after["open_streams"] == 0
    assert 1 <= after["streams"] - before["streams"] < 500


def test_a_slow_reader_gets_every_byte(backend: int) -> None:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.settimeout(5)
        connection.connect(("127.0.0.1", backend))
        connection.sendall(2000 * post(b"{}"))
        time.sleep(0.05)
        answers = read_until(connection, b'"total_tokens":15}}', times=2000)
    assert answers.count(b"HTTP/1.1 200 OK") == 2000


def test_running_out_of_descriptors_costs_newcomers_only(
    backend_with_20_descriptors: int,
) -> None:
    port, refused = backend_with_20_descriptors, 0
    crowd = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(40)]
    for connection in crowd:
        try:
            connection.sendall(post(b"{}"))
            refused += connection.recv(65536) == b""
        except ConnectionError:
            refused += 1
    for connection in crowd:
        connection.close()
    assert 20 <= refused < 40
    assert counters(port)["refused"] == refused


def test_as_many_chunks_as_tokens_are_asked_for(backend: int) -> None:
    with socket.create_connection(("127.0.0.1", backend), timeout=5) as connection:
        connection.sendall(post(b'{"stream": true, "max_tokens": 9}') + post(b'{"stream":true}'))
        got = read_until(connection, DONE, times=2)
    first, _, second = got.partition(DONE)
    assert (first.count(b"data: {"), second.count(b"data: {")) == (9, CHUNKS)


@pytest.mark.parametrize("tokens", [1001, 100_000])
def test_a_large_answer_is_as_long_as_it_says_and_the_next_one_comes(
    backend: int, tokens: int
) -> None:
    connection = HTTPConnection("127.0.0.1", backend, timeout=5)
    try:
        for _ in range(2):
            connection.request("POST", "/v1/completions", json.dumps({"max_tokens": tokens}))
            said = json.loads(connection.getresponse().read())
            assert said["choices"][0]["message"]["content"] == 4 * tokens * "x"
    finally:
        connection.close()


def test_one_process_is_several_replicas_with_counters_in_common(program: Path) -> None:
    first = int(os.environ.get("PORT_BASE", "29000")) + 190  # three in a row, that no client draws
    with subprocess.Popen([program, f"{first}-{first + 2}", "5", "60"]) as process:
        try:
            time.sleep(0.1)
            ports = [first, first + 1, first + 2]
            connections = [socket.create_connection(("127.0.0.1", port), 5) for port in ports]
            for connection in connections:
                connection.sendall(post(b'{"stream":true}'))
            time.sleep(0.05)
            assert counters(first)["open_streams"] == counters(first + 2)["open_streams"] == 3
            fetch(first, "/stub/tick/1")
            began_s = time.monotonic()
            for connection in connections:
                assert read_until(connection, DONE).count(b"data: {") == 5
                connection.close()
            assert time.monotonic() - began_s < 0.2  # not 6 ticks of 60 ms
        finally:
            process.kill()


def test_the_sidecar_publishes_a_newer_snapshot_each_time(sidecar: int) -> None:
    first, faults = decode(fetch(sidecar, PATH))
    time.sleep(0.02)
    second, _ = decode(fetch(sidecar, PATH))
    assert faults == ()
    assert [replica.url for replica in first.replicas] == ["http://gpu-03:8000"]
    assert first.replicas[0].seq < second.replicas[0].seq
