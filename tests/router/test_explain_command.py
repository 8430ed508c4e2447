"""`ullage-router explain` tells in words what a running router's `/explain` says."""

import asyncio
import io
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from explained_site import Site, site
from mission import AS_ASKED
from scripted_backend import refusing_url
from ullage_router import explain_command
from ullage_router.__main__ import main
from ullage_router.core.decision import Why
from ullage_router.core.policy import Policy, Way
from ullage_router.core.rules import Rules
from ullage_router.explain_command import WORDS, told

EVIL = "gpu\x1b]0;owned\x07\x1b[2J\nb would get it/\x9b31m"
STATUS = '{"replicas": []}'
LEAST_WAIT = Rules(Policy(way=Way.LEAST_WAIT))


async def explain(it: Site, *words: str) -> int:
    admin = it.admin.removeprefix("http://")
    return await asyncio.to_thread(main, ["explain", "--admin", admin, *words])


def test_every_rule_has_words() -> None:
    assert WORDS.keys() == set(Why)


async def test_it_says_who_and_why_with_the_figures_of_all_and_who_is_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with site(3, LEAST_WAIT, scores=(0.9, 0.8, 0.1)) as it:
        assert await explain(it, "--prompt", "Tell me of ullage. " * 20) == 0
        assert all(not replica.requests for replica in it.replicas)
    lines = capsys.readouterr().out.splitlines()
    chosen, _, why = lines[0].partition(" ")
    assert chosen in [replica.url.removeprefix("http://") for replica in it.replicas[:2]]
    assert why.startswith("would get it: drawn among the shortest waits: nobody knows")
    assert lines[2].startswith("The request: about 102 prompt tokens (short)")
    heads = ["replica", "wait_s", "uncached_tokens", "score", "effective", "trend", "odds"]
    assert lines[4].split() == heads
    assert sum(line.startswith(f">  {chosen} ") for line in lines) == 1
    assert lines[-2] == "Left out:"
    assert lines[-1].endswith("score is not above the floor of 0.15")


async def test_it_is_status_1_if_nobody_would_get_it(capsys: pytest.CaptureFixture[str]) -> None:
    async with site(2, AS_ASKED, scores=(0.1, 0.1)) as it:
        assert await explain(it) == 1
    assert capsys.readouterr().out.startswith("Nobody would get it: replicas serve, and none has")


async def test_a_body_from_a_file_and_headers_are_as_a_client_sends_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = orjson.dumps({"model": "m", "prompt": "x" * 5000, "max_tokens": 7})
    file = tmp_path / "body.json"
    file.write_bytes(body)
    async with site(2, LEAST_WAIT, scores=(0.9, 0.8)) as it:
        assert await explain(it, "--file", str(file), "--header", "x-ullage-priority: -3") == 0
        said = capsys.readouterr().out
        assert "model m, at most 7 tokens of answer, priority -3, 0 of its 2 cache keys" in said
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(body)))
        assert await explain(it, "--json", "--file", "-") == 0
        assert orjson.loads(capsys.readouterr().out)["request"]["model"] == "m"
        await it.ask(body)
        assert await explain(it, "--file", str(file)) == 0
    said = capsys.readouterr().out
    assert " would get it: it knows how the request begins.\n" in said
    assert " *  " in said
    assert "* knows how the request begins" in said


async def test_what_the_router_would_refuse_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    async with site(1, scores=(0.9,)) as it:
        assert await explain(it, "--header", "x-ullage-priority:high") == 2
    assert "x-ullage-priority: wanted a whole number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--file", "/nonexistent"], "/nonexistent: No such file"),
        (["--header", "nothing"], "wanted NAME:VALUE"),
        (["--file", "x", "--prompt", "y"], "not allowed with"),
        (["--file", "x", "--model", "y"], "the body names its model"),
    ],
)
def test_wrong_usage_is_status_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: Any = main(["explain", *words])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert said in capsys.readouterr().err


def test_no_router_is_status_1_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    nobody = refusing_url().removeprefix("http://")
    assert main(["explain", "--admin", nobody]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ullage-router explain: no router answers at {nobody}: ")


PAGE: Mapping[str, Any] = {
    "replica": "a",
    "why": "a rule of tomorrow",
    "candidates": [{"replica": "a", "home": False, "score": 0.5}],
    "left_out": {},
    "request": {
        "model": None, "prompt_tokens": 0, "size": "short", "max_tokens": None, "priority": 0,
        "cache_keys": 2, "cache_keys_known": 1, "cache_key_per_s": 1.5,
    },
}  # fmt: skip


def test_what_is_not_known_is_left_out() -> None:
    assert list(told(PAGE)) == [
        "a would get it: a rule of tomorrow.",
        "",
        "The request: about 0 prompt tokens (short), 1 of its 2 cache keys known, "
        "the longest known one comes 1.5 times a second.",
        "",
        "   replica  score",
        ">  a          0.5",
    ]


def test_the_chance_of_the_drawn_one_is_told_unless_it_was_as_good_as_sure() -> None:
    def first(odds: float, **more: float) -> str:
        row = {"replica": "a", "home": False, "odds": odds, **more}
        return next(iter(told(PAGE | {"why": "wait", "candidates": [row]})))

    assert " those that have more to do (drawn at 7 %)." in first(0.07, wait_s=0.1)
    assert "drawn at" not in first(0.99, wait_s=0.1)
    assert "drawn at" not in first(0.07)


def test_nothing_that_a_terminal_obeys_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"replica": EVIL, "home": False, "score": 0.5}
    page = PAGE | {"replica": EVIL, "candidates": [row], "left_out": {EVIL: EVIL}}
    page["request"] = {**PAGE["request"], "model": EVIL, "size": EVIL}
    lines = list(told(page))
    assert len(lines) == len(list(told(PAGE))) + 3
    assert all(line.isprintable() for line in lines)
    refusal = orjson.dumps({"error": {"message": EVIL}})
    monkeypatch.setattr(explain_command, "fetch", lambda *_: (503, refusal))
    assert main(["explain"]) == 1
    assert capsys.readouterr().err.rstrip("\n").isprintable()


@pytest.mark.parametrize(
    "page", [b"rubbish", b"[]", b'{"replica": "a"}', b'{"replica": 1, "why": 2, "candidates": [3]}']
)
@pytest.mark.parametrize("status", [200, 503])
def test_a_page_of_another_version_is_one_line(
    status: int, page: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(explain_command, "fetch", lambda *_: (status, page))
    assert main(["explain"]) == 1
    assert "is another version" in capsys.readouterr().err


def test_what_is_no_utf_8_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8"))
    for words in (["--prompt", "-"], ["--prompt", "\udcff"], ["--model", "\udcff"]):
        assert main(["explain", *words]) == 2
        assert capsys.readouterr().err.endswith("model or prompt is not text in UTF-8\n")


@pytest.mark.parametrize(
    ("command", "page"), [("explain", orjson.dumps(PAGE).decode()), ("top --json", STATUS)]
)
def test_a_full_standard_output_is_one_line(command: str, page: str) -> None:
    """To be had without a disk."""
    script = (
        "import sys, ullage_router.top as top, ullage_router.explain_command as explain\n"
        f"top.fetch = explain.fetch = lambda *_: (200, {page!r}.encode())\n"
        "from ullage_router.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", script, *command.split()],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    said = f"ullage-router {command.split()[0]}: standard output: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (1, said)
