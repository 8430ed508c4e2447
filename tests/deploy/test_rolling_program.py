"""`python3 deploy/rolling` as an operator runs it: exit status, and what it says of its end.

The routers' pages are made up; the program, its runner and its commands are processes.
"""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rolling.command import COMMANDS
from rolling.upgrade import What
from rolling_hosts import program
from units import SHIPPED

pytestmark = pytest.mark.slow

HOSTS = ("gpu-01", "gpu-02")


class StandIn:
    """A router whose page is what a test says. Its replicas are heard of all the time."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.body = b""
        """Instead of a page."""
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200 if self.path == "/status" else 404)
                self.end_headers()
                self.wfile.write(stand_in.body or json.dumps(stand_in.page()).encode())

            def log_message(self, *words: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def page(self) -> dict[str, Any]:
        rows = [
            {
                "id": f"{host}/a",
                "url": f"http://{host}:8000",
                "now": "down" if host in self.down else "serving",
                "say": "",
                "state": "down" if host in self.down else "serving",
                "age_s": 0.0,
                "boot_id": "boot",
                "models": ["tiny"],
            }
            for host in HOSTS
        ]
        return {"version": "0.1.0", "uptime_s": 9.0, "stopping": False, "replicas": rows}

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def router() -> Iterator[StandIn]:
    made = StandIn()
    yield made
    made.close()


def rolling(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(program(*words), capture_output=True, text=True, check=False, timeout=60)


def sidecars(router: StandIn, *words: str) -> subprocess.CompletedProcess[str]:
    return rolling("sidecars", *HOSTS, "--router", router.url, "--run", "sh -c", *words)


def test_all_commands_are_run_on_each_host_in_order(router: StandIn, tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = sidecars(router, "--do", f"echo one {{host}} >> {log}", "--do", f"echo two >> {log}")
    assert (done.returncode, done.stderr) == (0, "")
    assert log.read_text().splitlines() == ["one gpu-01", "two", "one gpu-02", "two"]


def test_the_command_is_one_word_behind_the_runner(router: StandIn) -> None:
    echo = f"{sys.executable} -c 'import sys; print(sys.argv[1:])' -x {{host}}"
    done = rolling("sidecars", "gpu-01", "--router", router.url, "--run", echo, "--do", "a 'b c'")
    assert """['-x', 'gpu-01', "a 'b c'"]""" in done.stdout


def test_a_host_that_cannot_be_reached_ends_it_and_it_says_where_to_begin_again(
    router: StandIn,
) -> None:
    done = sidecars(router, "--do", "test {host} = gpu-01 || exit 255")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "rolling: gpu-02: test {host} = gpu-01 || exit 255: exit status 255",
        "Done: gpu-01.",
        "Under way, look after it: gpu-02.",
        "Not done; begin again with: gpu-02",
    ]


def test_a_runner_that_is_not_there_is_named(router: StandIn) -> None:
    done = rolling("sidecars", "gpu-01", "--router", router.url, "--run", "no-such-runner {host}")
    assert done.returncode == 1
    assert "cannot run no-such-runner: No such file" in done.stderr


def test_a_command_that_does_not_end_ends_it(router: StandIn) -> None:
    done = sidecars(router, "--do", "exec sleep 60", "--within", "0.5")
    assert done.returncode == 1
    assert "gpu-01: exec sleep 60: not done after 0.5 s" in done.stderr


def test_with_another_host_down_nothing_is_done(router: StandIn, tmp_path: Path) -> None:
    router.down.add("gpu-02")
    done = sidecars(router, "--do", f"touch {tmp_path / 'done'}")
    assert done.returncode == 3
    assert "gpu-01 is not begun with: gpu-02/a is down (says 127.0.0.1)" in done.stderr
    assert "Done: none." in done.stderr
    assert not (tmp_path / "done").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_says_what_is_under_way(
    router: StandIn, number: int, tmp_path: Path
) -> None:
    words = ("--do", f"touch {tmp_path}/{{host}}; test {{host}} = gpu-01 || exec sleep 60")
    process = subprocess.Popen(
        program("sidecars", *HOSTS, "--router", router.url, "--run", "sh -c", *words),
        stderr=subprocess.PIPE,
        text=True,
    )
    end_s = time.monotonic() + 30.0
    while not (tmp_path / "gpu-02").exists():
        assert time.monotonic() < end_s
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=30.0)
    assert process.returncode == 130
    assert "Done: gpu-01.\nUnder way, look after it: gpu-02.\n" in said


def test_what_is_no_router_is_named(router: StandIn) -> None:
    router.body = b"<html>"
    done = sidecars(router, "--do", "true")
    assert done.returncode == 3
    assert "no word from the router: this is no page of a router" in done.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("replicas", "gpu-01"), "--router"),
        (("replicas", "--router", "http://a"), "HOST"),
        (("engines", "gpu-01", "--router", "http://a"), "invalid choice: 'engines'"),
        (("replicas", "gpu-01", "--router", "a:9401"), "'a:9401': wanted NAME=http://host:port"),
        (("replicas", "gpu-01;ls", "--router", "http://a"), "'gpu-01;ls': wanted a host's name"),
        (("replicas", "a", "a", "--router", "http://a"), "HOST: one is there twice"),
        (
            ("replicas", "a", "--router", "http://a:1", "--router", "http://a:2"),
            "two have one name",
        ),
        (("routers", "b", "--router", "http://a:1"), "no --router is called b"),
        (
            ("replicas", "a", "--router", "http://a", "--run", ""),
            "wanted a command, as: ssh {host}",
        ),
        (("replicas", "a", "--router", "http://a", "--within", "0"), "0: wanted seconds"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_done(words: tuple[str, ...], why: str) -> None:
    done = rolling(*words)
    assert done.returncode == 2
    assert why in done.stderr


def test_what_is_done_by_default_are_units_that_ship() -> None:
    shipped = {path.name for path in SHIPPED.rglob("*.service")}
    commands = [command.split() for what in What for command in COMMANDS[what]]
    units = {words[2] for words in commands if words[0] == "systemctl"}
    for unit in units:
        name, at, _ = unit.partition("@")
        assert f"{name}{at}.service" in shipped
    drop_in = (SHIPPED / "vllm/vllm@.service.d/ullage.conf").read_text()
    assert commands[0][0] in drop_in
