"""`ullage-router top` before a running router: once for scripts, and live in a real terminal."""

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from explained_site import Site, site
from scripted_backend import Backend, answering, response
from ullage_router import top
from ullage_router.admin_client import AdminError
from ullage_router.top import main
from ullage_shared.address import parse_listen
from ullage_shared.snapshot import State

pytestmark = pytest.mark.slow

COMMAND = (sys.executable, "-m", "ullage_router", "top")
LEFT = "\x1b[?7h\x1b[?25h\x1b[?1049l"


def admin(it: Site) -> str:
    return it.admin.removeprefix("http://")


# Once


async def test_once_prints_a_table_of_two_looks_an_interval_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    loop = asyncio.get_running_loop()
    async with site(2, scores=(0.9, 0.1)) as it:
        paused: list[float] = []

        def meanwhile(seconds: float) -> None:
            paused.append(seconds)
            asyncio.run_coroutine_threadsafe(it.ask(), loop).result()

        await asyncio.to_thread(top.once, parse_listen(admin(it)), 0.2, meanwhile)
        assert paused == [0.2]
    said = capsys.readouterr()
    head, *rows = (line.split(maxsplit=11) for line in said.out.splitlines())
    table = [dict(zip(head, row, strict=False)) for row in rows]
    by_state = {row["STATE"]: row for row in table}
    assert set(by_state) == {"serving", "full"}
    assert (by_state["serving"]["SCORE"], by_state["serving"]["SHARE%"]) == ("0.90", "100.0")
    assert float(by_state["serving"]["P90_S"]) > 0.0
    assert by_state["full"]["WHY"] == "score is not above the floor of 0.15"
    assert by_state["full"]["P90_S"] == "-"
    assert said.err == "1 of 2 replicas gets nothing: 1 full\n"


async def test_without_a_terminal_it_is_once_and_json_is_the_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with site(1, scores=(0.9,)) as it:
        assert await asyncio.to_thread(main, ["--interval", "0.1", "--admin", admin(it)]) == 0
        assert capsys.readouterr().out.startswith("STATE ")
        assert await asyncio.to_thread(main, ["--json", "--admin", admin(it)]) == 0
    page = orjson.loads(capsys.readouterr().out)
    assert [row["capacity_score"] for row in page["replicas"]] == [0.9]


def test_no_router_is_one_line_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--once", "--admin", "127.0.0.1:1"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"ullage-router top: no router answers at 127\.0\.0\.1:1: .*\n", said.err)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (response(b"{}", 404, b"Not Found"), "has no /status (it said 404)"),
        (response(b"hello"), "has no /status (it said 200)"),
        (response(b"[]"), "has no /status (it said 200)"),
        (
            response(b'{"error":{"message":"No worker."}}', 503, b"Service Unavailable"),
            " answered 503: No worker.",
        ),
        (response(b'{"eligible":0}', 503, b"Service Unavailable"), " answered 503"),
        (response(b'{"error":"x"}', 503, b"Service Unavailable"), " answered 503"),
        (response(b'["error"]', 503, b"Service Unavailable"), " answered 503"),
        (response(b"x", 500, b"Internal Server Error"), " answered 500"),
    ],
)
async def test_what_has_no_status_is_said(answer: bytes, said: str) -> None:
    async with Backend(answering(answer)) as other:
        address = parse_listen(other.url.removeprefix("http://"))
        with pytest.raises(AdminError, match=re.escape(said)) as told:
            await asyncio.to_thread(top.look, address)
        assert str(address) in str(told.value)


@pytest.mark.parametrize(
    "page", ['{"replicas": [{"id": "x"}]}', '{"replicas": 5}', '{"replicas": []}']
)
def test_a_page_of_another_version_is_one_line_and_status_1(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(top, "fetch", lambda *_: (200, page.encode()))
    assert main(["--once", "--interval", "0.1"]) == 1
    assert "is another version: " in capsys.readouterr().err


def test_what_a_router_says_is_shown_without_what_a_terminal_obeys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = orjson.dumps({"error": {"message": "\x1b[2J\nx"}})
    monkeypatch.setattr(top, "fetch", lambda *_: (503, page))
    assert main(["--once"]) == 1
    assert capsys.readouterr().err.endswith(": ?[2J?x\n")


@pytest.mark.parametrize("words", [["--interval", "0"], ["--interval", "x"], ["--admin", "x"]])
def test_wrong_usage_is_status_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


async def test_whoever_reads_only_the_beginning_gets_no_traceback() -> None:
    async with site(1, scores=(0.9,)) as it:
        process = await asyncio.create_subprocess_shell(
            f"{' '.join(COMMAND)} --json --admin {admin(it)} | true",
            stderr=asyncio.subprocess.PIPE,
        )
        assert (await process.communicate())[1] == b""


# Live


class Terminal:
    """A real one, with `top` in it."""

    def __init__(self, admin: str, **environment: str) -> None:
        self._ours, self._theirs = pty.openpty()
        self.modes = termios.tcgetattr(self._theirs)
        self.seen = ""
        self.resize(24, 100)
        self.process = subprocess.Popen(
            [*COMMAND, "--admin", admin, "--interval", "0.1"],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env={**os.environ, "TERM": "xterm", "PYTHONUTF8": "1", "COLUMNS": "333", **environment},
            start_new_session=True,
        )

    def resize(self, lines: int, columns: int) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, size)

    def type(self, text: bytes) -> None:
        os.write(self._ours, text)

    @property
    def frame(self) -> str:
        """What stands there now."""
        whole = [each for each in self.seen.split("\x1b[H")[1:] if "\x1b[J" in each]
        return whole[-1] if whole else ""

    async def shows(self, wanted: str, within_s: float = 60.0) -> None:
        await asyncio.to_thread(self._read, lambda: wanted in self.frame, within_s)

    async def ended(self, within_s: float = 5.0) -> int:
        await asyncio.to_thread(self._read, lambda: self.process.poll() is not None, within_s)
        await asyncio.to_thread(self._read, lambda: LEFT in self.seen, within_s)
        return int(self.process.returncode)

    def _read(self, holds: Any, within_s: float) -> None:
        end_s = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < end_s, self.seen[-2000:]
            if select.select([self._ours], [], [], 0.02)[0]:
                self.seen += os.read(self._ours, 65536).decode(errors="replace")

    @property
    def as_it_was(self) -> bool:
        return self.seen.endswith(LEFT) and termios.tcgetattr(self._theirs) == self.modes

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@contextlib.contextmanager
def terminal(admin: str, **environment: str) -> Iterator[Terminal]:
    it = Terminal(admin, **environment)
    try:
        yield it
    finally:
        it.close()


async def test_live_it_follows_obeys_keys_and_leaves_the_terminal_as_it_was() -> None:
    async with site(2, scores=(0.9, 0.1)) as it:
        with terminal(admin(it)) as shown:
            await shown.shows("0.90")
            assert "\x1b[31mfull" in shown.frame
            assert shown.frame.count("\r\n") == 23
            it.hear(0.42, 0.1)
            await shown.shows("0.42")
            shown.type(b"p")
            await shown.shows("1-1 of 1 by problems, problems only")
            shown.type(b"ps")
            await shown.shows("1-2 of 2 by name")
            it.hear(0.42, 0.0, state=State.HUNG, reason="no step")
            await shown.shows("no step")
            shown.resize(5, 50)
            await shown.shows("1-1 of 2")
            assert shown.frame.count("\r\n") == 4
            assert max(map(len, shown.frame.splitlines())) <= 50 + len("\x1b[31m\x1b[m\x1b[K\x1b[J")
            shown.type(b"\x1b[B\x1b[B\x1b[B")
            await shown.shows("2-2 of 2")
            shown.type(b"q")
            assert await shown.ended() == 0
            assert shown.as_it_was


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
async def test_a_signal_leaves_the_terminal_as_it_was(number: int, status: int) -> None:
    async with site(1, scores=(0.9,)) as it:
        with terminal(admin(it), NO_COLOR="1") as shown:
            await shown.shows("0.90")
            assert "\x1b[3" not in shown.frame
            shown.process.send_signal(number)
            assert await shown.ended() == status
            assert shown.as_it_was
            assert "Traceback" not in shown.seen


async def test_a_router_that_goes_is_said_and_waited_for() -> None:
    async with site(1, scores=(0.9,)) as it:
        place = admin(it)
        with terminal(place) as shown:
            await shown.shows("0.90")
            await it.server.close()
            await shown.shows("NO ANSWER since")
            assert "0.90" in shown.frame
            assert shown.process.poll() is None
