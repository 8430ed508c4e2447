"""What a command needs and has not is one line; Ctrl-C while it starts is no traceback."""

import os
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import ullage_router.__main__
import ullage_sidecar.__main__
from ullage_shared import start


@pytest.fixture
def module(monkeypatch):
    """A module whose `main` a test sets."""
    made = ModuleType("made")
    monkeypatch.setitem(sys.modules, "made", made)
    return made


def test_the_status_is_that_of_what_was_run(module):
    module.main = lambda words: len(words)
    assert start.run("x", "router", "made", ["a", "b", "c"]) == 3


def test_a_missing_package_is_one_line_with_what_to_install(capsys, monkeypatch):
    def absent(name):
        raise ModuleNotFoundError("No module named 'httptools'", name="httptools")

    monkeypatch.setattr(start, "import_module", absent)
    assert start.run("ullage-router", "router", "ullage_router.run", []) == 1
    said = capsys.readouterr().err
    assert said == ('ullage-router: httptools is not installed: pip install "ullage[router]"\n')


def test_a_module_of_ours_that_is_missing_is_a_fault_and_not_hidden():
    with pytest.raises(ModuleNotFoundError):
        start.run("x", "router", "ullage_router.nothing", [])


def test_ctrl_c_is_status_130_and_no_traceback(module):
    def interrupted(words):
        raise KeyboardInterrupt

    module.main = interrupted
    assert start.run("x", "router", "made", []) == 130


@pytest.mark.parametrize("main", [ullage_router.__main__.main, ullage_sidecar.__main__.main])
def test_a_subcommand_that_there_is_not_names_the_one_that_was_meant(main, capsys):
    assert main(["chek", "--print"]) == 2
    said = capsys.readouterr().err
    assert said.endswith(": there is no command 'chek'; did you mean check?\n")
    assert main(["x\x1b[2J\n"]) == 2
    said = capsys.readouterr().err
    assert said.rstrip("\n").isprintable()
    assert "wanted one of: check, " in said


@pytest.mark.parametrize("package", ["ullage_router", "ullage_sidecar"])
def test_without_its_extra_a_command_says_so_in_one_line(package, tmp_path):
    """`-S`: the standard library and nothing that is installed, but for these two."""
    for name in (package, "ullage_shared"):
        (there,) = find_spec(name).submodule_search_locations
        (tmp_path / name).symlink_to(there, target_is_directory=True)
    ended = subprocess.run(
        [sys.executable, "-S", "-m", package, "--version"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    name = package.replace("_", "-")
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"{name}: ")
    assert ended.stderr.endswith(f'pip install "ullage[{package.partition("_")[2]}]"\n')
    assert ended.stderr.count("\n") == 1


def heeds_ctrl_c(pid):
    """Has Python begun? Until then the system ends the process by itself."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return caught >> (signal.SIGINT - 1) & 1


ROUTER = ("ullage_router", "--admin", "127.0.0.1:0", "--replica", "http://127.0.0.1:1")
SIDECAR = ("ullage_sidecar", "--engine", "http://127.0.0.1:1", "--socket", "{}/s")
CLOSINGS = ("2>&-", "0>&- 1>&- 2>&-")


@pytest.mark.parametrize("closing", CLOSINGS)
@pytest.mark.parametrize("words", [ROUTER, SIDECAR])
def test_it_serves_with_closed_descriptors_until_it_is_told_to_stop(words, closing, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [word.format(tmp_path) for word in words]
    command = [sys.executable, "-m", *words, "--listen", f"127.0.0.1:{port}"]
    process = subprocess.Popen(["/bin/sh", "-c", f'exec "$@" {closing}', "sh", *command])
    try:
        answers(port, process)
        process.terminate()
        assert process.wait(timeout=30.0) == 0
    finally:
        process.kill()
        process.wait()


def answers(port, process):
    """Wait until somebody listens there, and has said something to a request that is none."""
    for _ in range(600):
        assert process.poll() is None
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5.0) as client:
                client.sendall(b"nothing\r\n\r\n")
                assert client.recv(4096)
                return
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise AssertionError("it does not listen")


STARTS = [
    *((words, after_s) for words in (ROUTER, SIDECAR) for after_s in (0.04, 0.25, 0.5)),
    ((*ROUTER, "--workers", "2"), 0.9),  # While the workers start.
]


@pytest.mark.slow
@pytest.mark.parametrize(("words", "after_s"), STARTS)
def test_ctrl_c_at_any_moment_of_the_start_leaves_no_traceback(words, after_s, tmp_path):
    """A terminal sends it to all processes of the group."""
    words = [word.format(tmp_path) for word in words]
    process = subprocess.Popen(
        [sys.executable, "-m", *words, "--listen", "127.0.0.1:0"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not heeds_ctrl_c(process.pid):
        time.sleep(0.005)
    time.sleep(after_s)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30.0)
    assert "Traceback" not in said
    assert "level=ERROR" not in said
    assert process.returncode in (0, 130)
