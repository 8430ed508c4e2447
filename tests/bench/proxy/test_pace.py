"""The constant-rate client omits nothing: who stalls pays for all that was due meanwhile."""

import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.alone]

SOURCE = Path(__file__).with_name("pace.c")
RATE, SECONDS, WARM_UP_S = 200, 1.3, 0.3
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
BAD = b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("pace") / "pace"
    warnings_are_errors = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*warnings_are_errors, "-o", built, SOURCE], check=True)
    return built


@contextmanager
def server(answer: Callable[[int], bytes]) -> Iterator[int]:
    """Answer request number n of one connection with `answer(n)`; nothing: close it."""

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            number, waiting = 0, b""
            while piece := connection.recv(65536):
                waiting += piece
                while b"\r\n\r\n" in waiting:
                    waiting = waiting.partition(b"\r\n\r\n")[2]
                    connection.sendall(answer(number))
                    number += 1

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield listener.getsockname()[1]
        thread.join(timeout=5)
        assert not thread.is_alive()


def run(program: Path, port: int) -> dict[str, Any]:
    argv = [program, str(port), str(RATE), str(SECONDS), "1", "/x"]
    done = subprocess.run(argv, capture_output=True, timeout=10, check=True)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.mark.parametrize("answer", [ANSWER, CHUNKED])
def test_every_request_that_is_due_is_sent_and_counted(program: Path, answer: bytes) -> None:
    with server(lambda _: answer) as port:
        said = run(program, port)
    assert said["due"] == said["answers"] == RATE * (SECONDS - WARM_UP_S)
    assert said["errors"] == {"status": 0, "closed": 0, "unanswered": 0}
    assert 0.0 < said["p50_ms"] <= said["p99_ms"] <= said["max_ms"]


def test_a_stall_of_200_ms_is_paid_by_every_request_due_in_it(program: Path) -> None:
    def stall_once(number: int) -> bytes:
        time.sleep(0.2 if number == 150 else 0.0)
        return ANSWER

    with server(stall_once) as port:
        said = run(program, port)
    assert said["due"] == said["answers"]
    assert said["max_ms"] >= 200.0
    assert said["p99_ms"] >= 180.0  # of 200 requests 40 were due in it: a closed loop sees one


def test_answers_that_are_no_200_are_errors(program: Path) -> None:
    with server(lambda number: BAD if number % 2 else ANSWER) as port:
        said = run(program, port)
    assert said["errors"]["status"] == RATE * SECONDS / 2
    assert said["answers"] == said["due"] / 2


def test_what_is_not_answered_is_an_error_as_old_as_it_is(program: Path) -> None:
    with server(lambda number: ANSWER if number < 250 else b"") as port:
        said = run(program, port)
    assert said["errors"]["unanswered"] == 10  # 251st to the 260th
    assert said["answers"] == said["due"] - 10
    assert said["max_ms"] >= 1000.0


def test_nobody_there_is_said(program: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        argv = [program, str(unused.getsockname()[1]), "100", "1", "1", "/x"]
        done = subprocess.run(argv, capture_output=True, timeout=10)
    assert done.returncode == 1
    assert b"Connection refused" in done.stderr
